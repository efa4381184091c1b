// Numbers by offset, and the shear that turns them into numbers by key and back.
//
// An offset buffer holds, for each row (query) of a block, one number for each offset around the
// current tile; it moves along an OffsetWindow from left to right, tile by tile.
//
//     read      row r's number for key j is at column (j - position of r): a tile is a view of the
//               buffer whose rows start one column earlier each (Huang's skew, without a copy)
//     written   the adjoint: numbers by key added up by offset, on their way to the rows of a table
//
// W = kLanes. A column is one of the window's: the offset window.base + column.
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "offset_window.h"
#include "simd.h"

namespace relpos {
namespace {

struct OffsetBuffer {
  float* data = nullptr;  // (kForwardStripRows or kStripRows, kBufferStride)
  int64_t first_row = 0;  // of the block, at data[0]
  bool started = false;   // whether the current block has put columns into it
  int64_t origin = 0;     // the window's column that is at data[0]
  int64_t end = 0;        // the columns origin..end-1 hold something

  // Row r, to be indexed by the window's columns.
  const float* row(int64_t r) const { return data + (r - first_row) * kBufferStride - origin; }
  float* row(int64_t r) { return data + (r - first_row) * kBufferStride - origin; }

  void reset() { started = false, origin = end = 0; }
  void start_at(int64_t column) { started = true, origin = end = column; }

  // For sums: make room for the columns from..to-1, new ones zero. Those before are complete: when
  // they must make way, flush(begin, end) is called for them first.
  template <class Flush>
  void ensure_columns(int64_t from, int64_t to, int64_t rows, const Flush& flush) {
    if (!started) start_at(from);
    if (to - origin > kBufferColumns) {
      flush(origin, min(from, end));
      drop_before(from, rows);
    }
    if (to > end) append_zeros(to, rows);
  }

  // For numbers: make room for the columns from..to-1, and return the first that is not there yet,
  // `to` if none. The caller computes them from there on, and sets `end`.
  int64_t first_missing(int64_t from, int64_t to, int64_t rows) {
    if (!started || end < from) start_at(from);
    if (to - origin > kBufferColumns) drop_before(from, rows);
    return min(end, to);
  }

  // Forget the columns before `column`; the others move to the front.
  void drop_before(int64_t column, int64_t rows) {
    const int64_t kept = max(end - column, 0);
    for (int64_t r = 0; r < rows && kept > 0; ++r) {
      float* to = data + r * kBufferStride;
      const float* from = to + (column - origin);
      for (int64_t n = 0; n < kept; ++n) to[n] = from[n];
    }
    origin = column;
    end = max(end, column);
  }

  void append_zeros(int64_t to, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) fill(row(r) + end, to - end, 0);
    end = to;
  }
};

// x (count) += by_offset, for the keys from `key` on and the query at `position`; by_offset, a row
// by offset, is indexed by the window's columns. Whole vectors are read and written. (Each starts
// at its vector_column, spelt out here: after a store the window would have to be read again.)
inline void add_sheared(const float* by_offset, const OffsetWindow& window, int64_t key,
                        int64_t position, int64_t count, float* x) {
  const int64_t first_column = key - position - window.base;
  const int64_t last_column = window.num_columns - kLanes;
  for (int64_t n = 0; n < count; n += kLanes)
    store(x + n, load(x + n) + load(by_offset + clamp(first_column + n, 0, last_column)));
}

// The adjoint: by_offset += x.
inline void accumulate_sheared(const float* x, const OffsetWindow& window, int64_t key,
                               int64_t position, int64_t count, float* by_offset) {
  const int64_t first_column = key - position - window.base;
  const int64_t last_column = window.num_columns - kLanes;
  for (int64_t n = 0; n < count; n += kLanes) {
    float* to = by_offset + clamp(first_column + n, 0, last_column);
    store(to, load(to) + load(x + n));
  }
}

// The same where the rows by offset belong to keys, not queries: each further query is one column
// earlier, so squares of W keys and W queries are read and transposed.
//
//     by_key (num_keys, kBufferStride): rows for the keys from `key` on, columns from first_column
//     x (num_queries, x_stride): rows for the queries from `position` on, columns for these keys
//
// x += factor * by_key. Rows of by_key are read, and numbers of x written, up to the next whole
// vector of keys.
inline void add_sheared_by_key(float factor, const float* by_key, int64_t first_column,
                               const OffsetWindow& window, int64_t key, int64_t num_keys,
                               int64_t position, int64_t num_queries, float* x, int64_t x_stride) {
  for (int64_t c = 0; c < num_keys; c += kLanes)
    for (int64_t r = 0; r < num_queries; r += kLanes) {
      // Rows: keys, with the queries backwards in each; transposed: queries, the last one first.
      vfloat square[kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n)
        square[n] =
            load(by_key + (c + n) * kBufferStride +
                 window.vector_column(key + c + n, position + r + kLanes - 1) - first_column);
      transpose(square);
      float* to = x + r * x_stride + c;
      for (int64_t n = 0; n < min(kLanes, num_queries - r); ++n)
        store(to + n * x_stride, load(to + n * x_stride) + factor * square[kLanes - 1 - n]);
    }
}

// The adjoint: by_key += factor * x.
inline void accumulate_sheared_by_key(float factor, float* by_key, int64_t first_column,
                                      const OffsetWindow& window, int64_t key, int64_t num_keys,
                                      int64_t position, int64_t num_queries, const float* x,
                                      int64_t x_stride) {
  for (int64_t c = 0; c < num_keys; c += kLanes)
    for (int64_t r = 0; r < num_queries; r += kLanes) {
      vfloat square[kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n)
        square[kLanes - 1 - n] =
            r + n < num_queries ? load(x + (r + n) * x_stride + c) : vfloat{};
      transpose(square);
      for (int64_t n = 0; n < min(kLanes, num_keys - c); ++n) {
        float* to = by_key + (c + n) * kBufferStride +
                    window.vector_column(key + c + n, position + r + kLanes - 1) - first_column;
        store(to, load(to) + factor * square[n]);
      }
    }
}

}  // namespace
}  // namespace relpos
