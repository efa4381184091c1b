// The products of forward of one block of rows, on vectors.
//
//     work.s            (rows, kTileStride): scores, then p = exp(s - row_max)
//     work.output_acc   (rows, padded_value_dim): sum of p * v so far (forward_sums.h)
//     work.offset_p     (rows, kBufferStride): sums of p by column of the value window
#pragma once

#include <stdint.h>

#include "config.h"
#include "forward_sums.h"
#include "gemm.h"
#include "integers.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

#if !RELPOS_TILES

// On vectors.
struct Forward : ForwardSums {
  using ForwardSums::ForwardSums;

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_sums(block);
    float row_shift[kBlockRows];
    for (KeyTile tile = {}; next_tile(block, tile);) {
      tile_scores(block, tile, row_shift);
      for (int64_t r = 0; r < num_rows; ++r) online_softmax(block, tile, r, row_shift[r]);
      accumulate_output(block, tile);
    }
    if (plan.value_window.present) add_table_values(block);
    if (plan.grid.has_values) add_axis_values(block);
    write(block);
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

  // output_acc += p v; p is summed for the tables of values.
  void accumulate_output(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_value_dim;
    int64_t stride;
    const float* values = tile_values(block, tile, &stride);
    gemm_add<kRowMajor>(block.num_rows, dim, tile.to, work.s, kTileStride, values, stride,
                        work.output_acc, dim, &seen_keys);
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
};

#endif

}  // namespace
}  // namespace relpos
