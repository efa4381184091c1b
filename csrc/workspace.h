// One thread's memory: what belongs to one block of rows and one tile of keys, and what is packed
// once for a head.
//
//     rows          queries of the block, at most kBlockRows = 64
//     tile          at most kTileKeys = 256 keys; a row of scores is kTileStride floats long
//     panels        packed rows or columns (config.h, gemm.h); rows / MR is rounded up
//     columns       offsets of a window (offset_window.h)
//     coordinates   of a grid's axes, side by side: sum_size_k of them
//
// Names: s scores, p their softmax (the weights), dp and ds the gradients of p and of s, dO that of
// the output, as in FlashAttention.
#pragma once

#include <stdint.h>

#include "config.h"
#include "grid_plan.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "plan.h"

namespace relpos {
namespace {

// What a call does not need is null.
struct Workspace {
  // The block's queries, times scale; q_rel is q itself where there is none.
  float* q;             // (kBlockRows, padded_head_dim)
  float* q_panels;      // (rows / MR, head_dim, MR)
  float* q_rel;         // (kBlockRows, padded_rel_dim)
  float* q_rel_panels;  // (rows / MR, rel_dim, MR); not filled on a grid

  float* s;           // (kBlockRows, kTileStride): scores, then p
  float* output_acc;  // (kBlockRows, padded_value_dim); forward alone

  // Keys and values of the tile, where they cannot be read as they lie; and of the head of
  // `packed_batch` and `packed_kv_head`, packed, those from packed_from to packed_to-1.
  float* key_tile;    // (kTileKeys, padded_head_dim)
  float* value_tile;  // (kTileKeys, padded_value_dim)
  float* key_panels;  // (seqlen_k / NR, head_dim, NR); null for few queries
  int64_t packed_batch = -1, packed_kv_head = -1, packed_from = 0, packed_to = 0;

  float* key_scratch;  // (kTileKeys): a number for each key of a tile
  float* row_scratch;  // (the widest of padded_head_dim, padded_value_dim and padded_rel_dim)

  float* few_query_rows;  // (W, padded_rel_dim): rows of the table of keys

  // By offset: q_rel . K[offset] + B[offset], and sums of p.
  OffsetBuffer offset_scores, offset_p;
  // The table of queries, for a chunk of keys: k . Q[offset], and these keys packed.
  float* chunk_scores;  // (kKeyChunk, kBufferStride)
  float* chunk_panels;  // (keys / MR, head_dim, MR)
  WindowTable tables[kTableKinds];  // of the current head, where heads have their own

  // On a grid, for each row a number by coordinate, all axes side by side: q . K_a + B_a, and sums
  // of p.
  AxisTables axis_tables;  // of the current head, where heads have their own
  float* axis_scores;      // (kBlockRows, sum_size_k)
  float* axis_p;           // (kBlockRows, sum_size_k)
  float* row_group;        // (MR, row_group_stride)

  // Backward alone:
  float* d_output = nullptr;         // (kBlockRows, padded_value_dim): dO / keep_probability
  float* d_output_panels = nullptr;  // (rows / MR, value_dim, MR)
  float* value_panels = nullptr;     // (seqlen_k / NR, value_dim, NR)
  float* ds = nullptr;               // (kBlockRows, kTileStride): dp, then ds
  float* cap_slope = nullptr;        // (kBlockRows, kTileStride): d (c tanh(s / c)) / ds
  float* dq = nullptr;               // (kBlockRows, padded_head_dim)
  float* dq_rel = nullptr;  // (kBlockRows, padded_rel_dim); dq itself where there is no q_rel
  OffsetBuffer offset_dp, offset_ds;  // dO . V[offset], and sums of ds
  float* chunk_ds = nullptr;          // (kKeyChunk, kBufferStride): sums of ds
  float* axis_dp = nullptr;           // (kBlockRows, sum_size_k): dO . V_a
  float* axis_ds = nullptr;           // (kBlockRows, sum_size_k): sums of ds

  Workspace(const Plan& plan, Arena& arena) {
    const Params& params = plan.params;
    const GridPlan& grid = plan.grid;
    const bool has_q_rel = params.has_q_rel();
    const bool has_score_window = plan.score_window.present;
    const bool has_value_window = plan.value_window.present;
    const bool has_query_table = plan.query_window.present;
    // Panels are whole: the last one has up to MR - 1 rows more.
    const int64_t panel_rows = kBlockRows + kMR, num_panels = plan.num_key_panels();
    const int64_t buffer = kBlockRows * kBufferStride, chunk = kKeyChunk * kBufferStride;
    const int64_t by_coord = kBlockRows * params.grid.sum_size_k;
    q = arena.take(kBlockRows * plan.padded_head_dim);
    q_panels = arena.take(panel_rows * plan.padded_head_dim);
    q_rel = has_q_rel ? arena.take(kBlockRows * plan.padded_rel_dim) : q;
    q_rel_panels = has_q_rel ? arena.take(panel_rows * plan.padded_rel_dim) : q_panels;
    s = arena.take(kBlockRows * kTileStride);
    output_acc = arena.take_if(!plan.backward, kBlockRows * plan.padded_value_dim);
    key_tile = arena.take(kTileKeys * plan.padded_head_dim);
    value_tile = arena.take(kTileKeys * plan.padded_value_dim);
    key_panels = arena.take_if(!plan.few_queries, num_panels * kNR * params.head_dim);
    key_scratch = arena.take(kTileKeys);
    row_scratch = arena.take(
        max(max(plan.padded_head_dim, plan.padded_value_dim), plan.padded_rel_dim));
    few_query_rows =
        arena.take_if(plan.has_few_query_scores(), kLanes * plan.padded_rel_dim);
    offset_scores.data = arena.take_if(has_score_window, buffer);
    offset_p.data = arena.take_if(has_value_window, buffer);
    chunk_scores = arena.take_if(has_query_table, chunk);
    chunk_panels = arena.take_if(has_query_table, (kKeyChunk + kMR) * plan.padded_head_dim);
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (params.tables[kind].heads > 1) tables[kind] = plan.lay_out_table(kind, arena);
    if (params.grid.axis_table_heads > 1) axis_tables = plan.lay_out_axis_tables(arena);
    axis_scores = arena.take_if(grid.has_axis_scores, by_coord);
    axis_p = arena.take_if(grid.has_values, by_coord);
    row_group = arena.take(kMR * grid.row_group_stride);
    if (!plan.backward) return;
    d_output = arena.take(kBlockRows * plan.padded_value_dim);
    d_output_panels = arena.take(panel_rows * plan.padded_value_dim);
    value_panels = arena.take(num_panels * kNR * params.value_dim);
    ds = arena.take(kBlockRows * kTileStride);
    cap_slope = arena.take_if(params.softcap, kBlockRows * kTileStride);
    dq = arena.take(kBlockRows * plan.padded_head_dim);
    dq_rel = has_q_rel ? arena.take(kBlockRows * plan.padded_rel_dim) : dq;
    offset_dp.data = arena.take_if(has_value_window, buffer);
    offset_ds.data = arena.take_if(has_score_window, buffer);
    chunk_ds = arena.take_if(has_query_table, chunk);
    axis_dp = arena.take_if(grid.has_values, by_coord);
    axis_ds = arena.take_if(grid.has_axis_scores, by_coord);
  }
};

}  // namespace
}  // namespace relpos
