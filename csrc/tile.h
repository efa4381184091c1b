// A block of rows (queries of one head), a tile of keys, and which keys a row sees.
//
//     kBlockRows = 64     rows of a block at most (FlashAttention's kBlockM)
//     kTileKeys  = 256    keys of a tile at most (kBlockN)
//     W = kLanes          tiles are read by whole vectors of W keys
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "offset_window.h"

namespace relpos {
namespace {

struct RowBlock {
  int64_t b, h, kv_head;
  int64_t first_row, num_rows;  // among the head's queries
  int64_t position;             // of the first row; row r has position + r
  // Row r sees keys of key_begin[r]..key_end[r]-1 alone; none outside keys_begin..keys_end-1 is
  // seen by any row.
  int64_t key_begin[kBlockRows], key_end[kBlockRows];
  int64_t keys_begin, keys_end;
  // What the tables of keys and bias add to a row's scores to the left and right of their window.
  float score_left[kBlockRows], score_right[kBlockRows];

  int64_t last_position() const { return position + num_rows - 1; }
};

// The keys begin..begin+num_keys-1, of which from..to-1 (counted from `begin`) some row sees.
struct KeyTile {
  int64_t begin, num_keys, from, to;

  int64_t key(int64_t n) const { return begin + n; }
  // The part that row r sees; row_from >= row_to if none.
  int64_t row_from(const RowBlock& block, int64_t r) const {
    return clamp(block.key_begin[r] - begin, 0, num_keys);
  }
  int64_t row_to(const RowBlock& block, int64_t r) const {
    return clamp(block.key_end[r] - begin, 0, num_keys);
  }
  // from..to in whole vectors.
  int64_t vector_from() const { return round_down(from, kLanes); }
  int64_t vector_to() const { return round_up(to, kLanes); }
  // The columns of a window that these vectors read, for all rows.
  int64_t first_column(const OffsetWindow& window, const RowBlock& block) const {
    return window.vector_column(key(vector_from()), block.last_position());
  }
  int64_t end_column(const OffsetWindow& window, const RowBlock& block) const {
    return window.vector_column(key(vector_to() - kLanes), block.position) + kLanes;
  }
};

// Where a tile lies for all rows of a block: at or left of a window, where its tables are constant;
// on it; or at or right of it.
enum Region { kLeft, kBand, kRight };

inline Region region_of(const OffsetWindow& window, const RowBlock& block, const KeyTile& tile) {
  if (tile.key(tile.to - 1) - block.position <= window.low) return kLeft;
  if (tile.key(tile.from) - block.last_position() >= window.high) return kRight;
  return kBand;
}

}  // namespace
}  // namespace relpos
