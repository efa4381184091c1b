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
#include "integers.h"
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
  int64_t first_head = 0;
};

struct ScoreGradients : Scores {
  GradientSums sums;
  float ds_left[kBlockRows], ds_right[kBlockRows];  // sums of ds left and right of the score window

  using Scores::Scores;

  // The sums of a head's table (Plan::table_sums_size); null if they are not wanted.
  float* table_sums(int kind, int64_t h) const {
    const int64_t head = params.tables[kind].head_index(h - sums.first_head);
    return sums.tables[kind] ? sums.tables[kind] + head * plan.table_sums_size(kind) : nullptr;
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
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      float* to = params.gradients.mask + block.b * strides[0] + block.h * strides[1] +
                  (block.first_row + r) * strides[2] + tile.begin * strides[3];
      const float* ds = rows_of(work.ds, tile) + r * kTileStride;
      for (int64_t n = tile.from; n < tile.to; ++n) to[n * strides[3]] += ds[n];
    }
  }

  // ---- a grid ---------------------------------------------------------------------------------

  void accumulate_grid(const RowBlock& block, const KeyTile& tile) {
    const Grid& grid = params.grid;
    for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r) {
      const float* ds = rows_of(work.ds, tile) + r * kTileStride;
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
