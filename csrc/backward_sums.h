// Backward of one block of rows, but for its products: p is computed again, tile by tile, from each
// row's saved row_max and row_sum, as in FlashAttention.
//
// With dO = d_output / keep_probability (Plan::d_output_factor), and delta_i = d_output_i . o_i -
// d_lse_i:
//
//     dp_ij = kept_ij * dO_i . (v_j + V[j-i])        ds = p * (dp - delta)
//
//     work.s, work.ds     (rows, kTileStride): scores then p; dp then ds
//     delta, d_lse, ...   (rows)
//
// kept_ij is 0 where dropout drops, else 1.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "grid_plan.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "output_row.h"
#include "params.h"
#include "score_gradients.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// What a block reads and sums, but for products.
struct BackwardSums : ScoreGradients {
  float delta[kBlockRows], d_lse[kBlockRows];
  // Left and right of the value window: dO . V, and sums of p.
  float dp_left[kBlockRows], dp_right[kBlockRows];
  float p_left[kBlockRows], p_right[kBlockRows];

  using ScoreGradients::ScoreGradients;

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
    read_rows(params.d_output, params.dtype, block.b, block.h, block.first_row, block.num_rows,
              params.value_dim, dim, plan.d_output_factor, work.d_output);
    pack_rows(work.d_output, dim, block.num_rows, params.value_dim, work.d_output_panels);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t i = block.first_row + r;
      const TensorView& from = params.d_lse;
      d_lse[r] =
          from.present() ? ((const float*)from.data)[from.row_start(block.b, block.h, i)] : 0;
      const double sum = dot_with_output(block, i, work.d_output + r * dim) / plan.d_output_factor;
      delta[r] = (float)(sum - d_lse[r]);
    }
  }

  // Row i of a head's output . x (value_dim)
  double dot_with_output(const RowBlock& block, int64_t i, const float* x) const {
    const int64_t dim = params.value_dim;
    read_output_row(params, block.b, block.h, i, work.row_scratch);
    return kTiles ? dot(work.row_scratch, x, dim) : dot_in_double(work.row_scratch, x, dim);
  }

  // dO . V for a grid's axes, by coordinate.
  void begin_axis_values(const RowBlock& block) {
    const int64_t count = block.num_rows * params.grid.sum_size_k;
    fill(work.axis_p, count, 0);
    fill(work.axis_dp, count, 0);
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_values)
        multiply_axis_table(axis_rows(block, axis), axis, kValues, work.d_output,
                            plan.padded_value_dim, work.axis_dp);
  }

  // dO . V of each row at one column: to (rows).
  void dp_column(const RowBlock& block, int64_t column, float* to) {
    const int64_t dim = plan.padded_value_dim;
    read_table_row(params.tables[kValues], params.dtype, plan.value_window, block.h, column, dim,
                   work.row_scratch);
    fill(to, block.num_rows, 0);
    add_dots(block.num_rows, dim, work.d_output, work.row_scratch, to);
  }

  // ---- the softmax ----------------------------------------------------------------------------

  // Whether a tile has all keys that row r sees.
  bool is_single_tile(const RowBlock& block, const KeyTile& tile, int64_t r) const {
    return !params.has_other_keys && block.key_begin[r] >= tile.begin &&
           block.key_end[r] <= tile.begin + tile.num_keys;
  }

  // Row r's scores and dp become p (0 where dropout drops) and ds, both 0 for the keys that it does
  // not see, in the whole vectors of the tile.
  void softmax_backward(const RowBlock& block, const KeyTile& tile, int64_t r, float row_shift,
                        float tile_factor, Region value_region) {
    float* x = rows_of(work.s, tile) + r * kTileStride;
    float* d = rows_of(work.ds, tile) + r * kTileStride;
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
    const bool single_tile = is_single_tile(block, tile, r);
    if (!plan.drop_threshold && !single_tile) {
      const vfloat row_delta = broadcast(delta[r] - dp_constant);
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = exponential(times(load(x + n), tile_factor) - base) * inverse_sum;
        store(x + n, p);
        store(d + n, p * (load(d + n) - row_delta));
      }
    } else {
      float kept[kTileKeys];
      fill(kept + from, to - from, plan.weight_factor);
      if (plan.drop_threshold) drop(block, tile, r, from, to, kept);
      vfloat p_dp_sum = {}, p_sum = {};
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = exponential(times(load(x + n), tile_factor) - base) * inverse_sum;
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
      // With all keys in one tile, sum_j p dp comes from these very p: no rounding in between. In
      // double, as the p sum up to 1, where numbers of float32 lie closer below than above: the sum
      // would be too small on average, and the gradient of a bias adds up all rows. So does it what
      // rounding takes off delta, which is subtracted as well.
      float own_delta = delta[r], rest = 0;
      if (single_tile) {
        const double exact =
            horizontal_sum_in_double(p_dp_sum) / horizontal_sum_in_double(p_sum);
        own_delta = (float)exact;
        rest = (float)(d_lse[r] - (exact - own_delta));  // else d_lse is in delta
      }
      const vfloat row_delta = broadcast(own_delta), row_rest = broadcast(rest);
      for (int64_t n = from; n < to; n += kLanes) {
        const vfloat p = load(x + n);
        store(d + n, p * (load(d + n) - row_delta + row_rest));
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

  // axis_p to an axis's table of values.
  void finish_axis_values(const RowBlock& block, int axis) {
    const AxisTokens rows = axis_rows(block, axis);
    for (RowGroup group; rows.next_group(group);) {
      unshear_row_group(rows, group, work.axis_p);
      add_group_gradients(group, plan.grid.axes[axis], kValues, work.d_output,
                          plan.padded_value_dim, nullptr, axis_table_sums(block.h));
    }
  }
};

}  // namespace
}  // namespace relpos
