// Backward of one block of rows: p is computed again, tile by tile, from each row's saved row_max
// and row_sum, as in FlashAttention.
//
// With dO = d_output / keep_probability, and delta_i = d_output_i . o_i - d_lse_i:
//
//     dp_ij = kept_ij * dO_i . (v_j + V[j-i])        ds = p * (dp - delta)
//
//     work.s, work.ds     (rows, kTileStride): scores then p; dp then ds
//     work.offset_dp      (rows, kBufferStride): dO . V by column of the value window
//     work.offset_p       (rows, kBufferStride): sums of p by column
//     delta, d_lse, ...   (rows)
//
// kept_ij is 0 where dropout drops, else 1.
//
// W = kLanes floats in a vector; NR = kNR columns in a panel.
#pragma once

#include <stdint.h>

#include "config.h"
#include "gemm.h"
#include "grid_plan.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "score_gradients.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

struct Backward : ScoreGradients {
  float delta[kBlockRows], d_lse[kBlockRows];
  // Left and right of the value window: dO . V, and sums of p.
  float dp_left[kBlockRows], dp_right[kBlockRows];
  float p_left[kBlockRows], p_right[kBlockRows];

  using ScoreGradients::ScoreGradients;

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_score_gradients(block);
    begin_value_gradients(block);
    float row_shift[kBlockRows];
    for (KeyTile tile = {0, 0, 0, 0}; next_tile(block, tile);) {
      tile_scores(block, tile, row_shift);
      const Region value_region = multiply_values(block, tile);
      for (int64_t r = 0; r < num_rows; ++r)
        softmax_backward(block, tile, r, row_shift[r], value_region);
      accumulate_value_gradients(block, tile);
      accumulate_score_gradients(block, tile);
    }
    finish_value_gradients(block);
    finish_score_gradients(block);
  }

  void begin_value_gradients(const RowBlock& block) {
    read_d_output(block);
    fill(p_left, block.num_rows, 0);
    fill(p_right, block.num_rows, 0);
    if (plan.value_window.present) {
      dp_column(block, plan.value_window.low_column(), dp_left);
      dp_column(block, plan.value_window.high_column(), dp_right);
    }
    if (plan.grid.has_values) begin_axis_values(block);
    work.offset_dp.reset();
    work.offset_p.reset();
  }

  // work.d_output = dO, its panels, and delta.
  void read_d_output(const RowBlock& block) {
    const int64_t dim = plan.padded_value_dim;
    read_rows(params.d_output, Dtype::f32, block.b, block.h, block.first_row, block.num_rows,
              params.value_dim, dim, 1 / plan.keep_probability, work.d_output);
    pack_rows(work.d_output, dim, block.num_rows, params.value_dim, work.d_output_panels);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t i = block.first_row + r, row = params.row_index(block.b, block.h, i);
      const TensorView& from = params.d_lse;
      d_lse[r] =
          from.present() ? ((const float*)from.data)[from.row_start(block.b, block.h, i)] : 0;
      const double sum = dot_in_double(params.output + row * params.value_dim,
                                       work.d_output + r * dim, params.value_dim) *
                         plan.keep_probability;
      delta[r] = (float)(sum - d_lse[r]);
    }
  }

  // dO . V for a grid's axes, by coordinate.
  void begin_axis_values(const RowBlock& block) {
    const int64_t count = block.num_rows * params.grid.sum_size_k;
    fill(work.axis_p, count, 0);
    fill(work.axis_dp, count, 0);
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_values)
        multiply_axis_table(block, axis, work.d_output, plan.padded_value_dim, params.value_dim,
                            axis_tables().transposed + plan.grid.axes[axis].transposed.values,
                            work.axis_dp);
  }

  // dO . V of each row at one column: to (rows).
  void dp_column(const RowBlock& block, int64_t column, float* to) {
    const int64_t dim = plan.padded_value_dim;
    read_table_row(params.tables[kValues], params.dtype, plan.value_window, block.h, column, dim,
                   work.row_scratch);
    for (int64_t r = 0; r < block.num_rows; ++r)
      to[r] = dot(work.d_output + r * dim, work.row_scratch, dim);
  }

  // ---- dp -------------------------------------------------------------------------------------

  // dO . (v_j + V[j-i]) in work.ds, but for V's constants left and right of its window, which are
  // added later (dp_left, dp_right); returns which of them, or kBand for none.
  Region multiply_values(const RowBlock& block, const KeyTile& tile) {
    const int64_t first = round_down(tile.from, kNR);
    gemm_packed(block.num_rows, tile.to - first, params.value_dim, work.d_output_panels,
                work.value_panels + tile.key(first) * params.value_dim, work.ds + first,
                kTileStride);
    if (plan.grid.has_values)
      for (int64_t r = first_grid_row; r < block.num_rows; ++r)
        add_by_coord(work.axis_dp + r * params.grid.sum_size_k, work.ds + r * kTileStride);
    if (!plan.value_window.present) return kBand;
    const OffsetWindow& window = plan.value_window;
    const Region region = region_of(window, block, tile);
    if (region != kBand) return region;
    ensure_offset_dp(block, tile.first_column(window, block), tile.end_column(window, block));
    for (int64_t r = 0; r < block.num_rows; ++r)
      add_sheared(work.offset_dp.row(r), window, tile.key(tile.vector_from()), block.position + r,
                  tile.vector_to() - tile.vector_from(),
                  work.ds + r * kTileStride + tile.vector_from());
    return region;
  }

  // Compute what the offset buffer still lacks of the columns from..to-1 of dO . V.
  void ensure_offset_dp(const RowBlock& block, int64_t from, int64_t to) {
    OffsetBuffer& buffer = work.offset_dp;
    from = round_down(from, kNR), to = round_up(to, kNR);
    const int64_t missing = buffer.first_missing(from, to, block.num_rows);
    if (missing >= to) return;
    const int64_t depth = params.value_dim;
    gemm_packed(block.num_rows, to - missing, depth, work.d_output_panels,
                window_table(kValues, block.h).panels + missing * depth, buffer.row(0) + missing,
                kBufferStride);
    buffer.end = to;
  }

  // ---- the softmax ----------------------------------------------------------------------------

  // Row r's scores and dp become p (0 where dropout drops) and ds, both 0 for the keys that it does
  // not see, in the whole vectors of the tile.
  void softmax_backward(const RowBlock& block, const KeyTile& tile, int64_t r, float row_shift,
                        Region value_region) {
    float* x = work.s + r * kTileStride;
    float* d = work.ds + r * kTileStride;
    const int64_t seen_from = tile.row_from(block, r), seen_to = tile.row_to(block, r);
    const int64_t row = params.row_index(block.b, block.h, block.first_row + r);
    if (seen_from >= seen_to || params.row_max[row] == -kInfinity) {
      fill(x + tile.vector_from(), tile.vector_to() - tile.vector_from(), 0);
      fill(d + tile.vector_from(), tile.vector_to() - tile.vector_from(), 0);
      return;
    }
    const int64_t from = round_down(seen_from, kLanes), to = round_up(seen_to, kLanes);
    const vfloat base = broadcast(params.row_max[row] - row_shift);
    const vfloat inverse_sum = broadcast(1 / params.row_sum[row]);
    const float dp_constant = value_region == kLeft    ? dp_left[r]
                              : value_region == kRight ? dp_right[r]
                                                       : 0;
    const bool single_tile = block.key_begin[r] >= tile.begin &&
                             block.key_end[r] <= tile.begin + tile.num_keys;
    if (!plan.drop_threshold && !single_tile) {
      const vfloat row_delta = broadcast(delta[r] - dp_constant);
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = exponential(load(x + n) - base) * inverse_sum;
        store(x + n, p);
        store(d + n, p * (load(d + n) - row_delta));
      }
    } else {
      float kept[kTileKeys];
      fill(kept + from, to - from, 1);
      if (plan.drop_threshold) drop(block, tile, r, from, to, kept);
      vfloat p_dp_sum = {}, p_sum = {};
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = exponential(load(x + n) - base) * inverse_sum;
        const vfloat dp = load(kept + n) * (load(d + n) + dp_constant);
        const vfloat p_dp = p * dp;
        // Hidden lanes have no weight, but what they would add may be NaN.
        const bool all_seen = n >= seen_from && n + kLanes <= seen_to;
        p_dp_sum += all_seen ? p_dp
                             : select(lane_mask(seen_from - n, seen_to - n), p_dp, vfloat{});
        p_sum += p;
        store(x + n, p);
        store(d + n, dp);
      }
      // With all keys in one tile, sum_j p dp comes from these very p: no rounding in between.
      const vfloat row_delta =
          broadcast(single_tile ? horizontal_sum(p_dp_sum) / horizontal_sum(p_sum) : delta[r]);
      const vfloat row_d_lse = broadcast(single_tile ? d_lse[r] : 0);  // else it is in delta
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = load(x + n);
        store(d + n, p * (load(d + n) - row_delta + row_d_lse));
        store(x + n, p * load(kept + n));
      }
    }
    fill(x + tile.vector_from(), from - tile.vector_from(), 0);
    fill(x + to, tile.vector_to() - to, 0);
    // Not from..to: the ds of a hidden lane may be NaN.
    fill(d + tile.vector_from(), seen_from - tile.vector_from(), 0);
    fill(d + seen_to, tile.vector_to() - seen_to, 0);
  }

  // ---- v and the tables of values -------------------------------------------------------------

  void accumulate_value_gradients(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_value_dim;
    if (sums.v)
      gemm_add<kTransposed>(tile.to - tile.from, dim, block.num_rows, work.s + tile.from,
                            kTileStride, work.d_output, dim, sums.v + tile.key(tile.from) * dim,
                            dim);
    if (plan.grid.has_values && sums.axis_tables)
      for (int64_t r = first_grid_row; r < block.num_rows; ++r)
        accumulate_by_coord(work.s + r * kTileStride, work.axis_p + r * params.grid.sum_size_k);
    if (sums.tables[kValues])
      accumulate_by_offset(block, tile, plan.value_window, work.s, work.offset_p, p_left, p_right,
                           [&](int64_t from, int64_t to) { flush_offset_p(block, from, to); });
  }

  // dV of the columns from..to-1 += p by offset, transposed, times dO.
  void flush_offset_p(const RowBlock& block, int64_t from, int64_t to) {
    const int64_t dim = plan.padded_value_dim;
    gemm_add<kTransposed>(to - from, dim, block.num_rows, work.offset_p.row(0) + from,
                          kBufferStride, work.d_output, dim,
                          table_sums(kValues, block.h) + from * dim, dim);
  }

  void finish_value_gradients(const RowBlock& block) {
    const int64_t dim = plan.padded_value_dim;
    if (sums.tables[kValues]) {
      flush_offset_p(block, work.offset_p.origin, work.offset_p.end);
      float* to = table_sums(kValues, block.h);
      gemm_add<kTransposed>(1, dim, block.num_rows, p_left, 1, work.d_output, dim,
                            to + plan.value_window.low_column() * dim, dim);
      gemm_add<kTransposed>(1, dim, block.num_rows, p_right, 1, work.d_output, dim,
                            to + plan.value_window.high_column() * dim, dim);
    }
    if (!sums.axis_tables) return;
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_values) finish_axis_values(block, axis);
  }

  // axis_p to an axis's table of values.
  void finish_axis_values(const RowBlock& block, int axis) {
    const int64_t dim = plan.padded_value_dim;
    float* const table = axis_table_sums(block.h) + plan.grid.axes[axis].padded.values;
    for (RowGroup group; next_row_group(block, axis, group);) {
      unshear_row_group(axis, group, work.axis_p);
      gemm_add<kTransposed>(group.num_table_rows, dim, group.num_rows, work.row_group,
                            plan.grid.row_group_stride, work.d_output + group.first_row * dim, dim,
                            table + group.first_table_row * dim, dim);
    }
  }
};

}  // namespace
}  // namespace relpos
