// What a block of rows reads: its queries, keys and values as floats, packed or as they lie, and
// the tables of its head.
//
//     (count, padded_dim)     rows of floats, zeros after the first `dim` of each
//     (count / NR, dim, NR)   panels: packed columns (gemm.h)
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "plan.h"
#include "simd.h"
#include "tile.h"
#include "tile_products.h"
#include "workspace.h"

namespace relpos {
namespace {

struct BlockInputs {
  const Plan& plan;
  const Params& params;
  Workspace work;

  BlockInputs(const Plan& p, Workspace w) : plan(p), params(p.params), work(w) {}

  // ---- rows of q, k, v ------------------------------------------------------------------------

  // scale * x[b, h, first..first+count-1] as floats: to (count, padded_dim).
  void read_rows(const TensorView& x, Dtype dtype, int64_t b, int64_t h, int64_t first,
                 int64_t count, int64_t dim, int64_t padded_dim, float scale, float* to) {
    for (int64_t n = 0; n < count; ++n) {
      convert_to_float(x.data, dtype, x.row_start(b, h, first + n), dim, scale,
                       to + n * padded_dim);
      fill(to + n * padded_dim + dim, padded_dim - dim, 0);
    }
  }

  // Rows of k or v from the first key of the tile on, (tile.to, padded_dim), *stride apart: as they
  // lie if they are floats and whole vectors, else in copy (kTileKeys, padded_dim).
  const float* tile_rows(const TensorView& x, const RowBlock& block, const KeyTile& tile,
                         int64_t dim, int64_t padded_dim, float* copy, int64_t* stride) {
    if (params.dtype == Dtype::f32 && dim == padded_dim) {
      *stride = x.strides[2];
      return (const float*)x.data + x.row_start(block.b, block.kv_head, tile.begin);
    }
    *stride = padded_dim;
    read_rows(x, params.dtype, block.b, block.kv_head, tile.begin, tile.to, dim, padded_dim, 1,
              copy);
    return copy;
  }

  const float* tile_keys(const RowBlock& block, const KeyTile& tile, int64_t* stride) {
    return tile_rows(params.k, block, tile, params.head_dim, plan.padded_head_dim, work.key_tile,
                     stride);
  }
  const float* tile_values(const RowBlock& block, const KeyTile& tile, int64_t* stride) {
    return tile_rows(params.v, block, tile, params.value_dim, plan.padded_value_dim,
                     work.value_tile, stride);
  }

  // The rows from..to-1 of a head of k or v, in whole panels: panels (seqlen_k / NR, dim, NR),
  // zeros after the last row.
#if RELPOS_TILES
  void pack_columns(const TensorView& x, int64_t b, int64_t kv_head, int64_t from, int64_t to,
                    int64_t dim, packed* panels) {
    for (int64_t j = from; j < to; j += kTileDepth) {
      const int64_t count = min(kTileDepth, params.seqlen_k - j);
      int64_t stride;
      const packed* rows = read_split_rows(x, b, kv_head, j, count, dim, &stride);
      pack_panels(rows, stride, count, dim, panels + j * packed_depth(dim));
    }
  }
  // The same as pairs (seqlen_k / 2, P, padded_dim, 2).
  void pack_pairs_of(const TensorView& x, int64_t b, int64_t kv_head, int64_t from, int64_t to,
                     int64_t dim, int64_t padded_dim, packed* pairs) {
    for (int64_t j = from; j < to; j += kTileDepth) {
      const int64_t count = min(kTileDepth, params.seqlen_k - j);
      int64_t stride;
      const packed* rows = read_split_rows(x, b, kv_head, j, count, dim, &stride);
      pack_pairs(rows, stride, count, dim, padded_dim, pairs + j * kParts * padded_dim);
    }
  }

