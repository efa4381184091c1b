// What is derived from a call's sizes once, and does not change during it.
//
//     window        offsets that a kind of table covers (offset_window.h)
//     padded        rounded up to whole vectors of W = kLanes floats
//     panels        packed columns, NR = kNR of them together (gemm.h)
//
// Forward and backward prepare different forms of the same tables.
#pragma once

#include <stdint.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "config.h"
#include "gemm.h"
#include "grid_plan.h"
#include "integers.h"
#include "offset_window.h"
#include "params.h"
#include "tile_products.h"

namespace relpos {
namespace {

// Runs of the joint bias up to this size are short (joint_bias.h). From 24 on, sums of ds by pair
// take longer than by entry.
constexpr int64_t kMaxShortRun = 16;
// A head's numbers by pair stay in cache up to 1 MiB: windows of 512 tokens.
constexpr int64_t kMaxPairs = 1 << 18;

// Memory handed out piece by piece, each 64-byte aligned; with a null `memory` it only counts.
struct Arena {
  char* memory = nullptr;
  int64_t used = 0;  // bytes

  float* take(int64_t floats) { return take_of<float>(floats); }
  float* take_if(bool needed, int64_t floats) { return needed ? take(floats) : nullptr; }
  packed* take_packed(bool needed, int64_t count) {
    return needed ? take_of<packed>(count) : nullptr;
  }

 private:
  template <class T>
  T* take_of(int64_t count) {
    T* piece = memory ? (T*)(memory + used) : nullptr;
    const int64_t end = used + count * (int64_t)sizeof(T);
    used = round_up(end, 64);
#if defined(__SANITIZE_ADDRESS__)
    // A gap that nothing may touch: else a step beyond one piece would go unnoticed in the next.
    used += 64;
    if (memory) __asan_poison_memory_region(memory + end, (size_t)(used - end));
#endif
    return piece;
  }
};

struct Plan {
  const Params& params;
  bool backward;
  int64_t padded_head_dim, padded_value_dim, padded_rel_dim;
  OffsetWindow score_window;  // of the tables of keys and of bias together
  OffsetWindow query_window;  // of the table of queries
  OffsetWindow value_window;  // of the table of values
  GridPlan grid;
  WindowTable tables[kTableKinds];  // those that all heads share
  AxisTables axis_tables;           // likewise
  uint32_t drop_threshold;          // a weight whose random 32 bits are below it is dropped
  float keep_probability;           // exactly that of drop_threshold
  // Backward divides by it what it multiplies by the weights: dO, or the weights that remain, where
  // dO would have to be rounded.
  float d_output_factor, weight_factor;
  bool few_queries;                 // scores are single dot products; keys are not packed
  // q and q_rel are packed times query_factor, and what products make of them is score_factor times
  // as large: score_factor is 1, and query_factor the scale, unless rounding would be an error.
  float query_factor, score_factor = 1;
  // few_query_scores.h; null where has_few_query_scores() is false.
  float* few_query_scores = nullptr;  // (B * H * seqlen_q, few_query_stride)
  int64_t few_query_stride;           // num_columns of score_window, in whole vectors
  // grid_queries.h; null where each thread has its own.
  float* query_axis_scores = nullptr;  // (B * H, query_axis_size)
  bool shares_query_axes = false;
  // joint_bias.h; null where has_joint_bias_by_pair() is false.
  float* joint_bias_by_pair = nullptr;  // (joint_bias_heads, pairs_size)

  Plan(const Params& p, bool is_backward, int threads) : params(p), backward(is_backward) {
    padded_head_dim = round_up(p.head_dim, kLanes);
    padded_value_dim = round_up(p.value_dim, kLanes);
    // On a grid the parts of the axes lie side by side. Each is read by whole vectors, so that of
    // the last axis needs another vector after it.
    padded_rel_dim = p.has_q_rel()
                         ? round_up(p.rel_dim + (p.grid.num_axes ? kLanes : 0), kLanes)
                         : padded_head_dim;
    grid = GridPlan(p);
    // Where several threads work at one head; it takes less memory than one for each thread.
    shares_query_axes = grid.sum_size_q && p.batch * p.heads < threads;
    score_window = make_window(p, kKeys, kBias);
    query_window = make_window(p, kQueries, kQueries);
    value_window = make_window(p, kValues, kValues);
    constexpr double kAll = 4294967296.0;  // 2^32
    drop_threshold = (uint32_t)(p.dropout * kAll);
    keep_probability = (float)(1 - (double)drop_threshold / kAll);
    d_output_factor = kTiles ? 1 : 1 / keep_probability;
    weight_factor = kTiles ? 1 / keep_probability : 1;
    // In both passes: backward's weights are right only if its scores are forward's to the bit.
    few_queries = !kTiles && p.seqlen_q <= kFewQueries;
    query_factor = p.scale;
    if (kTiles) split_scale();
    few_query_stride = round_up(score_window.num_columns, kLanes);
  }

