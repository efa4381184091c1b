// The term scale * k_j . Q[j-i]: the table of queries is dotted with the keys (DeBERTa's
// position-to-content).
//
// As with the table of keys, but by keys in place of queries: chunk_scores has a row for each key
// of a chunk of kKeyChunk = 32, and in it a number for each offset; transposed squares of it are
// added to the scores. Left and right of the window one number for each key is enough.
//
//     scores          (rows, kTileStride), rows of the block and keys of the tile
//     chunk_scores    (kKeyChunk, kBufferStride), keys of the chunk and columns of the query window
//     keys            (tile.to, padded_head_dim), `keys_stride` apart
#pragma once

#include <stdint.h>

#include "config.h"
#include "gemm.h"
#include "grid_queries.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "tile.h"

namespace relpos {
namespace {

struct QueriesTerm : GridQueries {
  using GridQueries::GridQueries;

  // Where the chunks of a tile begin: with a matrix unit at whole ones.
  static int64_t first_chunk(const KeyTile& tile) {
    return kTiles ? tile.vector_from() : tile.from;
  }

  // The part of a tile from key `at` on that lies in one region: as long as may be left or right of
  // the window, one chunk on it. As a KeyTile of the same keys with its own from..to.
  KeyTile next_chunk(const RowBlock& block, const KeyTile& tile, int64_t at,
                     Region& region) const {
    KeyTile chunk = tile;
    chunk.from = at, chunk.to = min(at + kKeyChunk, tile.to);
    region = region_of(plan.query_window, block, chunk);
    while (region != kBand && chunk.to < tile.to) {
      KeyTile longer = chunk;
      longer.to = min(chunk.to + kKeyChunk, tile.to);
      if (region_of(plan.query_window, block, longer) != region) break;
      chunk = longer;
    }
    return chunk;
  }

  void add_queries_term(const RowBlock& block, const KeyTile& tile, float* scores) {
    int64_t keys_stride = 0;
    const float* keys = kTiles ? nullptr : tile_keys(block, tile, &keys_stride);
    Region region;
    for (int64_t at = first_chunk(tile); at < tile.to;) {
      const KeyTile chunk = next_chunk(block, tile, at, region);
      if (region != kBand)
        add_queries_term_beyond(block, chunk, region, keys, keys_stride, scores);
      else if (plan.few_queries)
        add_queries_term_by_pair(block, chunk, keys, keys_stride, scores);
      else
        add_queries_term_on_band(block, chunk, keys, keys_stride, scores);
      at = chunk.to;
    }
  }

  // Left or right of the window: the same number for all rows.
  void add_queries_term_beyond(const RowBlock& block, const KeyTile& chunk, Region region,
                               const float* keys, int64_t keys_stride, float* scores) {
    const OffsetWindow& window = plan.query_window;
    float* const scaled_row = work.row_scratch;
    read_table_row(params.tables[kQueries], params.dtype, window, block.h,
                   region == kLeft ? window.low_column() : window.high_column(),
                   plan.padded_head_dim, scaled_row);
    for (int64_t n = 0; n < plan.padded_head_dim; ++n) scaled_row[n] *= params.scale;
    float* const by_key = work.key_scratch;
    if (plan.few_queries)
      for (int64_t n = chunk.from; n < chunk.to; ++n)
        by_key[n] = dot(scaled_row, keys + n * keys_stride, plan.padded_head_dim);
    else
      multiply_row_by_keys(chunk, scaled_row, by_key);
    for (int64_t r = chunk.first_row; r < chunk.end_row; ++r)
      for (int64_t n = chunk.from; n < chunk.to; ++n) scores[r * kTileStride + n] += by_key[n];
  }

