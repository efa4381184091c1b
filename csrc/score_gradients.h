// Where ds flows: to q, k and q_rel, to the tables that made the scores, to the mask and to the
// inputs of a grid. Each step is the adjoint of a term of scores.h.
//
//     work.ds      (rows, kTileStride): gradient of the scores of a tile
//     offset_ds    (rows, kBufferStride): its sums by column of the score window
//     sums.*       gradients to which many blocks add; null where not wanted
//
// W = kLanes floats in a vector, NR = kNR columns in a panel. Columns are those of a table's
// window, coordinates those of all axes side by side.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "grid_plan.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "scores.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// Gradients to which several blocks add. "(heads, ...)": one for each head from first_head on, or
// one that all share.
struct GradientSums {
  float* k = nullptr;                 // (seqlen_k, padded_head_dim), of one key/value head
  float* v = nullptr;                 // (seqlen_k, padded_value_dim), of one key/value head
  float* tables[kTableKinds] = {};    // (heads, num_panels * NR, padded_row_dim)
  float* axis_tables = nullptr;       // (heads, GridPlan::padded_size)
  float* joint_bias = nullptr;        // (heads, joint_bias_size)
  int64_t first_head = 0;
};

struct ScoreGradients : Scores {
  GradientSums sums;
  float ds_left[kBlockRows], ds_right[kBlockRows];  // sums of ds left and right of the score window

  using Scores::Scores;

  // The sums of a head's table, (columns, padded_row_dim); null if they are not wanted.
  float* table_sums(int kind, int64_t h) const {
    const int64_t head = params.tables[kind].head_index(h - sums.first_head);
    const int64_t columns = plan.window(kind).num_panels() * kNR;
    return sums.tables[kind] ? sums.tables[kind] + head * columns * plan.padded_row_dim(kind)
                             : nullptr;
  }

  bool wants_dq_rel() const {
    return params.has_q_rel() ? params.gradients.q_rel : params.gradients.q;
  }
  // Whether anything asks for ds by offset.
  bool wants_offset_ds() const {
    return sums.tables[kBias] || sums.tables[kKeys] ||
           (params.tables[kKeys].present() && wants_dq_rel());
  }

  void begin_score_gradients(const RowBlock& block) {
    fill(work.dq, block.num_rows * plan.padded_head_dim, 0);
    if (params.has_q_rel()) fill(work.dq_rel, block.num_rows * plan.padded_rel_dim, 0);
    fill(ds_left, block.num_rows, 0);
    fill(ds_right, block.num_rows, 0);
    if (plan.grid.has_axis_scores)
      fill(work.axis_ds, block.num_rows * params.grid.sum_size_k, 0);
    work.offset_ds.reset();
  }

  // Of one tile: work.ds goes on to all that made its scores.
  void accumulate_score_gradients(const RowBlock& block, const KeyTile& tile) {
    const int64_t dim = plan.padded_head_dim;
    if (params.gradients.mask) accumulate_mask(block, tile);
    if (params.softcap) multiply_cap_slope(block, tile);
    const float* ds = work.ds;
    if (sums.k)
      gemm_add<kTransposed>(tile.to - tile.from, dim, block.num_rows, ds + tile.from, kTileStride,
                            work.q, dim, sums.k + tile.key(tile.from) * dim, dim);
    if (params.gradients.q) {
      int64_t stride;
      const float* keys = tile_keys(block, tile, &stride);
      gemm_add<kRowMajor>(block.num_rows, dim, tile.to - tile.from, ds + tile.from, kTileStride,
                          keys + tile.from * stride, stride, work.dq, dim);
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
    if (params.gradients.q)
      write_dq(block, work.dq, plan.padded_head_dim, params.head_dim, params.gradients.q);
    if (params.gradients.q_rel)
      write_dq(block, work.dq_rel, plan.padded_rel_dim, params.rel_dim, params.gradients.q_rel);
  }

  // from (rows, padded_dim), dq or dq_rel, to the caller's gradient, rows of `dim`. They still need
  // the scale; the other gradients have it from work.q.
  void write_dq(const RowBlock& block, float* from, int64_t padded_dim, int64_t dim, void* to) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* row = from + r * padded_dim;
      for (int64_t n = 0; n < padded_dim; ++n) row[n] *= params.scale;
      convert_from_float(row, dim, to, params.dtype,
                         params.row_index(block.b, block.h, block.first_row + r) * dim);
    }
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
      add_column_sums(block.num_rows, count, ds, stride, to + first_column);
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

  // ---- the cap --------------------------------------------------------------------------------

