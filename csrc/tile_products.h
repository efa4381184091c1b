// Matrix products on the matrix unit (tiles.h): operands of bfloat16 numbers, sums of floats.
//
//     C (rows, columns) = or += A (rows, depth) B (depth, columns)
//
// in squares of 16 by 16, four of them at once, over steps of 32 of the depth. How operands lie:
//
//     rows      A, row-major. Row r of a sheared one begins r numbers further: then its rows are
//               `stride` + 1 apart, and nothing is copied
//     pairs     B, the numbers of two of its rows side by side: (depth / 2, columns, 2)
//     panels    B from a matrix of which each row is a column of B, as keys are of q k^T:
//               (columns / 16, depth / 2, 16, 2)
//
// Sums to which blocks add lie transposed, in panels too: (rows / 16, columns, 16).
#pragma once

#include <stdint.h>

#include "bf16.h"
#include "config.h"
#include "integers.h"
#include "simd.h"
#include "tiles.h"

namespace relpos {
namespace {

#if RELPOS_TILES

// The depth of panels and rows, with zeros up to whole steps.
inline int64_t packed_depth(int64_t depth) { return round_up(depth, kTileDepth); }

// Steps are in numbers: from a tile to the next one along each of its axes.
struct TilesOfA {
  const uint16_t* data;
  int64_t stride;           // between rows
  int64_t row_step, depth_step = kTileDepth;
};
struct TilesOfB {
  const uint16_t* data;
  int64_t stride;           // between rows of pairs
  int64_t depth_step, column_step;
};
struct TilesOfC {
  float* data;
  int64_t stride;
  int64_t row_step, column_step = kTileSide;
};

inline TilesOfA rows_of_a(const uint16_t* data, int64_t stride) {
  return {data, stride, kTileSide * stride};
}
// B of pairs (depth / 2, columns, 2), `columns` a multiple of 16, from an even row on.
inline TilesOfB pairs_of_b(const uint16_t* data, int64_t columns) {
  return {data, 2 * columns, kTileDepth * columns, 2 * kTileSide};
}
// B of panels, from a multiple of 16 columns on.
inline TilesOfB panels_of_b(const uint16_t* data, int64_t depth) {
  return {data, 2 * kTileSide, kTileDepth * kTileSide, packed_depth(depth) * kTileSide};
}
inline TilesOfC rows_of_c(float* data, int64_t stride) {
  return {data, stride, kTileSide * stride};
}
// C transposed, of panels (columns / 16, rows, 16).
inline TilesOfC panels_of_c(float* data, int64_t rows) {
  return {data, kTileSide, kTileSide * kTileSide, rows * kTileSide};
}

// What the sums begin with: zeros; C itself; or any other squares of floats.
struct FromZero {};
struct FromC {};

template <int T, class Start>
inline void start_square(const TilesOfC& c, int64_t row, int64_t column, const Start& start) {
  if constexpr (__is_same(Start, FromZero)) {
    zero_tile<T>();
  } else if constexpr (__is_same(Start, FromC)) {
    load_tile<T>(c.data + row * c.row_step + column * c.column_step, c.stride * 4);
  } else {
    int64_t stride;
    const float* from = start.square(row, column, &stride);
    load_tile<T>(from, stride * 4);
  }
}
template <int T>
inline void store_square(const TilesOfC& c, int64_t row, int64_t column) {
  store_tile<T>(c.data + row * c.row_step + column * c.column_step, c.stride * 4);
}

// Rows by Columns squares at once; `row` and `column` number the first of them. Tiles 0 to 3 are the
// sums, 4 and 5 of A, 6 and 7 of B.
template <int Rows, int Columns, class Start>
inline void multiply_squares(int64_t depth_tiles, const TilesOfA& a, const TilesOfB& b,
                             const TilesOfC& c, int64_t row, int64_t column, const Start& start) {
  start_square<0>(c, row, column, start);
  if constexpr (Columns == 2) start_square<1>(c, row, column + 1, start);
  if constexpr (Rows == 2) start_square<2>(c, row + 1, column, start);
  if constexpr (Rows == 2 && Columns == 2) start_square<3>(c, row + 1, column + 1, start);
  const uint16_t* a_tile = a.data + row * a.row_step;
  const uint16_t* b_tile = b.data + column * b.column_step;
  for (int64_t k = 0; k < depth_tiles; ++k) {
    load_tile<4>(a_tile, a.stride * 2);
    load_tile<6>(b_tile, b.stride * 2);
    if constexpr (Rows == 2) load_tile<5>(a_tile + a.row_step, a.stride * 2);
    if constexpr (Columns == 2) load_tile<7>(b_tile + b.column_step, b.stride * 2);
    multiply_tiles<0, 4, 6>();
    if constexpr (Rows == 2) multiply_tiles<2, 5, 6>();
    if constexpr (Columns == 2) multiply_tiles<1, 4, 7>();
    if constexpr (Rows == 2 && Columns == 2) multiply_tiles<3, 5, 7>();
    a_tile += a.depth_step, b_tile += b.depth_step;
  }
  store_square<0>(c, row, column);
  if constexpr (Columns == 2) store_square<1>(c, row, column + 1);
  if constexpr (Rows == 2) store_square<2>(c, row + 1, column);
  if constexpr (Rows == 2 && Columns == 2) store_square<3>(c, row + 1, column + 1);
}

// C (16 * row_tiles, 16 * column_tiles) = start + A B, with a depth of 32 * depth_tiles.
template <class Start>
__attribute__((noinline)) void multiply(int64_t row_tiles, int64_t column_tiles,
                                        int64_t depth_tiles, TilesOfA a, TilesOfB b, TilesOfC c,
                                        Start start) {
  for (int64_t column = 0; column < column_tiles; column += 2)
    for (int64_t row = 0; row < row_tiles; row += 2) {
      const bool two_rows = row + 1 < row_tiles, two_columns = column + 1 < column_tiles;
      if (two_rows && two_columns)
        multiply_squares<2, 2>(depth_tiles, a, b, c, row, column, start);
      else if (two_rows)
        multiply_squares<2, 1>(depth_tiles, a, b, c, row, column, start);
      else if (two_columns)
        multiply_squares<1, 2>(depth_tiles, a, b, c, row, column, start);
      else
        multiply_squares<1, 1>(depth_tiles, a, b, c, row, column, start);
    }
}

inline int64_t tiles_of(int64_t count) { return ceil_div(count, kTileSide); }
inline int64_t depth_tiles_of(int64_t count) { return ceil_div(count, kTileDepth); }

// ---- as in gemm.h -------------------------------------------------------------------------------

// C = start + A B: rows by panels. C is written up to the next multiples of 16.
template <class Start = FromZero>
inline void gemm_packed(int64_t rows, int64_t columns, int64_t depth, const packed* a_rows,
                        const packed* b_panels, float* c, int64_t c_stride, Start start = {}) {
  multiply(tiles_of(rows), tiles_of(columns), depth_tiles_of(depth),
           rows_of_a(a_rows, packed_depth(depth)), panels_of_b(b_panels, depth),
           rows_of_c(c, c_stride), start);
}

// ---- operands -----------------------------------------------------------------------------------

// to (count) = factor * from (count), rounded, with zeros up to `padded`, a multiple of 32.
inline void round_row(const float* from, int64_t count, float factor, int64_t padded,
                      uint16_t* to) {
  int64_t n = 0;
  for (; n + 2 * kLanes <= count; n += 2 * kLanes)
    store_pairs(to + n, round_joined(load(from + n) * factor, load(from + n + kLanes) * factor));
  for (; n < count; ++n) to[n] = float_to_bf16(from[n] * factor);
  for (; n < padded; ++n) to[n] = 0;
}

// from (count, depth), rows `stride` apart, as A, with rows of zeros up to a multiple of 32: to
// (count, packed_depth).
inline void pack_rows(const float* from, int64_t stride, int64_t count, int64_t depth,
                      packed* to, float factor = 1) {
  const int64_t padded = packed_depth(depth);
  for (int64_t r = 0; r < count; ++r)
    round_row(from + r * stride, depth, factor, padded, to + r * padded);
  for (int64_t r = count; r < round_up(count, kTileDepth); ++r)
    __builtin_memset(to + r * padded, 0, (uint64_t)(2 * padded));
}

// rows (count, depth) of pack_rows, transposed: to (depth, stride), whose columns from count on are
// zeros up to a multiple of 32.
inline void transpose_rows(const packed* rows, int64_t count, int64_t depth, int64_t stride,
                           packed* to) {
  const int64_t padded = packed_depth(depth);
  for (int64_t r = 0; r < round_up(count, kTileDepth); r += 2 * kLanes)
    for (int64_t k = 0; k < padded; k += 2 * kLanes) {
      // Pairs of columns as floats: a square of 16 by 16, for even rows and for odd ones.
      vfloat even[kLanes], odd[kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n) {
        even[n] = (vfloat)load_pairs(rows + (r + 2 * n) * padded + k);
        odd[n] = (vfloat)load_pairs(rows + (r + 2 * n + 1) * padded + k);
      }
      transpose(even);
      transpose(odd);
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n) {
        const vuint x = (vuint)even[n], y = (vuint)odd[n];
        store_pairs(to + (k + 2 * n) * stride + r, (vpairs)((x & 0xffff) | y << 16));
        store_pairs(to + (k + 2 * n + 1) * stride + r, (vpairs)(x >> 16 | (y & 0xffff0000)));
      }
    }
}

// One column of panels, or one row of pairs (row, columns, 2), from floats (depth).
inline void put_column(const float* from, int64_t column, int64_t depth, packed* panels) {
  packed* to = panels + column / kTileSide * kTileSide * packed_depth(depth) +
               column % kTileSide * 2;
  for (int64_t k = 0; k < packed_depth(depth); ++k)
    to[k / 2 * 2 * kTileSide + k % 2] = k < depth ? float_to_bf16(from[k]) : (uint16_t)0;
}
inline void put_row(const float* from, int64_t row, int64_t columns, packed* pairs) {
  packed* to = pairs + row / 2 * 2 * columns + row % 2;
  for (int64_t n = 0; n < columns; ++n) to[2 * n] = float_to_bf16(from[n]);
}

// The 32 rows from `from` on, `stride` apart, those with `count` and beyond zeros: as two panels
// (2, depth / 2, 16, 2), or as pairs (16, columns, 2). Rows are read up to `depth` or `columns`
// alone.
inline vpairs load_up_to(const uint16_t* from, int64_t count) {
  if (count >= 2 * kLanes) return load_pairs(from);
  vpairs x = {};
  if (count > 0) __builtin_memcpy(&x, from, (uint64_t)(2 * count));
  return x;
}
inline vhalf load_half_up_to(const uint16_t* from, int64_t count) {
  if (count >= kLanes) return load_half(from);
  vhalf x = {};
  if (count > 0) __builtin_memcpy(&x, from, (uint64_t)(2 * count));
  return x;
}
inline void pack_panels(const uint16_t* from, int64_t stride, int64_t count, int64_t depth,
                        packed* panels) {
  for (int64_t first = 0; first < kTileDepth; first += kTileSide)
    for (int64_t k = 0; k < packed_depth(depth); k += kTileDepth) {
      vfloat square[kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n)
        square[n] = first + n < count
                        ? (vfloat)load_up_to(from + (first + n) * stride + k, depth - k)
                        : vfloat{};
      transpose(square);
      packed* to = panels + first * packed_depth(depth) + k * kTileSide;
#pragma GCC unroll 16
      for (int n = 0; n < kLanes; ++n) store((float*)to + n * kLanes, square[n]);
    }
}
inline void pack_pairs(const uint16_t* from, int64_t stride, int64_t count, int64_t dim,
                       int64_t columns, packed* pairs) {
  for (int64_t r = 0; r < kTileDepth; r += 2)
    for (int64_t n = 0; n < columns; n += kLanes) {
      const uint16_t* row = from + r * stride + n;
      const vhalf x = r < count ? load_half_up_to(row, dim - n) : vhalf{};
      const vhalf y = r + 1 < count ? load_half_up_to(row + stride, dim - n) : vhalf{};
      store_pairs(pairs + r * columns + 2 * n, pair_up(join(x, y)));
    }
}

#endif

}  // namespace
}  // namespace relpos
