// Forward of one block of rows on a matrix unit: what forward.h does, strip by strip.
//
//     work.s         (kForwardStripRows, kTileStride): scores of a strip
//     work.p_rows    p = exp(s - row_max) of a strip, rounded (weights.h)
//     work.output_acc (rows, padded_value_dim): sum of p * v so far
//
// row_max is the largest score of the first tile of which a row sees keys. Larger ones come after it,
// whose p are larger than 1: no number loses by that. Only where p grows beyond kMaxWeight is it
// raised, and the sums so far rescaled.
#pragma once

#include <stdint.h>

#include "bf16.h"
#include "config.h"
#include "forward_sums.h"
#include "integers.h"
#include "simd.h"
#include "tile.h"
#include "tile_products.h"
#include "weights.h"

namespace relpos {
namespace {

#if RELPOS_TILES

// Their sums stay finite, and so do those of their products with values of up to 5e33 in size.
constexpr float kMaxWeight = 0x1p16f;

struct TileForward : ForwardSums {
  vfloat lane_sums[kBlockRows];  // what row_sum will be, by lane

  TileForward(const Plan& p, Workspace w) : ForwardSums(p, w) {
    clear_weights(work.p_rows, weights_size(kForwardStripRows));
  }

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_sums(block);
    for (int64_t r = 0; r < kBlockRows; ++r) lane_sums[r] = vfloat{};
    fill(row_max, kBlockRows, -kInfinity);
    for (KeyTile tile = {}; next_tile(block, tile);)
      for (int64_t row = 0; row < num_rows; row += kForwardStripRows) {
        KeyTile strip = tile;
        if (cut_to_strip(block, row, kForwardStripRows, strip)) add_strip(block, strip);
      }
    for (int64_t r = 0; r < num_rows; ++r) row_sum[r] = horizontal_sum(lane_sums[r]);
    if (plan.value_window.present) add_far_values(block);
    if (plan.grid.has_values) add_axis_values(block);
    write(block);
  }

  void add_strip(const RowBlock& block, const KeyTile& tile) {
    float row_shift[kBlockRows];
    const float factor = tile_scores(block, tile, row_shift);
    const Region region =
        plan.value_window.present ? region_of(plan.value_window, block, tile) : kBand;
    float* const far_sums = region == kLeft ? p_left : region == kRight ? p_right : nullptr;
    for (int64_t first = tile.first_row; first < tile.end_row; first += kLanes) {
      const int64_t end = min(first + kLanes, tile.end_row);
      if (plan.drop_threshold || any_without_max(first, end))
        raise_maxima(tile, first, end - first, row_shift, factor);
      for (int64_t r = first; r < end; ++r) {
        const vfloat sums = weights_of_row(block, tile, r, row_shift[r], factor);
        if (far_sums) far_sums[r] += horizontal_sum(sums);
      }
    }
    for (int64_t r = tile.num_rows(); r < round_up(tile.num_rows(), kTileSide); ++r)
      clear_row(weight_row(work.p_rows, r));
    if (plan.value_window.present)
      for (int64_t r = 0; r < tile.num_rows(); ++r)
        clear_around(weight_row(work.p_rows, r), tile);
    accumulate_output(block, tile);
  }

  packed* p_row(const KeyTile& tile, int64_t r) const {
    return weight_row(work.p_rows, r - tile.first_row);
  }

  bool any_without_max(int64_t first, int64_t end) const {
    for (int64_t r = first; r < end; ++r)
      if (row_max[r] == -kInfinity) return true;
    return false;
  }

  // row_max of the rows first..first+count-1, at most W, becomes the largest score so far; what was
  // summed before is rescaled where it grows. The scores of each row are compared lane by lane, then
  // the lanes of all rows, transposed.
  void raise_maxima(const KeyTile& tile, int64_t first, int64_t count, const float* row_shift,
                    float factor) {
    vfloat lanes[kLanes];
    for (int64_t n = 0; n < kLanes; ++n)
      lanes[n] = n < count ? lane_maxima(tile, first + n) : broadcast(-kInfinity);
    transpose(lanes);
#pragma GCC unroll 4
    for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
      for (int n = 0; n < half; ++n) lanes[n] = maximum(lanes[n], lanes[n + half]);
    float shifts[kLanes] = {}, factors[kLanes];
    __builtin_memcpy(shifts, row_shift + first, (uint64_t)(4 * count));
    const vfloat before = load(row_max + first);
    const vfloat after = maximum(rounded_product(lanes[0], factor) + load(shifts), before);
    store(row_max + first, after);
    store(factors, power_of_two((before - after) * kLog2OfE));
    const vint grows = (before < after) & (before > -kInfinity);
    for (int64_t n = 0; n < count; ++n)
      if (grows[n]) {
        rescale(first + n, factors[n]);
        lane_sums[first + n] *= factors[n];
      }
  }

  // Lane by lane the largest of row r's scores; NaN are lost.
  vfloat lane_maxima(const KeyTile& tile, int64_t r) const {
    const float* const x = rows_of(work.s, tile) + r * kTileStride;
    vfloat largest = broadcast(-kInfinity), other = largest;
    for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += 2 * kLanes) {
      largest = maximum(load(x + n), largest);
      other = maximum(load(x + n + kLanes), other);
    }
    return maximum(largest, other);
  }

