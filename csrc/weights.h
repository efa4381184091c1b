// Weights of a tile of scores, p or ds, rounded to bfloat16 numbers, as products read them.
//
//     rows     (kForwardStripRows or kStripRows, P, kWeightStride), of a strip
//     pairs    (kBlockRows / 2, P, kWeightStride, 2), two rows side by side, of a block; in sheared
//              pairs the second number is that of the next key
//
// P = kParts, as in tile_products.h.
//
// Each row has zeros before it and after it. By offset, where a row begins one key further than
// the row before, they are read at a stride that is one key longer: nothing is copied.
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "offset_window.h"
#include "tile.h"
#include "tile_products.h"

namespace relpos {
namespace {

#if RELPOS_TILES

inline void clear_weights(packed* at, int64_t count) {
  if (count > 0) __builtin_memset(at, 0, (uint64_t)(2 * count));
}

// Row r of rows of weights, from the tile's key 0 on; and the pair of rows r and r + 1.
inline packed* weight_row(packed* rows, int64_t r) {
  return rows + kWeightMargin + r * kParts * kWeightStride;
}
inline packed* weight_pairs(packed* pairs, int64_t r) {
  return pairs + 2 * kWeightMargin + r * kParts * kWeightStride;
}

// The whole row; and its keys outside a tile's.
inline void clear_row(packed* row) {
  for (int64_t part = 0; part < kParts; ++part) clear_weights(row + part * kWeightStride, kTileKeys);
}
inline void clear_around(packed* row, const KeyTile& tile) {
  for (int64_t part = 0; part < kParts; ++part, row += kWeightStride) {
    clear_weights(row, tile.vector_from());
    clear_weights(row + tile.vector_to(), kTileKeys - tile.vector_to());
  }
}

// The same of a pair of rows, of which sheared ones have a vector of keys more.
inline void clear_pairs_around(packed* pairs, int64_t from, int64_t to) {
  for (int64_t part = 0; part < kParts; ++part, pairs += 2 * kWeightStride) {
    clear_weights(pairs - 2 * kLanes, 2 * (from + kLanes));
    clear_weights(pairs + 2 * to, 2 * (kTileKeys - to));
  }
}

// Two vectors of keys of a row, from one key on; one of a row; and one of a pair of rows.
inline void store_weights(packed* row, const Parts& of) {
  for (int64_t part = 0; part < kParts; ++part)
    store_pairs(row + part * kWeightStride, of.parts[part]);
}
inline void store_first_row(packed* row, const Parts& of) {
  for (int64_t part = 0; part < kParts; ++part)
    store_half(row + part * kWeightStride, first_half(of.parts[part]));
}
inline void store_second_row(packed* row, const Parts& of) {
  for (int64_t part = 0; part < kParts; ++part)
    store_half(row + part * kWeightStride, second_half(of.parts[part]));
}
inline void store_weight_pairs(packed* pairs, const Parts& of) {
  for (int64_t part = 0; part < kParts; ++part)
    store_pairs(pairs + 2 * part * kWeightStride, pair_up(of.parts[part]));
}

// C (rows of the tile, dim) += weights of a strip times the rows of all keys, given as pairs
// (seqlen_k / 2, P, dim, 2). Of whole units of keys at either end, those that no row sees are left out:
// they may be anything. edge (kKeyUnit / 2, P, dim, 2) is for these.
inline void multiply_rows(const KeyTile& tile, packed* weights, const packed* pairs, int64_t dim,
                          packed* edge, const TilesOfC& c) {
  const int64_t row_size = kParts * dim;
  const auto add = [&](int64_t from, int64_t to, const packed* first_pairs) {
    multiply(tiles_of(tile.num_rows()), tiles_of(dim), (to - from) / kKeyUnit,
             rows_of_a(weight_row(weights, 0) + from, kWeightStride),
             pairs_of_b(first_pairs, dim), c, FromC{});
  };
  int64_t from = tile.vector_from(), to = tile.vector_to();
  while (from < to && (from < tile.from || to > tile.to)) {
    const int64_t unit = from < tile.from ? from : to - kKeyUnit;
    const packed* const given = pairs + tile.key(unit) * row_size;
    for (int64_t n = 0; n < kKeyUnit; ++n) {
      const bool seen = unit + n >= tile.from && unit + n < tile.to;
      for (int64_t k = n % 2, row = n / 2 * 2 * row_size; k < 2 * row_size; k += 2)
        edge[row + k] = seen ? given[row + k] : (packed)0;
    }
    add(unit, unit + kKeyUnit, edge);
    unit == from ? from += kKeyUnit : to -= kKeyUnit;
  }
  if (from < to) add(from, to, pairs + tile.key(from) * row_size);
}

// C (rows of the tile, dim) += the weights by offset times the rows of a table that the offsets
// select: pairs (columns / 2, P, dim, 2) for the columns of a window.
inline void multiply_sheared_rows(const RowBlock& block, const KeyTile& tile,
                                  const OffsetWindow& window, packed* weights,
                                  const packed* table_pairs, int64_t dim, const TilesOfC& c) {
  const int64_t last_group = window.num_columns / kTileDepth - 1;
  for (int64_t r = 0; r < tile.num_rows(); r += kTileSide) {
    // Column n is that of the tile's key n + first_key for row r, and of the next key for each
    // further row.
    const int64_t position = tile.first_position(block) + r;
    const int64_t first_key = window.base + position - tile.begin;
    const int64_t first = floor_div(tile.from - first_key - (kTileSide - 1), kTileDepth);
    const int64_t end = floor_div(tile.to - 1 - first_key, kTileDepth) + 1;
    const TilesOfC rows = {c.data + r / kTileSide * c.row_step, c.stride, c.row_step};
    const auto add = [&](int64_t group, int64_t count, int64_t table_group, int64_t step) {
      if (count <= 0) return;
      TilesOfB b = pairs_of_b(table_pairs + table_group * kTileDepth * kParts * dim, dim);
      b.depth_step *= step;
      const packed* a = weight_row(weights, r) + group * kTileDepth + first_key;
      multiply(1, tiles_of(dim), count, rows_of_a(a, kWeightStride, 1), b, rows, FromC{});
    };
    // Beyond either end of the window all columns select its end row.
    const int64_t low_end = clamp(0, first, end), high = clamp(last_group + 1, low_end, end);
    add(first, low_end - first, 0, 0);
    add(low_end, high - low_end, low_end, 1);
    add(high, end - high, last_group, 0);
  }
}

// Which strips of a block see keys of a tile, and which: from..to-1 in whole units; empty for the
// others.
struct StripKeys {
  int64_t from[kBlockRows / kStripRows], to[kBlockRows / kStripRows];
  bool on_band[kBlockRows / kStripRows];  // of the window in question
};

// Round the rows of a strip, (kStripRows, kTileStride) floats with zeros where a row sees nothing:
// the keys of the tile's whole units to `rows` and `pairs`, those around them zeros. Either may be
// null.
inline void round_weights(const float* strip, const KeyTile& tile, packed* rows, packed* pairs) {
  const int64_t from = tile.vector_from(), to = tile.vector_to();
  for (int64_t r = 0; r < kStripRows; r += 2) {
    const float *x = strip + r * kTileStride, *y = x + kTileStride;
    packed* const x_row = rows ? weight_row(rows, r) : nullptr;
    packed* const y_row = rows ? weight_row(rows, r + 1) : nullptr;
    packed* const both = pairs ? weight_pairs(pairs, tile.first_row + r) : nullptr;
    if (rows) clear_around(x_row, tile), clear_around(y_row, tile);
    if (pairs) clear_pairs_around(both, from, to);
    for (int64_t n = from; n < to; n += kLanes) {
      const Parts of(load(x + n), load(y + n));
      if (rows) store_first_row(x_row + n, of);
      if (rows) store_second_row(y_row + n, of);
      if (pairs) store_weight_pairs(both + 2 * n, of);
    }
  }
}

// Sheared pairs of the rows of a strip.
inline void shear_pairs(packed* rows, const KeyTile& tile, packed* sheared_pairs) {
  const int64_t from = tile.vector_from() - kLanes, to = tile.vector_to();
  for (int64_t r = 0; r < kStripRows; r += 2) {
    const packed *x = weight_row(rows, r), *y = weight_row(rows, r + 1) + 1;
    packed* const both = weight_pairs(sheared_pairs, tile.first_row + r);
    clear_pairs_around(both, from, to);
    for (int64_t part = 0; part < kParts; ++part)
      for (int64_t n = from; n < to; n += kLanes)
        store_pairs(both + 2 * (part * kWeightStride + n),
                    pair_up(join(load_half(x + part * kWeightStride + n),
                                 load_half(y + part * kWeightStride + n))));
  }
}

inline void clear_pairs(int64_t first_row, packed* pairs) {
  for (int64_t r = 0; r < kStripRows; r += 2)
    clear_pairs_around(weight_pairs(pairs, first_row + r), 0, 0);
}

// Sums (keys / 16, dim, 16) from key 0 of the tile on += weights^T times the rows of the block,
// given transposed (dim, P, kBlockRows).
inline void multiply_pairs(const KeyTile& tile, const StripKeys& strips, packed* pairs,
                           const packed* transposed, int64_t dim, float* sums) {
  const auto sees = [&](int64_t strip, int64_t n) {
    return strips.from[strip] < n + kTileDepth && strips.to[strip] > n;
  };
  constexpr int64_t kStrips = kBlockRows / kStripRows;
  for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kTileDepth) {
    int64_t first = 0, end = kStrips;
    while (first < kStrips && !sees(first, n)) ++first;
    while (end > first && !sees(end - 1, n)) --end;
    if (first == end) continue;
    const TilesOfB b = pairs_of_b(weight_pairs(pairs, first * kStripRows) + 2 * n, kWeightStride);
    multiply(tiles_of(dim), 2, end - first,
             rows_of_a(transposed + first * kStripRows, kBlockRows), b,
             panels_of_c(sums + n * dim, dim), FromC{});
  }
}

// Sums (columns / 16, dim, 16) of a window's columns += the same by offset, for strips on the band.
inline void multiply_sheared_pairs(const RowBlock& block, const KeyTile& tile,
                                   const StripKeys& strips, const OffsetWindow& window,
                                   packed* sheared_pairs, const packed* transposed, int64_t dim,
                                   float* sums) {
  constexpr int64_t kStrips = kBlockRows / kStripRows;
  // Column n is that of the tile's key n + first_key for the block's row 0.
  const int64_t first_key = window.base + block.position - tile.begin;
  const int64_t last_group = window.num_columns / kTileDepth - 1;
  const auto sees = [&](int64_t strip, int64_t group) {
    const int64_t n = kTileDepth * (group + strip) + first_key;
    return strips.on_band[strip] && strips.from[strip] < strips.to[strip] &&
           n < strips.to[strip] && n + 2 * kTileDepth - 1 > strips.from[strip];
  };
  const int64_t first_group = floor_div(tile.from - first_key, kTileDepth) - kStrips - 1;
  const int64_t end_group = floor_div(tile.to - first_key, kTileDepth) + 1;
  for (int64_t group = first_group; group < end_group; ++group) {
    int64_t first = 0, end = kStrips;
    while (first < kStrips && !sees(first, group)) ++first;
    while (end > first && !sees(end - 1, group)) --end;
    if (first == end) continue;
    const TilesOfB b = pairs_of_b(weight_pairs(sheared_pairs, first * kStripRows) +
                                      2 * (kTileDepth * (group + first) + first_key),
                                  kWeightStride, 2);
    multiply(tiles_of(dim), 2, end - first,
             rows_of_a(transposed + first * kStripRows, kBlockRows), b,
             panels_of_c(sums + clamp(group, 0, last_group) * kTileDepth * dim, dim), FromC{});
  }
}

#endif

}  // namespace
}  // namespace relpos