  // ds of the capped scores becomes that of the scores; where it is 0, of hidden pairs, the slope
  // may be anything.
  void multiply_cap_slope(const RowBlock& block, const KeyTile& tile) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* ds = work.ds + r * kTileStride;
      const float* slope = work.cap_slope + r * kTileStride;
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        const vfloat x = load(ds + n);
        store(ds + n, select(x == 0, vfloat{}, x * load(slope + n)));
      }
    }
  }

  // ---- the mask -------------------------------------------------------------------------------

  void accumulate_mask(const RowBlock& block, const KeyTile& tile) {
    const int64_t* strides = params.gradients.mask_strides;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* to = params.gradients.mask + block.b * strides[0] + block.h * strides[1] +
                  (block.first_row + r) * strides[2] + tile.begin * strides[3];
      const float* ds = work.ds + r * kTileStride;
      for (int64_t n = tile.from; n < tile.to; ++n) to[n * strides[3]] += ds[n];
    }
  }

  // ---- a grid ---------------------------------------------------------------------------------

  void accumulate_grid(const RowBlock& block, const KeyTile& tile) {
    const Grid& grid = params.grid;
    for (int64_t r = first_grid_row; r < block.num_rows; ++r) {
      const float* ds = work.ds + r * kTileStride;
      if (plan.grid.has_axis_scores) accumulate_by_coord(ds, work.axis_ds + r * grid.sum_size_k);
      if (params.gradients.query_axis_logits) accumulate_query_axis_logits(block, tile, r, ds);
      if (!sums.joint_bias) continue;
      float* joint_bias = sums.joint_bias +
                          grid.joint_bias_head(block.h - sums.first_head) * grid.joint_bias_size;
      for (int64_t n = 0; n < num_key_runs; ++n)
        add_to(key_runs[n].num_keys, ds + key_runs[n].first,
               joint_bias + key_runs[n].joint_bias_index - row_joint_bias_index[r]);
    }
  }

  // Row r, whose ds (tile) goes to the caller's gradient (B, H, sum_size_q, seqlen_k). No other
  // thread adds to those of this head: see BackwardTasks::divide.
  void accumulate_query_axis_logits(const RowBlock& block, const KeyTile& tile, int64_t r,
                                    const float* ds) const {
    const int64_t batch_head = block.b * params.heads + block.h;
    for (int axis = 0; axis < params.grid.num_axes; ++axis) {
      float* to = params.gradients.query_axis_logits +
                  (batch_head * params.grid.sum_size_q + query_axis_row(r, axis)) *
                      params.seqlen_k +
                  tile.begin;
      add_to(tile.to - tile.from, ds + tile.from, to + tile.from);
    }
  }

  // The sums of the axes' tables of a head, in padded form; null if they are not wanted.
  float* axis_table_sums(int64_t h) const {
    return sums.axis_tables ? sums.axis_tables + params.grid.axis_table_head(h - sums.first_head) *
                                                     plan.grid.padded_size
                            : nullptr;
  }

  // axis_ds to q or q_rel, and to an axis's tables of keys and bias.
  void finish_axis_scores(const RowBlock& block, int axis_number) {
    const Axis& axis = params.grid.axes[axis_number];
    const AxisPlan& axis_plan = plan.grid.axes[axis_number];
    const int64_t dim = axis_plan.padded_key_dim, group_stride = plan.grid.row_group_stride;
    float* const table = axis_table_sums(block.h);
    const bool has_keys = axis.key_dim > 0;
    const bool wants_dq = axis.has_q_rel ? params.gradients.q_rel : params.gradients.q;
    if (!((has_keys && (wants_dq || table)) || (axis.has_bias && table))) return;
    const float* const q = axis_q(axis_number);
    float* const dq = axis.has_q_rel ? work.dq_rel + axis_plan.first_q_rel : work.dq;
    const int64_t q_stride = axis_q_stride(axis_number);  // of dq too
    for (RowGroup group; next_row_group(block, axis_number, group);) {
      unshear_row_group(axis_number, group, work.axis_ds);
      const int64_t first_key = axis_plan.padded.keys + group.first_table_row * dim;
      if (has_keys && wants_dq)
        gemm_add<kRowMajor>(group.num_rows, dim, group.num_table_rows, work.row_group,
                            group_stride, axis_tables().padded + first_key, dim,
                            dq + group.first_row * q_stride, q_stride);
      if (has_keys && table)
        gemm_add<kTransposed>(group.num_table_rows, dim, group.num_rows, work.row_group,
                              group_stride, q + group.first_row * q_stride, q_stride,
                              table + first_key, dim);
      if (axis.has_bias && table)
        add_column_sums(group.num_rows, group.num_table_rows, work.row_group, group_stride,
                        table + axis_plan.padded.bias + group.first_table_row);
    }
  }
};

}  // namespace
}  // namespace relpos
