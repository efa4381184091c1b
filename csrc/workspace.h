// One thread's memory: what belongs to one block of rows and one tile of keys, and what is packed
// once for a head.
//
//     rows          queries of the block, at most kBlockRows
//     strip         those of them whose scores are there at once, at most kForwardStripRows
//                   in the forward pass, kStripRows in the backward pass
//     tile          at most kTileKeys = 256 keys; a row of scores is kTileStride floats long
//     panels        packed rows or columns (config.h, gemm.h); rows / MR is rounded up
//     columns       offsets of a window (offset_window.h)
//     coordinates   of a grid's axes, side by side: sum_size_k of keys, sum_size_q of queries
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

// The keys from..to-1 of a head for which something is made already: one run, which grows with the
// blocks. Between blocks whose keys lie far apart, it is made of those between too.
struct KeysOfHead {
  int64_t b = -1, head = -1, from = 0, to = 0;

  bool has_head(int64_t of_b, int64_t of_head) const { return b == of_b && head == of_head; }

  // Calls make(begin, end) for runs of keys, in whole units, until begin..end-1 are made.
  template <class Make>
  void grow(int64_t new_b, int64_t new_head, int64_t begin, int64_t end, int64_t unit,
            const Make& make) {
    if (!has_head(new_b, new_head)) b = new_b, head = new_head, from = to = 0;
    if (begin >= end) return;
    begin = round_down(begin, unit), end = round_up(end, unit);
    if (from == to) from = to = begin;
    if (begin < from) make(begin, from);
    if (end > to) make(to, end);
    from = min(from, begin), to = max(to, end);
  }
};

// What a call does not need is null.
struct Workspace {
  // The block's queries, times scale; q_rel is q itself where there is none.
  float* q;             // (kBlockRows, padded_head_dim)
  packed* q_panels;      // (rows / MR, head_dim, MR), or (rows, head_dim): gemm.h, tile_products.h
  float* q_rel;          // (kBlockRows, padded_rel_dim)
  packed* q_rel_panels;  // (rows / MR, rel_dim, MR), or (rows, rel_dim); not filled on a grid

  float* s;           // (rows of a strip, kTileStride): scores, then p
  float* output_acc;  // (kBlockRows, padded_value_dim); forward alone

  // Keys and values of the tile, where they cannot be read as they lie; and those of a key/value
  // head, packed.
  float* key_tile;    // (kTileKeys, padded_head_dim)
  float* value_tile;  // (kTileKeys, padded_value_dim)
  packed* key_panels;  // (seqlen_k / NR, head_dim, NR); null for few queries
  KeysOfHead packed_keys;

  float* key_scratch;  // (kTileKeys): a number for each key of a tile
  float* row_scratch;  // (the widest of padded_head_dim, padded_value_dim and padded_rel_dim)

  float* few_query_rows;  // (W, padded_rel_dim): rows of the table of keys

  // By offset: q_rel . K[offset] + B[offset], and sums of p.
  OffsetBuffer offset_scores, offset_p;
  // The table of queries, for a chunk of keys: k . Q[offset], and these keys packed.
  float* chunk_scores;  // (kKeyChunk, kBufferStride)
  packed* chunk_panels;  // (keys / MR, head_dim, MR)
  WindowTable tables[kTableKinds];  // of the current head, where heads have their own

  // On a grid, for each row a number by coordinate, all axes side by side: q . K_a + B_a, and sums
  // of p.
  AxisTables axis_tables;  // of the current head, where heads have their own
  float* axis_scores;      // (kBlockRows, sum_size_k)
  float* axis_p;           // (kBlockRows, sum_size_k)
  float* row_group;        // (MR, row_group_stride)
  // For the tables of queries, of the keys of a head: scale * k . Q_a, a row for each coordinate of
  // the queries; and of a chunk of keys, by coordinate.
  float* query_axis_scores;  // (sum_size_q, query_axis_stride); null where Plan has those of all
  KeysOfHead query_axis_keys;
  float* chunk_by_coord;  // (kKeyChunk, sum_size_q)