  // The power of two nearest to the scale, which rounds no bfloat16 number, and the rest.
  void split_scale() {
    int exponent = 0;
    const float fraction = params.scale == 0 ? 1 : __builtin_frexpf(params.scale, &exponent);
    score_factor = __builtin_fabsf(fraction) == 0.5f ? 1 : __builtin_fabsf(fraction);
    query_factor = params.scale == 0 ? 0 : params.scale / score_factor;
  }

  const OffsetWindow& window(int kind) const {
    return kind == kQueries ? query_window : kind == kValues ? value_window : score_window;
  }
  // Between the rows of a kind of table, and of its gradient's sums.
  int64_t padded_row_dim(int kind) const {
    return kind == kBias     ? 1
           : kind == kValues ? padded_value_dim
           : kind == kKeys   ? padded_rel_dim
                             : padded_head_dim;
  }
  // Of the sums of one head's table, (columns, padded_row_dim). Those of a bias, to which each block
  // adds one number for a column, have beside them what these additions lost, (columns).
  int64_t table_columns(int kind) const { return window(kind).num_panels() * kNR; }
  int64_t table_sums_size(int kind) const {
    return table_columns(kind) * (kind == kBias ? 2 : padded_row_dim(kind));
  }
  int64_t num_key_panels() const { return ceil_div(params.seqlen_k, kNR); }

  // Which forms of a table this pass reads. Rows are added up, weighted: those of values by p in
  // forward, the others by ds in backward. Panels are multiplied: with q or k for the scores, which
  // both passes compute, and with dO, those of values, in backward.
  bool needs_rows(int kind) const {
    if (kind == kBias) return false;
    return kind == kValues ? !backward : backward;
  }
  bool needs_panels(int kind) const {
    if (kind == kBias) return false;
    return kind == kValues ? backward : !few_queries;
  }
  WindowTable lay_out_table(int kind, Arena& arena) const {
    WindowTable table;
    if (!params.tables[kind].present()) return table;
    const int64_t columns = table_columns(kind);
    table.rows = arena.take_packed(needs_rows(kind), columns * kParts * padded_row_dim(kind));
    table.panels =
        arena.take_packed(needs_panels(kind), columns * packed_depth(params.tables[kind].row_dim));
    table.bias = arena.take_if(kind == kBias, columns);
    return table;
  }
  AxisTables lay_out_axis_tables(Arena& arena) const {
    AxisTables tables;
    tables.padded = arena.take(grid.padded_size);
    tables.transposed = arena.take(grid.transposed_size);
    return tables;
  }

  // Whether the table of keys is read in one walk for all heads: where they share it, most of its
  // columns are wanted (not with documents or ranges), and the scores take at most an eighth of the
  // memory of keys and values.
  bool has_few_query_scores() const {
    return few_queries && params.tables[kKeys].heads == 1 && params.heads > 1 &&
           !params.documents.ids && !params.key_ranges.ranges &&
           8 * params.num_rows() * few_query_stride <= keys_and_values();
  }
  // Whether the joint bias is laid out by pair: in small windows with short runs, where there are at
  // least twice as many numbers in keys and values.
  bool has_joint_bias_by_pair() const {
    return params.grid.joint_bias &&
           params.grid.axes[params.grid.num_axes - 1].size_k <= kMaxShortRun &&
           pairs_size() <= kMaxPairs &&
           2 * params.grid.joint_bias_heads * pairs_size() <= keys_and_values();
  }
  // Of one head's numbers by pair.
  int64_t pairs_size() const { return params.seqlen_q * grid.pair_stride; }
  // Numbers in k and v.
  int64_t keys_and_values() const {
    return params.batch * params.kv_heads * params.seqlen_k * (params.head_dim + params.value_dim);
  }

  // What all threads read: the tables that all heads share, and the scores of all heads.
  void lay_out_shared_tables(Arena& arena) {
    few_query_scores =
        arena.take_if(has_few_query_scores(), params.num_rows() * few_query_stride);
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (params.tables[kind].heads == 1) tables[kind] = lay_out_table(kind, arena);
    query_axis_scores = arena.take_if(shares_query_axes,
                                      params.batch * params.heads * grid.query_axis_size());
    if (params.grid.axis_table_heads == 1) axis_tables = lay_out_axis_tables(arena);
    joint_bias_by_pair =
        arena.take_if(has_joint_bias_by_pair(), params.grid.joint_bias_heads * pairs_size());
  }
};

}  // namespace
}  // namespace relpos
