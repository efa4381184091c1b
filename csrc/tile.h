// A head's queries in blocks of rows, its keys in tiles, and which keys a row sees.
//
//     kBlockRows = 64     rows of a block at most (FlashAttention's kBlockM); 128 on a matrix unit
//     kTileKeys  = 256    keys of a tile at most (kBlockN)
//     W = kLanes          tiles are read by whole vectors of W keys
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "offset_window.h"
#include "params.h"

namespace relpos {
namespace {

// The queries of a head, cut into blocks of nearly the same height.
struct HeadBlocks {
  int64_t seqlen_q, num_blocks, block_rows;

  explicit HeadBlocks(int64_t count) : seqlen_q(count) {
    num_blocks = ceil_div(count, kBlockRows);
    block_rows =
        num_blocks ? min(round_up(ceil_div(count, num_blocks), kRowUnit), kBlockRows) : 1;
    num_blocks = ceil_div(count, block_rows);
  }
  int64_t first_row(int64_t block) const { return block * block_rows; }
  int64_t num_rows(int64_t block) const { return min(block_rows, seqlen_q - first_row(block)); }
};

// The keys begin..end-1 that query i of a batch entry may see, by causality, documents, its range, and
// the window of a line; begin <= end.
inline void bound_visible_keys(const Params& params, int64_t b, int64_t i, int64_t& begin,
                               int64_t& end) {
  const Documents& documents = params.documents;
  const int64_t position = params.query_start + i;
  begin = 0, end = params.seqlen_k;
  if (documents.ids) {
    const int64_t query = b * documents.query_batch_stride + i;
    begin = documents.key_begin[query], end = documents.key_end[query];
  }
  if (params.causal) end = min(end, position + 1);
  if (params.key_ranges.ranges) params.key_ranges.limit(b, i, begin, end);
  params.window.limit(position, begin, end);
  end = max(end, begin);
}

// One of them. Row r is the head's query first_row + r.
struct RowBlock {
  int64_t b, h, kv_head;        // batch entry, query head, and the key/value head of that
  int64_t first_row, num_rows;
  int64_t position;             // of the first row; row r has position + r
  // Row r sees keys of key_begin[r]..key_end[r]-1 alone; none outside keys_begin..keys_end-1 is
  // seen by any row.
  int64_t key_begin[kBlockRows], key_end[kBlockRows];
  int64_t keys_begin, keys_end;
  bool same_keys;  // whether all rows see the same keys
};

// The keys begin..begin+num_keys-1, and the rows first_row..end_row-1 of a block: all of them, or a
// strip. Those keys that some of these rows sees lie in from..to-1, counted from `begin`; from < to.
struct KeyTile {
  int64_t begin, num_keys, from, to;
  int64_t first_row, end_row;
  bool whole;  // whether all these rows see all of from..to (if not, they may all the same); of the
              // rest of whole vectors they see nothing

  int64_t num_rows() const { return end_row - first_row; }
  // Of the first and the last row.
  int64_t first_position(const RowBlock& block) const { return block.position + first_row; }
  int64_t last_position(const RowBlock& block) const { return block.position + end_row - 1; }

  int64_t key(int64_t n) const { return begin + n; }
  // The part of from..to-1 that row r sees, row_from..row_to-1; row_from >= row_to if none.
  int64_t row_from(const RowBlock& block, int64_t r) const {
    return clamp(block.key_begin[r] - begin, from, to);
  }
  int64_t row_to(const RowBlock& block, int64_t r) const {
    return clamp(block.key_end[r] - begin, from, to);
  }
  // from..to in whole vectors.
  int64_t vector_from() const { return round_down(from, kKeyUnit); }
  int64_t vector_to() const { return round_up(to, kKeyUnit); }
  // The columns of a window that these vectors read for the rows of a block: first_column..
  // end_column-1.
  int64_t first_column(const OffsetWindow& window, const RowBlock& block) const {
    return window.vector_column(key(vector_from()), last_position(block));
  }
  int64_t end_column(const OffsetWindow& window, const RowBlock& block) const {
    return window.vector_column(key(vector_to() - kLanes), first_position(block)) +
           kLanes;
  }
};

// Cut a tile to the strip of `rows` rows from `first_row` on; false if these see none of its keys.
inline bool cut_to_strip(const RowBlock& block, int64_t first_row, int64_t rows, KeyTile& tile) {
  const KeyTile all = tile;
  tile.first_row = first_row, tile.end_row = min(first_row + rows, all.end_row);
  if (all.whole) return true;
  tile.from = all.to, tile.to = all.from;
  int64_t last_from = all.from, first_to = all.to;
  for (int64_t r = first_row; r < tile.end_row; ++r) {
    const int64_t from = all.row_from(block, r), to = all.row_to(block, r);
    if (from < to) tile.from = min(tile.from, from), tile.to = max(tile.to, to);
    last_from = max(last_from, from), first_to = min(first_to, to);
  }
  tile.whole = last_from == tile.from && first_to == tile.to;
  return tile.from < tile.to;
}

// Where the offsets of all rows of a block and all keys of a tile lie: at or left of the low end of
// a window, where its tables are constant; some on it; or at or right of its high end.
enum Region { kLeft, kBand, kRight };

inline Region region_of(const OffsetWindow& window, const RowBlock& block, const KeyTile& tile) {
  if (tile.key(tile.to - 1) - tile.first_position(block) <= window.low) return kLeft;
  if (tile.key(tile.from) - tile.last_position(block) >= window.high) return kRight;
  return kBand;
}

}  // namespace
}  // namespace relpos
