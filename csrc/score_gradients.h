// Where ds flows: to q, k and q_rel, to the tables that made the scores, to the mask and to the
// inputs of a grid. Each step is the adjoint of a term of scores.h. The products are in backward.h,
// and in tile_backward.h.
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
#include "grid_terms.h"
#include "integers.h"
#include "joint_bias.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "scores.h"
#include "simd.h"
#include "tile.h"
#include "tile_products.h"

namespace relpos {
namespace {

// Gradients to which several blocks add. "(heads, ...)": one for each head from first_head on, or
// one that all share.
struct GradientSums {
  float* k = nullptr;                 // (seqlen_k, padded_head_dim), of one key/value head
  float* v = nullptr;                 // (seqlen_k, padded_value_dim), of one key/value head
  float* tables[kTableKinds] = {};    // (heads, Plan::table_sums_size)
  float* axis_tables = nullptr;       // (heads, GridPlan::padded_size)
  float* joint_bias = nullptr;        // (heads, joint_bias_size)
  float* mask = nullptr;              // of the mask's own sizes, as Gradients::mask
  int64_t first_head = 0;
};

struct ScoreGradients : Scores {
  GradientSums sums;
  int64_t pairs_head = -1;  // the head of the joint bias whose ds work.ds_by_pair sums; -1: none
  float ds_left[kBlockRows], ds_right[kBlockRows];  // sums of ds left and right of the score window

  using Scores::Scores;

  // The sums of a head's table (Plan::table_sums_size); null if they are not wanted.
  float* table_sums(int kind, int64_t h) const {
    const int64_t head = params.tables[kind].head_index(h - sums.first_head);
    return sums.tables[kind] ? sums.tables[kind] + head * plan.table_sums_size(kind) : nullptr;
  }

  bool wants_dq_rel() const {
    return (params.has_q_rel() ? params.gradients.q_rel : params.gradients.q).present();
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
    begin_pairs(block.h);
    work.offset_ds.reset();
  }

  // from (rows, padded_dim), dq or dq_rel, to the caller's gradient, rows of `dim`. They still need
  // the scale; the other gradients have it from work.q.
  void write_dq(const RowBlock& block, float* from, int64_t padded_dim, int64_t dim,
                const ResultView& to) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* row = from + r * padded_dim;
      for (int64_t n = 0; n < padded_dim; ++n) row[n] *= params.scale;
      convert_from_float(row, dim, to.data, params.dtype,
                         to.row_start(block.b, block.h, block.first_row + r));
    }
  }

  // ---- the cap --------------------------------------------------------------------------------

