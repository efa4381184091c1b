// The tables of queries of a grid's axes, which are dotted with the keys.
//
// As grid_terms.h, with keys in place of a block's rows: key j at coordinate c_j has one logit for
// each coordinate y of the queries,
//
//     s_ij += D_a[y_i, j]      D_a[y, j] = scale * k_j . Q_a[c_j - y]      query_axis_scores
//
// and the adjoint is the sum of ds over the queries of each coordinate (query_axis_ds). Each row of
// these is read by the blocks of a whole row of the grid, or column, so they are kept for a head: for
// those of its keys that a thread's blocks have seen so far, and those between (KeysOfHead). Where there
// are more threads than heads, which then share them, all are made before the first block.
//
//     query_axis_*     (sum_size_q, query_axis_stride): coordinates of all axes with such a table
//     chunk_by_coord   (kKeyChunk, sum_size_q): the same of a chunk of keys, a row for each key
#pragma once

#include <stdint.h>

#include "config.h"
#include "gemm.h"
#include "grid_terms.h"
#include "grid_token.h"
#include "integers.h"
#include "kernel.h"
#include "params.h"
#include "plan.h"
#include "simd.h"
#include "tile.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

struct GridQueries : GridTerms {
  using GridTerms::GridTerms;

  // Of a chunk of keys: their coordinates, and how many of them lie in the prefix.
  int64_t chunk_coords[kKeyChunk][kMaxAxes];
  int64_t first_grid_key = 0;

  // Where the number of a coordinate and a key lies.
  float* query_axis_row(float* by_key, int64_t coord, int64_t key) const {
    return by_key + coord * plan.grid.query_axis_stride + key;
  }
  // Those of a head.
  float* query_axis_scores(int64_t b, int64_t h) const {
    return plan.shares_query_axes
               ? plan.query_axis_scores + (b * params.heads + h) * plan.grid.query_axis_size()
               : work.query_axis_scores;
  }

  // Calls visit(coordinate) for those of row r along the axes, as rows of query_axis_scores.
  template <class Visit>
  void each_query_coord(int64_t r, const Visit& visit) const {
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_queries)
        visit(plan.grid.axes[axis].first_coord_q + row_coords[r][axis]);
  }

  // ---- a chunk of keys ------------------------------------------------------------------------

  // Those from `first_key` on; how many they are.
  int64_t locate_keys(int64_t first_key) {
    const int64_t count = min(kKeyChunk, params.seqlen_k - first_key);
    first_grid_key = clamp(params.grid.prefix - first_key, 0, count);
    GridToken key = GridToken::key(params.grid, max(first_key - params.grid.prefix, 0));
    for (int64_t n = first_grid_key; n < count; ++n, key.step(params.grid.num_axes - 1))
      for (int axis = 0; axis < params.grid.num_axes; ++axis)
        chunk_coords[n][axis] = key.coords[axis];
    return count;
  }

  AxisTokens axis_keys(int64_t count, int axis) const {
    // As in axis_rows.
    const bool is_last = axis + 1 == params.grid.num_axes;
    return {params.grid.axes[axis], true, &chunk_coords[0][axis], first_grid_key, count,
            params.grid.axes[axis].size_q, plan.grid.axes[axis].first_coord_q,
            plan.grid.sum_size_q, is_last ? params.grid.axes[axis].step_of_keys() : 1};
  }

  // factor * k in work.key_tile (count, padded_head_dim).
  void read_keys(int64_t b, int64_t h, int64_t first_key, int64_t count, float factor) {
    read_rows(params.k, params.dtype, b, h / params.heads_per_kv_head(), first_key, count,
              params.head_dim, plan.padded_head_dim, factor, work.key_tile);
  }

  // ---- a block, a tile ------------------------------------------------------------------------

  // The scores of those of the head's keys that the block sees and that are not there yet.
  void begin_query_axes(const RowBlock& block) {
    work.query_axis_keys.grow(block.b, block.h, block.keys_begin, block.keys_end, kKeyChunk,
                              [&](int64_t from, int64_t to) {
                                if (!plan.shares_query_axes)
                                  fill_query_axes(block.b, block.h, from, to);
                                if (work.query_axis_ds)
                                  clear_query_axes(from, min(to, params.seqlen_k) - from);
                              });
  }

  // Of the keys from..to-1, whole chunks of them.
  void fill_query_axes(int64_t b, int64_t h, int64_t from, int64_t to) {
    for (int64_t key = from; key < to; key += kKeyChunk) fill_chunk(b, h, key);
  }

  void fill_chunk(int64_t b, int64_t h, int64_t first_key) {
    const int64_t sum_size_q = plan.grid.sum_size_q, count = locate_keys(first_key);
    read_keys(b, h, first_key, count, params.scale);
    fill(work.chunk_by_coord, count * sum_size_q, 0);
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_queries)
        multiply_axis_table(axis_keys(count, axis), axis, kQueries, work.key_tile,
                            plan.padded_head_dim, work.chunk_by_coord);
    transpose_matrix(work.chunk_by_coord, sum_size_q, count, sum_size_q,
                     query_axis_row(query_axis_scores(b, h), 0, first_key),
                     plan.grid.query_axis_stride);
  }

  // No sums of ds, for so many keys from `first_key` on.
  void clear_query_axes(int64_t first_key, int64_t count) const {
    for (int64_t n = 0; n < plan.grid.sum_size_q; ++n)
      fill(query_axis_row(work.query_axis_ds, n, first_key), count, 0);
  }

  // scores (rows, kTileStride) += the logits of the tile's keys for each row's coordinates.
  void add_query_axes(const RowBlock& block, const KeyTile& tile, float* scores) const {
    float* const by_key = query_axis_scores(block.b, block.h);
    for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r)
      each_query_coord(r, [&](int64_t coord) {
        add_to(tile.to - tile.from, query_axis_row(by_key, coord, tile.key(tile.from)),
               scores + r * kTileStride + tile.from);
      });
  }
};

// The scores of all heads, where they are shared: each thread some of the keys.
struct FillQueryAxes {
  const Plan* plan;
  const WorkspacePool* pool;
  int64_t threads;

  static void run_thread(void* context, int64_t thread) {
    const FillQueryAxes& task = *(const FillQueryAxes*)context;
    const Params& params = task.plan->params;
    GridQueries queries(*task.plan, task.pool->workspace(*task.plan, thread));
    const int64_t chunks = ceil_div(params.seqlen_k, kKeyChunk);
    const int64_t from = chunks * thread / task.threads * kKeyChunk;
    const int64_t to = chunks * (thread + 1) / task.threads * kKeyChunk;
    for (int64_t h = 0; h < params.heads; ++h) {
      queries.fill_axis_tables(h);
      for (int64_t b = 0; b < params.batch; ++b) queries.fill_query_axes(b, h, from, to);
    }
  }
};

inline void fill_query_axes(const Plan& plan, const WorkspacePool& pool, const Host& host,
                            int threads) {
  if (!plan.shares_query_axes) return;
  FillQueryAxes task = {&plan, &pool, threads};
  on_threads(host, threads, FillQueryAxes::run_thread, &task);
}

}  // namespace
}  // namespace relpos