  // At most kTileDepth rows of k or v from row `first` on, (count, P, part_depth), *stride apart: as
  // they lie where they are not split, else in work.split_rows.
  const packed* read_split_rows(const TensorView& x, int64_t b, int64_t kv_head, int64_t first,
                                int64_t count, int64_t dim, int64_t* stride) {
    if constexpr (kParts == 1) {
      *stride = x.strides[2];
      return (const packed*)x.data + x.row_start(b, kv_head, first);
    }
    *stride = packed_depth(dim);
    for (int64_t n = 0; n < count; ++n) {
      convert_to_float(x.data, params.dtype, x.row_start(b, kv_head, first + n), dim, 1,
                       work.row_scratch);
      split_row(work.row_scratch, dim, 1, part_depth(dim), work.split_rows + n * *stride);
    }
    return work.split_rows;
  }
#else
  void pack_columns(const TensorView& x, int64_t b, int64_t kv_head, int64_t from, int64_t to,
                    int64_t dim, float* panels) {
    for (int64_t j = from; j < to; j += kNR) {
      float* panel = panels + j * dim;
      const int64_t count = min(kNR, params.seqlen_k - j);
      if (params.dtype == Dtype::f32) {
        const float* rows = (const float*)x.data + x.row_start(b, kv_head, j);
        pack_panel(rows, x.strides[2], count, dim, panel);
        continue;
      }
      if (count < kNR) fill(panel, dim * kNR, 0);
      for (int64_t n = 0; n < count; ++n) {
        convert_to_float(x.data, params.dtype, x.row_start(b, kv_head, j + n), dim, 1,
                         work.row_scratch);
        for (int64_t k = 0; k < dim; ++k) panel[k * kNR + n] = work.row_scratch[k];
      }
    }
  }
#endif

  // Pack those of the head's keys and values that the block sees and that are not packed yet.
  void pack_head(const RowBlock& block) {
    work.packed_keys.grow(block.b, block.kv_head, block.keys_begin, block.keys_end, kNR,
                          [&](int64_t from, int64_t to) { pack_keys(block, from, to); });
  }

  void pack_keys(const RowBlock& block, int64_t from, int64_t to) {
    if (!plan.few_queries)
      pack_columns(params.k, block.b, block.kv_head, from, to, params.head_dim, work.key_panels);
    if (plan.backward)
      pack_columns(params.v, block.b, block.kv_head, from, to, params.value_dim,
                   work.value_panels);
#if RELPOS_TILES
    if (plan.backward)
      pack_pairs_of(params.k, block.b, block.kv_head, from, to, params.head_dim,
                    plan.padded_head_dim, work.key_pairs);
    else
      pack_pairs_of(params.v, block.b, block.kv_head, from, to, params.value_dim,
                    plan.padded_value_dim, work.value_pairs);
#endif
  }

  // Fill the block, work.q and work.q_rel.
  void read_block(RowBlock& block, int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    block.b = b, block.h = h, block.kv_head = h / params.heads_per_kv_head();
    block.first_row = first_row, block.num_rows = num_rows;
    block.position = params.query_start + first_row;
    read_rows(params.q, params.dtype, b, h, first_row, num_rows, params.head_dim,
              plan.padded_head_dim, params.scale, work.q);
    pack_query_rows(work.q, plan.padded_head_dim, num_rows, params.head_dim, work.q_panels);
    if (params.has_q_rel()) {
      read_rows(params.q_rel, params.dtype, b, h, first_row, num_rows, params.rel_dim,
                plan.padded_rel_dim, params.scale, work.q_rel);
      if (!params.grid.num_axes)
        pack_query_rows(work.q_rel, plan.padded_rel_dim, num_rows, params.rel_dim,
                        work.q_rel_panels);
    }
    limit_keys(block);
  }

  // x (num_rows, padded_dim), which has the scale, packed with query_factor in its place.
  void pack_query_rows(const float* x, int64_t padded_dim, int64_t num_rows, int64_t dim,
                       packed* to) const {
#if RELPOS_TILES
    pack_rows(x, padded_dim, num_rows, dim, to, 1 / plan.score_factor);
#else
    pack_rows(x, padded_dim, num_rows, dim, to);
#endif
  }

  void limit_keys(RowBlock& block) {
    for (int64_t r = 0; r < block.num_rows; ++r)
      bound_visible_keys(params, block.b, block.first_row + r, block.key_begin[r],
                         block.key_end[r]);
  }

