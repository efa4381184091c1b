// Forward of one block of rows, but for its products: what an online softmax over tiles of keys
// sums, as in FlashAttention.
//
//     work.s            (rows, kTileStride): scores, then p = exp(s - row_max)
//     work.output_acc   (rows, padded_value_dim): sum of p * v so far
//     row_max, row_sum  (rows): the score to which p is relative (on vectors the largest so far; on
//                       a matrix unit see tile_forward.h), and the sum of p so far
//
// For the tables of values p is summed before it is multiplied: by offset on their window, one
// number for each row left and right of it, by coordinate on a grid.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "integers.h"
#include "offset_window.h"
#include "output_row.h"
#include "params.h"
#include "scores.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// What a block sums over its tiles, but for products.
struct ForwardSums : Scores {
  float row_max[kBlockRows], row_sum[kBlockRows];
  float p_left[kBlockRows], p_right[kBlockRows];  // sums of p left and right of the value window

  using Scores::Scores;

  void begin_sums(const RowBlock& block) {
    fill(row_max, block.num_rows, -kInfinity);
    fill(row_sum, block.num_rows, 0);
    fill(p_left, block.num_rows, 0);
    fill(p_right, block.num_rows, 0);
    fill(work.output_acc, block.num_rows * plan.padded_value_dim, 0);
    work.offset_p.reset();
    if (plan.grid.has_values) fill(work.axis_p, block.num_rows * params.grid.sum_size_k, 0);
  }

  // All that row r has summed, times factor.
  void rescale(int64_t r, float factor) {
    row_sum[r] *= factor, p_left[r] *= factor, p_right[r] *= factor;
    float* out = work.output_acc + r * plan.padded_value_dim;
    for (int64_t n = 0; n < plan.padded_value_dim; ++n) out[n] *= factor;
    if (plan.value_window.present && !kTiles) {
      float* by_offset = work.offset_p.data + r * kBufferStride;
      const int64_t columns = work.offset_p.end - work.offset_p.origin;
      for (int64_t n = 0; n < columns; ++n) by_offset[n] *= factor;
    }
    if (plan.grid.has_values) {
      float* by_coord = work.axis_p + r * params.grid.sum_size_k;
      for (int64_t n = 0; n < params.grid.sum_size_k; ++n) by_coord[n] *= factor;
    }
  }

  // Those of a grid's axes.
  void add_axis_values(const RowBlock& block) {
    const int64_t dim = plan.padded_value_dim;
    for (int axis = 0; axis < params.grid.num_axes; ++axis) {
      if (!params.grid.axes[axis].has_values) continue;
      const float* values = axis_tables().padded + plan.grid.axes[axis].padded[kValues];
      const AxisTokens rows = axis_rows(block, axis);
      for (RowGroup group; rows.next_group(group);) {
        unshear_row_group(rows, group, work.axis_p);
        gemm_add<kRowMajor>(group.num_rows, dim, group.num_table_rows, work.row_group,
                            plan.grid.row_group_stride, values + group.first_table_row * dim, dim,
                            work.output_acc + group.first_row * dim, group.step * dim);
      }
    }
  }

  // ---- results --------------------------------------------------------------------------------

  void write(const RowBlock& block) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t i = block.first_row + r, row = params.row_index(block.b, block.h, i);
      float* out = work.output_acc + r * plan.padded_value_dim;
      const float factor = row_sum[r] == 0 ? 0 : 1 / (row_sum[r] * plan.keep_probability);
      for (int64_t n = 0; n < plan.padded_value_dim; ++n) out[n] *= factor;
      write_output_row(params, block.b, block.h, i, out);
      params.row_max[row] = row_sum[r] == 0 ? -kInfinity : row_max[r];
      params.row_sum[row] = row_sum[r];
      params.lse[row] = row_sum[r] == 0 ? -kInfinity : row_max[r] + __builtin_logf(row_sum[r]);
    }
  }
};

}  // namespace
}  // namespace relpos