  // Backward alone:
  float* d_output = nullptr;         // (kBlockRows, padded_value_dim): dO / keep_probability
  packed* d_output_panels = nullptr;  // (rows / MR, value_dim, MR)
  packed* value_panels = nullptr;     // (seqlen_k / NR, value_dim, NR)
  float* ds = nullptr;               // (kStripRows, kTileStride): dp, then ds
  float* cap_slope = nullptr;        // (kStripRows, kTileStride): d (c tanh(s / c)) / ds
  float* dq = nullptr;               // (kBlockRows, padded_head_dim)
  float* dq_rel = nullptr;  // (kBlockRows, padded_rel_dim); dq itself where there is no q_rel
  OffsetBuffer offset_dp, offset_ds;  // dO . V[offset], and sums of ds
  float* chunk_ds = nullptr;          // (kKeyChunk, kBufferStride): sums of ds
  float* axis_dp = nullptr;           // (kBlockRows, sum_size_k): dO . V_a
  float* axis_ds = nullptr;           // (kBlockRows, sum_size_k): sums of ds
  float* query_axis_ds = nullptr;     // (sum_size_q, query_axis_stride): sums of ds
  float* ds_by_pair = nullptr;        // (Plan::pairs_size): sums of ds (joint_bias.h)
  float* chunk_sums = nullptr;        // (kKeyChunk, padded_head_dim): what is summed for dk

  // With a matrix unit alone; weights are those of weights.h, and P is kParts.
  packed* value_pairs = nullptr;  // (seqlen_k / 2, P, padded_value_dim, 2); forward alone
  packed* p_rows = nullptr;       // weights of a strip
  packed* edge_pairs = nullptr;   // (kKeyUnit / 2, P, padded_value_dim or padded_head_dim, 2)
  packed* split_rows = nullptr;   // (kTileDepth, P, head_dim or value_dim), where P > 1
  // Backward alone. Keys, and the block's rows transposed, are factors of the gradients.
  packed* key_pairs = nullptr;            // (seqlen_k / 2, P, padded_head_dim, 2)
  packed* q_transposed = nullptr;         // (head_dim, P, kBlockRows)
  packed* q_rel_transposed = nullptr;     // (rel_dim, P, kBlockRows)
  packed* d_output_transposed = nullptr;  // (value_dim, P, kBlockRows)
  packed* ds_rows = nullptr;              // weights of a strip
  packed* ds_pairs = nullptr;             // pairs of weights of the block, and such sheared
  packed* ds_sheared_pairs = nullptr;
  packed* p_pairs = nullptr;
  packed* p_sheared_pairs = nullptr;
  // ds of a chunk of keys by offset, and these keys transposed.
  packed* chunk_rows = nullptr;        // (kKeyChunk, P, kBufferStride)
  packed* chunk_pairs = nullptr;       // (kKeyChunk / 2, P, kBufferStride, 2)
  packed* chunk_transposed = nullptr;  // (head_dim, P, kKeyChunk)