  // Between which keys those of all rows lie.
  void bound_keys(RowBlock& block) const {
    block.keys_begin = params.seqlen_k, block.keys_end = 0, block.same_keys = true;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      block.same_keys = block.same_keys && block.key_begin[r] == block.key_begin[0] &&
                        block.key_end[r] == block.key_end[0];
      if (block.key_begin[r] >= block.key_end[r]) continue;
      block.keys_begin = min(block.keys_begin, block.key_begin[r]);
      block.keys_end = max(block.keys_end, block.key_end[r]);
    }
  }

  // Make `tile` the next one of which some row sees keys, the first one if it is empty; false after
  // the last. Keys that no row's range reaches are passed over.
  bool next_tile(const RowBlock& block, KeyTile& tile) const {
    const int64_t after = tile.num_keys ? tile.begin + tile.num_keys : block.keys_begin;
    int64_t first = block.same_keys ? max(after, block.keys_begin) : block.keys_end;
    for (int64_t r = 0; r < block.num_rows && !block.same_keys; ++r)
      if (block.key_end[r] > max(after, block.key_begin[r]))
        first = min(first, max(after, block.key_begin[r]));
    if (first >= block.keys_end) return false;
    tile.first_row = 0, tile.end_row = block.num_rows;
    tile.begin = round_down(first, kNR);
    tile.num_keys = min(kTileKeys, params.seqlen_k - tile.begin);
    tile.from = first - tile.begin, tile.to = tile.num_keys;
    tile.whole = block.same_keys;
    if (tile.whole) {
      tile.to = min(tile.to, block.keys_end - tile.begin);
      return true;
    }
    int64_t to = tile.from;
    for (int64_t r = 0; r < block.num_rows; ++r)
      if (tile.row_from(block, r) < tile.row_to(block, r)) to = max(to, tile.row_to(block, r));
    tile.to = to;
    return true;
  }

  // ---- tables ---------------------------------------------------------------------------------

  // A head's table over its window, filled if it is not yet.
  const WindowTable& window_table(int kind, int64_t head) {
    const OffsetTable& table = params.tables[kind];
    if (table.heads == 1) return plan.tables[kind];
    WindowTable& own = work.tables[kind];
    if (own.head != head) {
      own.head = head;
      for (int64_t n = 0; n < plan.window(kind).num_panels(); ++n)
        own.fill_panel(table, params.dtype, plan.window(kind), n, plan.padded_row_dim(kind),
                       plan.score_factor, work.row_scratch);
    }
    return own;
  }

  // The row of a table that a column selects, (padded_row_dim): as it lies if that is of floats and
  // whole vectors, else a copy.
  const float* selected_row(int kind, int64_t head, int64_t column, float* copy) {
    const OffsetTable& table = params.tables[kind];
    const OffsetWindow& window = plan.window(kind);
    const int64_t padded_dim = plan.padded_row_dim(kind);
    const int64_t row = table_row(table, window, column);
    if (row >= 0 && params.dtype == Dtype::f32 && table.row_dim == padded_dim)
      return (const float*)table.rows +
             (table.head_index(head) * table.num_rows + row) * padded_dim;
    read_table_row(table, params.dtype, window, head, column, padded_dim, copy);
    return copy;
  }

  // ---- sums of a tile -------------------------------------------------------------------------

  // x (rows, kTileStride), numbers by key, added up by offset: on the window in `buffer`, whose
  // complete columns go to flush(begin, end); left and right of it in one sum for each row,
  // left_sums and right_sums (rows).
  template <class Flush>
  void accumulate_by_offset(const RowBlock& block, const KeyTile& tile, const OffsetWindow& window,
                            const float* x, OffsetBuffer& buffer, float* left_sums,
                            float* right_sums, const Flush& flush) {
    const int64_t from = tile.vector_from(), count = tile.vector_to() - from;
    const Region region = region_of(window, block, tile);
    if (region != kBand) {
      float* const sums = region == kLeft ? left_sums : right_sums;
      for (int64_t r = tile.first_row; r < tile.end_row; ++r)
        sums[r] += sum_of(x + r * kTileStride + from, count);
      return;
    }
    buffer.ensure_columns(tile.first_column(window, block), tile.end_column(window, block),
                          block.num_rows, flush);
    for (int64_t r = 0; r < block.num_rows; ++r)
      accumulate_sheared(x + r * kTileStride + from, window, tile.key(from), block.position + r,
                         count, buffer.row(r));
  }
};

}  // namespace
}  // namespace relpos