  // ds of the capped scores becomes that of the scores; where it is 0, of hidden pairs, the slope
  // may be anything.
  void multiply_cap_slope(const KeyTile& tile) {
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      float* ds = rows_of(work.ds, tile) + r * kTileStride;
      const float* slope = rows_of(work.cap_slope, tile) + r * kTileStride;
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        const vfloat x = load(ds + n);
        store(ds + n, select(x == 0, vfloat{}, x * load(slope + n)));
      }
    }
  }

  // ---- the mask -------------------------------------------------------------------------------

  void accumulate_mask(const RowBlock& block, const KeyTile& tile) {
    const int64_t* strides = params.gradients.mask_strides;
    const int64_t count = tile.to - tile.from;
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      float* to = sums.mask + block.b * strides[0] + block.h * strides[1] +
                  (block.first_row + r) * strides[2] + tile.key(tile.from) * strides[3];
      const float* ds = rows_of(work.ds, tile) + r * kTileStride + tile.from;
      if (strides[3] == 1)
        add_to(count, ds, to);
      else  // 0: all keys share a number
        for (int64_t n = 0; n < count; ++n) *to += ds[n];
    }
  }

  // ---- a grid ---------------------------------------------------------------------------------

  void accumulate_grid(const RowBlock& block, const KeyTile& tile) {
    const Grid& grid = params.grid;
    for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r) {
      const float* ds = rows_of(work.ds, tile) + r * kTileStride;
      if (plan.grid.has_axis_scores) accumulate_by_coord(ds, work.axis_ds + r * grid.sum_size_k);
      if (work.query_axis_ds) accumulate_query_axes(tile, r, ds);
      if (!sums.joint_bias) continue;
      if (work.ds_by_pair) {
        add_to(tile.to - tile.from, ds + tile.from,
               work.ds_by_pair + pair_index(block, tile, r, tile.from));
        continue;
      }
      float* joint_bias = joint_bias_sums(block.h);
      for (int64_t n = 0; n < num_key_runs; ++n)
        add_to(key_runs[n].num_keys, ds + key_runs[n].first,
               joint_bias + key_runs[n].joint_bias_index - row_joint_bias_index[r]);
    }
  }

  // The sums of the joint bias of a head.
  float* joint_bias_sums(int64_t h) const {
    return sums.joint_bias +
           params.grid.joint_bias_head(h - sums.first_head) * params.grid.joint_bias_size;
  }
  // Sum by pair for head h from now on.
  void begin_pairs(int64_t h) {
    if (!work.ds_by_pair || pairs_head == params.grid.joint_bias_head(h)) return;
    finish_pairs();
    pairs_head = params.grid.joint_bias_head(h);
    fill(work.ds_by_pair, plan.pairs_size(), 0);
  }
  // The sums by pair, if there are any, to those of the joint bias.
  void finish_pairs() {
    if (pairs_head >= 0)
      add_pairs_to_joint_bias(plan, work.ds_by_pair, joint_bias_sums(pairs_head));
    pairs_head = -1;
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
    float* const table = axis_table_sums(block.h);
    const bool has_keys = axis.key_dim > 0;
    const bool wants_dq =
        (axis.has_q_rel ? params.gradients.q_rel : params.gradients.q).present();
    if (!((has_keys && (wants_dq || table)) || (axis.has_bias && table))) return;
    float* const dq = axis.has_q_rel ? work.dq_rel + axis_plan.first_q_rel : work.dq;
    const AxisTokens rows = axis_rows(block, axis_number);
    for (RowGroup group; rows.next_group(group);) {
      unshear_row_group(rows, group, work.axis_ds);
      if (has_keys)
        add_group_gradients(group, axis_plan, kKeys, axis_q(axis_number),
                            axis_q_stride(axis_number), wants_dq ? dq : nullptr, table);
      if (axis.has_bias && table)
        add_column_sums(group.num_rows, group.num_table_rows, work.row_group,
                        plan.grid.row_group_stride,
                        table + axis_plan.padded[kBias] + group.first_table_row);
    }
  }

  // work.row_group to what a group's rows of a table were multiplied with, x, and to these: dx +=
  // row_group times the table's rows, and their sums += row_group transposed times x; either may be
  // null. x and dx have rows `stride` apart.
  void add_group_gradients(const RowGroup& group, const AxisPlan& axis, int kind, const float* x,
                           int64_t stride, float* dx, float* table_sums) const {
    const int64_t dim = axis.padded_row_dim[kind], group_stride = plan.grid.row_group_stride;
    const int64_t first = axis.padded[kind] + group.first_table_row * dim;
    if (dx)
      gemm_add<kRowMajor>(group.num_rows, dim, group.num_table_rows, work.row_group, group_stride,
                          axis_tables().padded + first, dim, dx + group.first_row * stride,
                          group.step * stride);
    if (table_sums)
      gemm_add<kTransposed>(group.num_table_rows, dim, group.num_rows, work.row_group,
                            group_stride, x + group.first_row * stride, group.step * stride,
                            table_sums + first, dim);
  }

  // ---- a grid's tables of queries -------------------------------------------------------------

  // Row r's ds (tile) to the sums of its coordinates.
  void accumulate_query_axes(const KeyTile& tile, int64_t r, const float* ds) const {
    each_query_coord(r, [&](int64_t coord) {
      add_to(tile.to - tile.from, ds + tile.from,
             query_axis_row(work.query_axis_ds, coord, tile.key(tile.from)));
    });
  }

  // After the last block of a head: these sums to k, and to the tables.
  void finish_head(int64_t b, int64_t h) {
    if (!work.query_axis_ds || !work.query_axis_keys.has_head(b, h)) return;
    for (int64_t key = work.query_axis_keys.from; key < work.query_axis_keys.to; key += kKeyChunk)
      finish_query_axes(b, h, key);
  }

  // Of the chunk of keys from `first_key` on. Leaves zeros in its sums.
  void finish_query_axes(int64_t b, int64_t h, int64_t first_key) {
    const int64_t dim = plan.padded_head_dim, sum_size_q = plan.grid.sum_size_q;
    const int64_t count = locate_keys(first_key);
    float* const ds = query_axis_row(work.query_axis_ds, 0, first_key);
    transpose_matrix(ds, plan.grid.query_axis_stride, sum_size_q, count, work.chunk_by_coord,
                     sum_size_q);
    clear_query_axes(first_key, count);
    read_keys(b, h, first_key, count, plan.score_factor);
    // Keys without ds may be anything: nobody may see them.
    for (int64_t n = 0; n < count; ++n)
      if (is_zero(sum_size_q, work.chunk_by_coord + n * sum_size_q))
        fill(work.key_tile + n * dim, dim, 0);
    // The scale is query_factor, and score_factor, which dk is multiplied by at its end, and the keys
    // for dQ are here.
    for (int64_t n = 0; n < count * sum_size_q; ++n) work.chunk_by_coord[n] *= plan.query_factor;
    fill(work.chunk_sums, kKeyChunk * dim, 0);
    for (int axis = 0; axis < params.grid.num_axes; ++axis) {
      if (!params.grid.axes[axis].has_queries) continue;
      const AxisTokens keys = axis_keys(count, axis);
      for (RowGroup group; keys.next_group(group);) {
        unshear_row_group(keys, group, work.chunk_by_coord);
        add_group_gradients(group, plan.grid.axes[axis], kQueries, work.key_tile, dim,
                            sums.k ? work.chunk_sums : nullptr, axis_table_sums(h));
      }
    }
    if (sums.k) add_chunk_to_dk(first_key, count);
  }

  // Whether x (count) is; NaN are not.
  static bool is_zero(int64_t count, const float* x) {
    bool all = true;
    for (int64_t n = 0; n < count; ++n) all &= x[n] == 0;
    return all;
  }

  // sums.k += work.chunk_sums (count, padded_head_dim), of the keys from `first_key` on, with a
  // matrix unit a multiple of W.
  void add_chunk_to_dk(int64_t first_key, int64_t count) {
    const int64_t dim = plan.padded_head_dim;
#if RELPOS_TILES
    for (int64_t n = 0; n < count; n += kLanes)
      for (int64_t k = 0; k < dim; k += kLanes) {
        vfloat square[kLanes];
#pragma GCC unroll 16
        for (int c = 0; c < kLanes; ++c) square[c] = load(work.chunk_sums + (n + c) * dim + k);
        transpose(square);
        float* const panel = sums.k + (first_key + n) * dim + k * kLanes;
#pragma GCC unroll 16
        for (int c = 0; c < kLanes; ++c)
          store(panel + c * kLanes, load(panel + c * kLanes) + square[c]);
      }
#else
    add_to(count * dim, work.chunk_sums, sums.k + first_key * dim);
#endif
  }
};

}  // namespace
}  // namespace relpos
