// Forward of one block of rows: an online softmax over its tiles of keys, as in FlashAttention.
//
//     work.s            (rows, kTileStride): scores, then p = exp(s - row_max)
//     work.output_acc   (rows, padded_value_dim): sum of p * v so far
//     row_max, row_sum  (rows): the largest score, and the sum of p, so far
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
#include "params.h"
#include "scores.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

struct Forward : Scores {
  float row_max[kBlockRows], row_sum[kBlockRows];
  float p_left[kBlockRows], p_right[kBlockRows];  // sums of p left and right of the value window

  using Scores::Scores;

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_sums(block);
    float row_shift[kBlockRows];
    for (KeyTile tile = {0, 0, 0, 0}; next_tile(block, tile);) {
      tile_scores(block, tile, row_shift);
      for (int64_t r = 0; r < num_rows; ++r) online_softmax(block, tile, r, row_shift[r]);
      accumulate_output(block, tile);
    }
    if (plan.value_window.present) add_table_values(block);
    if (plan.grid.has_values) add_axis_values(block);
    write(block);
  }

  void begin_sums(const RowBlock& block) {
    fill(row_max, block.num_rows, -kInfinity);
    fill(row_sum, block.num_rows, 0);
    fill(p_left, block.num_rows, 0);
    fill(p_right, block.num_rows, 0);
    fill(work.output_acc, block.num_rows * plan.padded_value_dim, 0);
    work.offset_p.reset();
    if (plan.grid.has_values) fill(work.axis_p, block.num_rows * params.grid.sum_size_k, 0);
  }

  // Row r's scores become p, relative to the largest score so far; what was summed before is
  // rescaled when that grows. p is 0 for the keys that it does not see, in whole vectors too.
  void online_softmax(const RowBlock& block, const KeyTile& tile, int64_t r, float row_shift) {
    float* x = work.s + r * kTileStride;
    if (tile.row_from(block, r) >= tile.row_to(block, r)) {
      fill(x + tile.vector_from(), tile.vector_to() - tile.vector_from(), 0);
      return;
    }
    const int64_t from = round_down(tile.row_from(block, r), kLanes);
    const int64_t to = round_up(tile.row_to(block, r), kLanes);
    vfloat lane_max = broadcast(-kInfinity);
    for (int64_t n = from; n < to; n += kLanes) lane_max = maximum(load(x + n), lane_max);
    float tile_max = horizontal_max(lane_max) + row_shift;
    if (!(tile_max > -kInfinity)) {
      // The row has no key here, unless there are NaN, which the maximum does not show.
      if (!any_nan(x + from, to - from)) {
        fill(x + tile.vector_from(), tile.vector_to() - tile.vector_from(), 0);
        return;
      }
      tile_max = __builtin_nanf("");
    }
    if (!(tile_max <= row_max[r])) {
      if (row_max[r] != -kInfinity) rescale(r, exponential(row_max[r] - tile_max));
      row_max[r] = tile_max;
    }
    const vfloat base = broadcast(row_max[r] - row_shift);
    vfloat sum = {};
    for (int64_t n = from; n < to; n += kLanes) {
      const vfloat p = exponential(load(x + n) - base);
      sum += p;
      store(x + n, p);
    }
    row_sum[r] += horizontal_sum(sum);
    fill(x + tile.vector_from(), from - tile.vector_from(), 0);
    fill(x + to, tile.vector_to() - to, 0);
    if (plan.drop_threshold) drop(block, tile, r, from, to, x);
  }

  // All that row r has summed, times factor.
  void rescale(int64_t r, float factor) {
    row_sum[r] *= factor, p_left[r] *= factor, p_right[r] *= factor;
    float* out = work.output_acc + r * plan.padded_value_dim;
    for (int64_t n = 0; n < plan.padded_value_dim; ++n) out[n] *= factor;
    if (plan.value_window.present) {
      float* by_offset = work.offset_p.data + r * kBufferStride;
      const int64_t columns = work.offset_p.end - work.offset_p.origin;
      for (int64_t n = 0; n < columns; ++n) by_offset[n] *= factor;
    }
    if (plan.grid.has_values) {
      float* by_coord = work.axis_p + r * params.grid.sum_size_k;
      for (int64_t n = 0; n < params.grid.sum_size_k; ++n) by_coord[n] *= factor;
    }
  }

  // output_acc += p v; p is summed for the tables of values.
  void accumulate_output(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_value_dim;
    int64_t stride;
    const float* values = tile_values(block, tile, &stride);
    gemm_add<kRowMajor>(block.num_rows, dim, tile.to - tile.from, work.s + tile.from, kTileStride,
                        values + tile.from * stride, stride, work.output_acc, dim);
    if (plan.value_window.present) accumulate_offset_p(block, tile);
    if (plan.grid.has_values)
      for (int64_t r = first_grid_row; r < block.num_rows; ++r)
        accumulate_by_coord(work.s + r * kTileStride, work.axis_p + r * params.grid.sum_size_k);
  }

  // ---- the table of values --------------------------------------------------------------------

  void accumulate_offset_p(const RowBlock& block, const KeyTile& tile) {
    accumulate_by_offset(block, tile, plan.value_window, work.s, work.offset_p, p_left, p_right,
                         [&](int64_t from, int64_t to) { flush_offset_p(block, from, to); });
  }

  // output_acc += p by offset times the rows of the table that the columns from..to-1 select.
  void flush_offset_p(const RowBlock& block, int64_t from, int64_t to) {
    const int64_t dim = plan.padded_value_dim;
    const float* rows = window_table(kValues, block.h).rows;
    gemm_add<kRowMajor>(block.num_rows, dim, to - from, work.offset_p.row(0) + from, kBufferStride,
                        rows + from * dim, dim, work.output_acc, dim);
  }

  // The columns that are still in the buffer, and the rows left and right of the window.
  void add_table_values(const RowBlock& block) {
    flush_offset_p(block, work.offset_p.origin, work.offset_p.end);
    const int64_t dim = plan.padded_value_dim;
    const float* rows = window_table(kValues, block.h).rows;
    const float* left = rows + plan.value_window.low_column() * dim;
    const float* right = rows + plan.value_window.high_column() * dim;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* out = work.output_acc + r * dim;
      if (p_left[r] != 0) add_scaled(dim, p_left[r], left, out);
      if (p_right[r] != 0) add_scaled(dim, p_right[r], right, out);
    }
  }

  // Those of a grid's axes.
  void add_axis_values(const RowBlock& block) {
    const int64_t dim = plan.padded_value_dim;
    for (int axis = 0; axis < params.grid.num_axes; ++axis) {
      if (!params.grid.axes[axis].has_values) continue;
      const float* rows = axis_tables().padded + plan.grid.axes[axis].padded.values;
      for (RowGroup group; next_row_group(block, axis, group);) {
        unshear_row_group(axis, group, work.axis_p);
        gemm_add<kRowMajor>(group.num_rows, dim, group.num_table_rows, work.row_group,
                            plan.grid.row_group_stride, rows + group.first_table_row * dim, dim,
                            work.output_acc + group.first_row * dim, dim);
      }
    }
  }

  // ---- results --------------------------------------------------------------------------------

  void write(const RowBlock& block) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t row = params.row_index(block.b, block.h, block.first_row + r);
      float* out = work.output_acc + r * plan.padded_value_dim;
      const float factor = row_sum[r] == 0 ? 0 : 1 / (row_sum[r] * plan.keep_probability);
      for (int64_t n = 0; n < plan.padded_value_dim; ++n) out[n] *= factor;
      convert_from_float(out, params.value_dim, params.output, Dtype::f32,
                         row * params.value_dim);
      params.row_max[row] = row_sum[r] == 0 ? -kInfinity : row_max[r];
      params.row_sum[row] = row_sum[r];
      params.lse[row] = row_sum[r] == 0 ? -kInfinity : row_max[r] + __builtin_logf(row_sum[r]);
    }
  }
};

}  // namespace
}  // namespace relpos