  // A row (padded_head_dim) times the keys of a chunk.
  void multiply_row_by_keys(const KeyTile& chunk, const float* row, float* by_key) {
#if RELPOS_TILES
    const int64_t dim = params.head_dim, first = round_down(chunk.from, kTileSide);
    pack_query_rows(row, plan.padded_head_dim, 1, dim, work.chunk_panels);
    gemm_packed(1, chunk.to - first, dim, work.chunk_panels,
                work.key_panels + chunk.key(first) * packed_depth(dim), work.chunk_scores,
                kBufferStride);
    for (int64_t n = chunk.from; n < chunk.to; ++n)
      by_key[n] = plan.score_factor * work.chunk_scores[n - first];
#else
    for (int64_t n = round_down(chunk.from, kNR); n < chunk.to; n += kNR)
      register_rows<kNRVectors, kRowMajor, false>(
          1, params.head_dim, row, 0, work.key_panels + chunk.key(n) * params.head_dim, kNR,
          by_key + n, 0);
#endif
  }

  // For few queries: the table is read where it lies, a row for each pair.
  void add_queries_term_by_pair(const RowBlock& block, const KeyTile& chunk, const float* keys,
                                int64_t keys_stride, float* scores) {
    for (int64_t r = chunk.first_row; r < chunk.end_row; ++r)
      for (int64_t n = chunk.from; n < chunk.to; ++n) {
        const int64_t column = plan.query_window.pair_column(chunk.key(n), block.position + r);
        scores[r * kTileStride + n] +=
            params.scale *
            dot(keys + n * keys_stride,
                selected_row(kQueries, block.h, column, work.row_scratch), plan.padded_head_dim);
      }
  }

  // On the window: chunk_scores = k Q^T, which is then sheared.
  void add_queries_term_on_band(const RowBlock& block, const KeyTile& chunk, const float* keys,
                                int64_t keys_stride, float* scores) {
    const WindowTable& table = window_table(kQueries, block.h);
    const int64_t count = chunk.to - chunk.from;
    const int64_t first_column = round_down(first_chunk_column(block, chunk), kNR);
#if RELPOS_TILES
    (void)keys, (void)keys_stride;
    copy_key_rows(block, chunk, chunk.from);
#else
    pack_rows(keys + chunk.from * keys_stride, keys_stride, count, params.head_dim,
              work.chunk_panels);
#endif
    gemm_packed(count, end_chunk_column(block, chunk) - first_column, params.head_dim,
                work.chunk_panels, table.panels + first_column * packed_depth(params.head_dim),
                work.chunk_scores, kBufferStride);
    add_sheared_by_key(params.scale, work.chunk_scores, first_column, plan.query_window,
                       chunk.key(chunk.from), count, chunk.first_position(block),
                       chunk.num_rows(), scores + chunk.first_row * kTileStride + chunk.from,
                       kTileStride);
  }

#if RELPOS_TILES
  // A chunk's keys in work.chunk_panels (keys, P, head_dim), with zeros for those before
  // `first_seen`, and after the last up to kKeyChunk.
  void copy_key_rows(const RowBlock& block, const KeyTile& chunk, int64_t first_seen) {
    const int64_t dim = params.head_dim, depth = part_depth(dim);
    int64_t stride;
    const packed* keys =
        read_split_rows(params.k, block.b, block.kv_head, chunk.key(chunk.from),
                        min(kKeyChunk, chunk.to - chunk.from), dim, &stride);
    for (int64_t n = 0; n < kKeyChunk; ++n)
      for (int64_t part = 0; part < kParts; ++part) {
        packed* to = work.chunk_panels + (n * kParts + part) * depth;
        const bool seen = chunk.from + n >= first_seen && chunk.from + n < chunk.to;
        const int64_t count = seen ? dim : 0;
        if (count) __builtin_memcpy(to, keys + n * stride + part * depth, (uint64_t)(2 * count));
        __builtin_memset(to + count, 0, (uint64_t)(2 * (depth - count)));
      }
  }
#endif

  // The columns that whole vectors of queries read for these keys.
  int64_t first_chunk_column(const RowBlock& block, const KeyTile& chunk) const {
    return plan.query_window.vector_column(
        chunk.key(chunk.from),
        chunk.first_position(block) + round_up(chunk.num_rows(), kLanes) - 1);
  }
  int64_t end_chunk_column(const RowBlock& block, const KeyTile& chunk) const {
    return plan.query_window.vector_column(chunk.key(chunk.to - 1),
                                           chunk.first_position(block) + kLanes - 1) +
           kLanes;
  }
};

}  // namespace
}  // namespace relpos
