// The products of backward of one block of rows, on vectors.
//
//     work.s, work.ds     (rows, kTileStride): scores then p; dp then ds (backward_sums.h)
//     work.offset_dp      (rows, kBufferStride): dO . V by column of the value window
//     work.offset_p       (rows, kBufferStride): sums of p by column
//     work.offset_ds      (rows, kBufferStride): sums of ds by column of the score window
//
// W = kLanes floats in a vector; NR = kNR columns in a panel.
#pragma once

#include <stdint.h>

#include "backward_sums.h"
#include "config.h"
#include "gemm.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

#if !RELPOS_TILES

struct Backward : BackwardSums {
  using BackwardSums::BackwardSums;

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_score_gradients(block);
    begin_value_gradients(block);
    float row_shift[kBlockRows];
    for (KeyTile tile = {}; next_tile(block, tile);) {
      tile_scores(block, tile, row_shift);
      const Region value_region = multiply_values(block, tile);
      for (int64_t r = 0; r < num_rows; ++r)
        softmax_backward(block, tile, r, row_shift[r], 1, value_region);
      accumulate_value_gradients(block, tile);
      accumulate_score_gradients(block, tile);
    }
    finish_value_gradients(block);
    finish_score_gradients(block);
  }

  // ---- dp -------------------------------------------------------------------------------------

  // dO . (v_j + V[j-i]) in work.ds, but for V's constants left and right of its window, which are
  // added later (dp_left, dp_right); returns which of them, or kBand for none.
  Region multiply_values(const RowBlock& block, const KeyTile& tile) {
    gemm_packed(block.num_rows, tile.to, params.value_dim, work.d_output_panels,
                work.value_panels + tile.begin * params.value_dim, work.ds, kTileStride, &seen_keys);
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

  // ---- q, k and the tables of scores ----------------------------------------------------------

  // Of one tile: work.ds goes on to all that made its scores.
  void accumulate_score_gradients(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_head_dim;
    if (sums.mask) accumulate_mask(block, tile);
    if (params.softcap) multiply_cap_slope(tile);
    const float* ds = work.ds;
    if (sums.k)
      gemm_add<kTransposed>(tile.to - tile.from, dim, block.num_rows, ds + tile.from, kTileStride,
                            work.q, dim, sums.k + tile.key(tile.from) * dim, dim);
    if (params.gradients.q.present()) {
      int64_t stride;
      const float* keys = tile_keys(block, tile, &stride);
      gemm_add<kRowMajor>(block.num_rows, dim, tile.to, ds, kTileStride, keys, stride, work.dq,
                          dim, &seen_keys);
    }
    if (wants_offset_ds()) accumulate_offset_ds(block, tile);
    if (plan.query_window.present) accumulate_queries_term(block, tile);
    if (params.grid.num_axes) accumulate_grid(block, tile);
  }

  // Of the whole block, after its last tile.
  void finish_score_gradients(const RowBlock& block) {
    if (wants_offset_ds()) {
      const OffsetBuffer& buffer = work.offset_ds;
      flush_offset_ds(block, buffer.origin, buffer.end);
      add_columns_of_ds(block, ds_left, 1, plan.score_window.low_column(), 1);
      add_columns_of_ds(block, ds_right, 1, plan.score_window.high_column(), 1);
    }
    for (int axis = 0; axis < params.grid.num_axes; ++axis) finish_axis_scores(block, axis);
    if (params.gradients.q.present())
      write_dq(block, work.dq, plan.padded_head_dim, params.head_dim, params.gradients.q);
    if (params.gradients.q_rel.present())
      write_dq(block, work.dq_rel, plan.padded_rel_dim, params.rel_dim, params.gradients.q_rel);
  }

  // ---- the tables of keys and bias ------------------------------------------------------------

  void accumulate_offset_ds(const RowBlock& block, const KeyTile& tile) {
    accumulate_by_offset(block, tile, plan.score_window, work.ds, work.offset_ds, ds_left, ds_right,
                         [&](int64_t from, int64_t to) { flush_offset_ds(block, from, to); });
  }

  void flush_offset_ds(const RowBlock& block, int64_t from, int64_t to) {
    if (from >= to) return;
    add_columns_of_ds(block, work.offset_ds.row(0) + from, kBufferStride, from, to - from);
  }

  // ds by offset (rows, count), rows `stride` apart, of the columns from first_column on: to q_rel
  // and to the tables.
  void add_columns_of_ds(const RowBlock& block, const float* ds, int64_t stride,
                         int64_t first_column, int64_t count) {
    const int64_t dim = plan.padded_rel_dim;
    if (params.tables[kKeys].present() && wants_dq_rel())
      gemm_add<kRowMajor>(block.num_rows, dim, count, ds, stride,
                          window_table(kKeys, block.h).rows + first_column * dim, dim,
                          work.dq_rel, dim);
    if (float* to = table_sums(kKeys, block.h))
      gemm_add<kTransposed>(count, dim, block.num_rows, ds, stride, work.q_rel, dim,
                            to + first_column * dim, dim);
    if (float* to = table_sums(kBias, block.h))
      add_column_sums(block.num_rows, count, ds, stride, to + first_column,
                      to + plan.table_columns(kBias) + first_column);
  }

  // ---- the table of queries -------------------------------------------------------------------

  void accumulate_queries_term(const RowBlock& block, const KeyTile& tile) {
    if (!sums.k && !sums.tables[kQueries]) return;
    int64_t keys_stride;
    const float* keys = tile_keys(block, tile, &keys_stride);
    Region region;
    for (int64_t at = tile.from; at < tile.to;) {
      const KeyTile chunk = next_chunk(block, tile, at, region);
      if (region != kBand)
        accumulate_queries_term_beyond(block, chunk, region, keys, keys_stride);
      else
        accumulate_queries_term_on_band(block, chunk, keys, keys_stride);
      at = chunk.to;
    }
  }

  void accumulate_queries_term_beyond(const RowBlock& block, const KeyTile& chunk, Region region,
                                      const float* keys, int64_t keys_stride) {
    const OffsetWindow& window = plan.query_window;
    const int64_t dim = plan.padded_head_dim, count = chunk.to - chunk.from;
    const int64_t column = region == kLeft ? window.low_column() : window.high_column();
    float* const by_key = work.key_scratch;
    fill(by_key, count, 0);
    add_column_sums(block.num_rows, count, work.ds + chunk.from, kTileStride, by_key);
    for (int64_t n = 0; n < count; ++n) by_key[n] *= params.scale;
    if (sums.k) {
      const float* row = window_table(kQueries, block.h).rows + column * dim;
      for (int64_t n = 0; n < count; ++n)
        add_scaled(dim, by_key[n], row, sums.k + chunk.key(chunk.from + n) * dim);
    }
    if (float* to = table_sums(kQueries, block.h))
      gemm_add<kRowMajor>(1, dim, count, by_key, 0, keys + chunk.from * keys_stride, keys_stride,
                          to + column * dim, dim);
  }

  void accumulate_queries_term_on_band(const RowBlock& block, const KeyTile& chunk,
                                       const float* keys, int64_t keys_stride) {
    const int64_t dim = plan.padded_head_dim, count = chunk.to - chunk.from;
    const int64_t first_column = first_chunk_column(block, chunk);
    const int64_t columns = end_chunk_column(block, chunk) - first_column;
    for (int64_t n = 0; n < count; ++n) fill(work.chunk_ds + n * kBufferStride, columns, 0);
    accumulate_sheared_by_key(params.scale, work.chunk_ds, first_column, plan.query_window,
                              chunk.key(chunk.from), count, block.position, block.num_rows,
                              work.ds + chunk.from, kTileStride);
    if (sums.k)
      gemm_add<kRowMajor>(count, dim, columns, work.chunk_ds, kBufferStride,
                          window_table(kQueries, block.h).rows + first_column * dim, dim,
                          sums.k + chunk.key(chunk.from) * dim, dim);
    if (float* to = table_sums(kQueries, block.h))
      gemm_add<kTransposed>(columns, dim, count, work.chunk_ds, kBufferStride,
                            keys + chunk.from * keys_stride, keys_stride, to + first_column * dim,
                            dim);
  }
};

#endif

}  // namespace
}  // namespace relpos