  Workspace(const Plan& plan, Arena& arena) {
    const Params& params = plan.params;
    const GridPlan& grid = plan.grid;
    const bool has_q_rel = params.has_q_rel();
    const bool has_score_window = plan.score_window.present;
    const bool has_value_window = plan.value_window.present;
    const bool has_query_table = plan.query_window.present;
    // Panels are whole: the last one has up to MR - 1 rows more.
    const int64_t panel_rows = kBlockRows + kMR, num_panels = plan.num_key_panels();
    const int64_t strip_rows = plan.backward ? kStripRows : kForwardStripRows;
    const int64_t buffer = strip_rows * kBufferStride, chunk = kKeyChunk * kBufferStride;
    const int64_t head_depth = packed_depth(plan.padded_head_dim);
    const int64_t value_depth = packed_depth(plan.padded_value_dim);
    const int64_t rel_depth = packed_depth(plan.padded_rel_dim);
    const int64_t by_coord = kBlockRows * params.grid.sum_size_k;
    q = arena.take(kBlockRows * plan.padded_head_dim);
    q_panels = arena.take_packed(true, panel_rows * head_depth);
    q_rel = has_q_rel ? arena.take(kBlockRows * plan.padded_rel_dim) : q;
    q_rel_panels = has_q_rel ? arena.take_packed(true, panel_rows * rel_depth) : q_panels;
    s = arena.take(strip_rows * kTileStride);
    output_acc = arena.take_if(!plan.backward, kBlockRows * plan.padded_value_dim);
    key_tile = arena.take(kTileKeys * plan.padded_head_dim);
    value_tile = arena.take(kTileKeys * plan.padded_value_dim);
    key_panels =
        arena.take_packed(!plan.few_queries, num_panels * kNR * packed_depth(params.head_dim));
    key_scratch = arena.take(kTileKeys);
    row_scratch = arena.take(
        max(max(plan.padded_head_dim, plan.padded_value_dim), plan.padded_rel_dim));
    few_query_rows =
        arena.take_if(plan.has_few_query_scores(), kLanes * plan.padded_rel_dim);
    offset_scores.data = arena.take_if(has_score_window, buffer);
    offset_p.data = arena.take_if(has_value_window && !kTiles, buffer);
    chunk_scores = arena.take_if(has_query_table, chunk);
    chunk_panels = arena.take_packed(has_query_table, (kKeyChunk + kMR) * head_depth);
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (params.tables[kind].heads > 1) tables[kind] = plan.lay_out_table(kind, arena);
    if (params.grid.axis_table_heads > 1) axis_tables = plan.lay_out_axis_tables(arena);
    axis_scores = arena.take_if(grid.has_axis_scores, by_coord);
    axis_p = arena.take_if(grid.has_values, by_coord);
    row_group = arena.take(kMR * grid.row_group_stride);
    query_axis_scores =
        arena.take_if(grid.sum_size_q && !plan.shares_query_axes, grid.query_axis_size());
    chunk_by_coord = arena.take_if(grid.sum_size_q, kKeyChunk * grid.sum_size_q);
    const bool forward_tiles = kTiles && !plan.backward, backward_tiles = kTiles && plan.backward;
    const int64_t keys = num_panels * kNR * kParts;
    value_pairs = arena.take_packed(forward_tiles, keys * plan.padded_value_dim);
    p_rows = arena.take_packed(forward_tiles || (backward_tiles && has_value_window),
                               weights_size(strip_rows));
    edge_pairs = arena.take_packed(
        kTiles,
        kKeyUnit * kParts * (plan.backward ? plan.padded_head_dim : plan.padded_value_dim));
    split_rows = arena.take_packed(kParts > 1, kTileDepth * max(head_depth, value_depth));
    if (!plan.backward) return;
    d_output = arena.take(kBlockRows * plan.padded_value_dim);
    d_output_panels = arena.take_packed(true, panel_rows * value_depth);
    value_panels = arena.take_packed(true, num_panels * kNR * packed_depth(params.value_dim));
    ds = arena.take(kStripRows * kTileStride);
    cap_slope = arena.take_if(params.softcap, kStripRows * kTileStride);
    dq = arena.take(kBlockRows * plan.padded_head_dim);
    dq_rel = has_q_rel ? arena.take(kBlockRows * plan.padded_rel_dim) : dq;
    offset_dp.data = arena.take_if(has_value_window, buffer);
    offset_ds.data = arena.take_if(has_score_window && !kTiles, buffer);
    chunk_ds = arena.take_if(has_query_table, chunk);
    axis_dp = arena.take_if(grid.has_values, by_coord);
    axis_ds = arena.take_if(grid.has_axis_scores, by_coord);
    query_axis_ds =
        arena.take_if(grid.sum_size_q &&
                          (params.gradients.k.present() || params.gradients.axis_tables),
                      grid.query_axis_size());
    ds_by_pair = arena.take_if(params.gradients.joint_bias && plan.has_joint_bias_by_pair(),
                               plan.pairs_size());
    chunk_sums = arena.take_if(grid.sum_size_q || (kTiles && has_query_table),
                               kKeyChunk * plan.padded_head_dim);
    if (!backward_tiles) return;
    const int64_t pairs = weight_pairs_size(kBlockRows);
    key_pairs = arena.take_packed(true, keys * plan.padded_head_dim);
    q_transposed = arena.take_packed(true, head_depth * kBlockRows);
    q_rel_transposed =
        has_q_rel ? arena.take_packed(true, rel_depth * kBlockRows) : q_transposed;
    d_output_transposed = arena.take_packed(true, value_depth * kBlockRows);
    ds_rows = arena.take_packed(true, weights_size(kStripRows));
    ds_pairs = arena.take_packed(true, pairs);
    p_pairs = arena.take_packed(true, pairs);
    ds_sheared_pairs = arena.take_packed(params.tables[kKeys].present(), pairs);
    p_sheared_pairs = arena.take_packed(has_value_window, pairs);
    chunk_rows = arena.take_packed(has_query_table, kParts * chunk);
    chunk_pairs = arena.take_packed(has_query_table, kParts * chunk);
    chunk_transposed = arena.take_packed(has_query_table, head_depth * kKeyChunk);
  }
};

}  // namespace
}  // namespace relpos