  // Row r's scores, times factor, become p in work.p_rows, relative to row_max. Returns its sums by
  // lane, without what dropout drops.
  vfloat weights_of_row(const RowBlock& block, const KeyTile& tile, int64_t r, float row_shift,
                        float factor) {
    float* const x = rows_of(work.s, tile) + r * kTileStride;
    packed* const p = p_row(tile, r);
    const int64_t from = tile.vector_from(), to = tile.vector_to();
    float base = row_max[r];
    // The row has no key yet, unless there are NaN, which the maximum does not show.
    if (base == -kInfinity && !any_nan(x + from, to - from)) {
      clear_row(p);
      return vfloat{};
    }
    if (base == -kInfinity) base = row_max[r] = __builtin_nanf("");
    base -= row_shift;
    if (plan.drop_threshold) return dropped_weights(block, tile, r, from, to, base, factor, x, p);
    vfloat sums = weights(from, to, base, factor, x, p);
    if (!all_below(sums, kMaxWeight)) {
      raise_maximum(tile, r, row_shift, factor);
      sums = weights(from, to, row_max[r] - row_shift, factor, x, p);
    }
    lane_sums[r] += sums;
    return sums;
  }

  // As raise_maxima, for one row.
  void raise_maximum(const KeyTile& tile, int64_t r, float row_shift, float factor) {
    const vfloat largest = broadcast(horizontal_max(lane_maxima(tile, r)));
    const float before = row_max[r], after = rounded_product(largest, factor)[0] + row_shift;
    if (!(after > before)) return;
    row_max[r] = after;
    const float shrinking = power_of_two(broadcast((before - after) * kLog2OfE))[0];
    rescale(r, shrinking);
    lane_sums[r] *= shrinking;
  }

  // p of the scores x (tile) from..to-1, whole vectors, rounded; its sums by lane.
  static vfloat weights(int64_t from, int64_t to, float base, float factor, const float* x,
                        packed* p) {
    return is_far_base(base) ? weights_beyond<true>(from, to, base, factor, x, p)
                             : weights_beyond<false>(from, to, base, factor, x, p);
  }
  template <bool FarBase>
  static vfloat weights_beyond(int64_t from, int64_t to, float base, float factor, const float* x,
                        packed* p) {
    const RowExponential<FarBase> exponential(base, factor);
    vfloat sum = {}, other_sum = {};
    for (int64_t n = from; n < to; n += 2 * kLanes) {
      const vfloat y = exponential(load(x + n)), z = exponential(load(x + n + kLanes));
      sum += y, other_sum += z;
      store_weights(p + n, Parts(y, z));
    }
    return sum + other_sum;
  }

  vfloat dropped_weights(const RowBlock& block, const KeyTile& tile, int64_t r, int64_t from,
                         int64_t to, float base, float factor, float* x, packed* p) {
    const RowExponential<true> exponential(base, factor);
    vfloat kept_sums = {};
    for (int64_t n = from; n < to; n += kLanes) {
      const vfloat y = exponential(load(x + n));
      lane_sums[r] += y;
      store(x + n, y);
    }
    drop(block, tile, r, from, to, x);
    for (int64_t n = from; n < to; n += 2 * kLanes) {
      const vfloat y = load(x + n), z = load(x + n + kLanes);
      kept_sums += y + z;
      store_weights(p + n, Parts(y, z));
    }
    return kept_sums;
  }

  // output_acc += p v, and on a band p by offset times the table of values.
  void accumulate_output(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_value_dim;
    const TilesOfC output = rows_of_c(work.output_acc + tile.first_row * dim, dim);
    multiply_rows(tile, work.p_rows, work.value_pairs, dim, work.edge_pairs, output);
    if (plan.value_window.present && region_of(plan.value_window, block, tile) == kBand)
      multiply_sheared_rows(block, tile, plan.value_window, work.p_rows,
                            window_table(kValues, block.h).rows, dim, output);
    if (plan.grid.has_values) accumulate_axis_p(tile);
  }

  void accumulate_axis_p(const KeyTile& tile) {
    for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r) {
      float* const x = rows_of(work.s, tile) + r * kTileStride;
      const packed* p = p_row(tile, r);
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        vfloat sum = to_float(load_half(p + n));
        if constexpr (kParts == 2) sum += to_float(load_half(p + kWeightStride + n));
        store(x + n, sum);
      }
      accumulate_by_coord(x, work.axis_p + r * params.grid.sum_size_k);
    }
  }

  // The rows of the table of values left and right of the window.
  void add_far_values(const RowBlock& block) {
    add_far_row(block, plan.value_window.low_column(), p_left);
    add_far_row(block, plan.value_window.high_column(), p_right);
  }
  void add_far_row(const RowBlock& block, int64_t column, const float* sums) {
    const int64_t dim = plan.padded_value_dim;
    read_table_row(params.tables[kValues], params.dtype, plan.value_window, block.h, column, dim,
                   work.row_scratch);
    for (int64_t r = 0; r < block.num_rows; ++r)
      if (sums[r] != 0) add_scaled(dim, sums[r], work.row_scratch, work.output_acc + r * dim);
  }
};

#endif

}  // namespace
}  // namespace relpos
