// Numbers by offset, and the shear that turns them into numbers by key and back.
//
// An offset buffer holds, for each row (query) of a block, one number for each offset around the
// current tile; it moves along an OffsetWindow from left to right, tile by tile.
//
//     read      row r's number for key j is at column (j - position of r): a tile is a view of the
//               buffer whose rows start one column earlier each (Huang's skew, without a copy)
//     written   the adjoint: sums by offset, on their way to a table's gradient
//
// W = kLanes; a column is one of the window's.
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "offset_window.h"
#include "simd.h"

namespace relpos {
namespace {

struct OffsetBuffer {
  float* data = nullptr;  // (kBlockRows, kBufferStride)
  bool started = false;   // whether a block has put columns into it
  int64_t origin = 0;     // the window's column that is at data[0]
  int64_t end = 0;        // the columns origin..end-1 hold something

  // Row r, to be indexed by the window's columns.
  const float* row(int64_t r) const { return data + r * kBufferStride - origin; }
  float* row(int64_t r) { return data + r * kBufferStride - origin; }

  void reset() { started = false, origin = end = 0; }
  void start_at(int64_t column) { started = true, origin = end = column; }

  // For sums: have the columns from..to-1, new ones zero. The columns before `from` are complete:
  // when room is needed flush(begin, end) is called for them.
  template <class Flush>
  void ensure_columns(int64_t from, int64_t to, int64_t rows, const Flush& flush) {
    if (!started) start_at(from);
    if (to - origin > kBufferColumns) {
      flush(origin, min(from, end));
      drop_before(from, rows);
    }
    if (to > end) append_zeros(to, rows);
  }

  // For scores: make room for the columns from..to-1, and return the first that has to be computed,
  // `to` if none. The caller computes them and sets `end`.
  int64_t first_missing(int64_t from, int64_t to, int64_t rows) {
    if (!started || end < from) start_at(from);
    if (to - origin > kBufferColumns) drop_before(from, rows);
    return min(end, to);
  }

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

// x (count), for the keys from `key` on and the query at `position`, += by_offset, a row of numbers
// by column.
inline void add_sheared(const float* by_offset, const OffsetWindow& window, int64_t key,
                        int64_t position, int64_t count, float* x) {
  const int64_t first = key - position - window.base, last = window.num_columns - kLanes;
  for (int64_t n = 0; n < count; n += kLanes)
    store(x + n, load(x + n) + load(by_offset + clamp(first + n, 0, last)));
}

// The adjoint: by_offset += x.
inline void accumulate_sheared(const float* x, const OffsetWindow& window, int64_t key,
                               int64_t position, int64_t count, float* by_offset) {
  const int64_t first = key - position - window.base, last = window.num_columns - kLanes;
  for (int64_t n = 0; n < count; n += kLanes) {
    float* to = by_offset + clamp(first + n, 0, last);
    store(to, load(to) + load(x + n));
  }
}

// The same with a row for each key in place of each query: each further query is one column
// earlier, so that squares of W keys and W queries are transposed.
//
//     by_key (num_keys, kBufferStride): for each key from `key` on, the columns from `first_column`
//     x (num_queries, num_keys), rows `x_stride` apart, for the queries from `position` on
//
// x += factor * by_key. Rows of by_key are read, and numbers of x written, up to the next whole
// vector of keys.
inline void add_sheared_by_key(float factor, const float* by_key, int64_t first_column,
                               const OffsetWindow& window, int64_t key, int64_t num_keys,
                               int64_t position, int64_t num_queries, float* x, int64_t x_stride) {
  for (int64_t c = 0; c < num_keys; c += kLanes)
    for (int64_t r = 0; r < num_queries; r += kLanes) {
      // A row for a key with the queries backwards; then, transposed, for a query with the keys.
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
