// Matrix products on the matrix unit (tiles.h): operands of bfloat16 numbers, sums of floats.
//
//     C (rows, columns) = or += A (rows, depth) B (depth, columns)
//
// in squares of 16 by 16, four of them at once, over steps of 32 of the depth. How operands lie:
//
//     rows      A, row-major: (rows, P, depth). Row r of a sheared one begins r numbers further:
//               then its rows are `stride` + 1 apart, and nothing is copied
//     pairs     B, the numbers of two of its rows side by side: (depth / 2, P, columns, 2)
//     panels    B from a matrix of which each row is a column of B, as keys are of q k^T:
//               (columns / 16, P, depth / 2, 16, 2)
//
// P = kParts: where numbers are split in two (bf16.h), each product is the sum of four, or of three
// without that of the rests, which is less than the rounding of weights.
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

// The depth of panels and rows, with zeros up to whole steps; and that of all parts together.
inline int64_t part_depth(int64_t depth) { return round_up(depth, kTileDepth); }
inline int64_t packed_depth(int64_t depth) { return kParts * part_depth(depth); }

// Steps are in numbers: from a tile to the next one along each of its axes, and to its rest.
struct TilesOfA {
  const uint16_t* data;
  int64_t stride;           // between rows
  int64_t row_step, depth_step, part_step;
};
struct TilesOfB {
  const uint16_t* data;
  int64_t stride;           // between rows of pairs
  int64_t depth_step, column_step, part_step;
};
struct TilesOfC {
  float* data;
  int64_t stride;
  int64_t row_step, column_step = kTileSide;
};

// A of rows (rows, P, depth), each `shear` numbers further than the one before.
inline TilesOfA rows_of_a(const uint16_t* data, int64_t depth, int64_t shear = 0) {
  const int64_t stride = kParts * depth + shear;
  return {data, stride, kTileSide * stride, kTileDepth, depth};
}
// B of pairs (depth / 2, P, columns, 2), `columns` a multiple of 16, from an even row on; each pair of
// rows begins `shear` columns further than the one before.
inline TilesOfB pairs_of_b(const uint16_t* data, int64_t columns, int64_t shear = 0) {
  const int64_t stride = 2 * (kParts * columns + shear);
  return {data, stride, kTileSide * stride, 2 * kTileSide, 2 * columns};
}
// B of panels, from a multiple of 16 columns on.
inline TilesOfB panels_of_b(const uint16_t* data, int64_t depth) {
  return {data, 2 * kTileSide, kTileDepth * kTileSide, packed_depth(depth) * kTileSide,
          part_depth(depth) * kTileSide};
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

template <int Rows>
inline void load_rows(const TilesOfA& a, const uint16_t* from) {
  load_tile<4>(from, a.stride * 2);
  if constexpr (Rows == 2) load_tile<5>(from + a.row_step, a.stride * 2);
}
template <int Columns>
inline void load_columns(const TilesOfB& b, const uint16_t* from) {
  load_tile<6>(from, b.stride * 2);
  if constexpr (Columns == 2) load_tile<7>(from + b.column_step, b.stride * 2);
}
template <int Rows, int Columns>
inline void multiply_loaded() {
  multiply_tiles<0, 4, 6>();
  if constexpr (Rows == 2) multiply_tiles<2, 5, 6>();
  if constexpr (Columns == 2) multiply_tiles<1, 4, 7>();
  if constexpr (Rows == 2 && Columns == 2) multiply_tiles<3, 5, 7>();
}

// Rows by Columns squares at once; `row` and `column` number the first of them. Tiles 0 to 3 are the
// sums, 4 and 5 of A, 6 and 7 of B.
template <int Rows, int Columns, bool OfRests, class Start>
inline void multiply_squares(int64_t depth_tiles, const TilesOfA& a, const TilesOfB& b,
                             const TilesOfC& c, int64_t row, int64_t column, const Start& start) {
  start_square<0>(c, row, column, start);
  if constexpr (Columns == 2) start_square<1>(c, row, column + 1, start);
  if constexpr (Rows == 2) start_square<2>(c, row + 1, column, start);
  if constexpr (Rows == 2 && Columns == 2) start_square<3>(c, row + 1, column + 1, start);
  const uint16_t* a_tile = a.data + row * a.row_step;
  const uint16_t* b_tile = b.data + column * b.column_step;
  for (int64_t k = 0; k < depth_tiles; ++k) {
    if constexpr (kParts == 1) {
      load_rows<Rows>(a, a_tile);
      load_columns<Columns>(b, b_tile);
      multiply_loaded<Rows, Columns>();
    } else {
      load_rows<Rows>(a, a_tile + a.part_step);
      load_columns<Columns>(b, b_tile);
      multiply_loaded<Rows, Columns>();
      load_rows<Rows>(a, a_tile);
      multiply_loaded<Rows, Columns>();
      load_columns<Columns>(b, b_tile + b.part_step);
      multiply_loaded<Rows, Columns>();
      if constexpr (OfRests) {
        load_rows<Rows>(a, a_tile + a.part_step);
        multiply_loaded<Rows, Columns>();
      }
    }
    a_tile += a.depth_step, b_tile += b.depth_step;
  }
  store_square<0>(c, row, column);
  if constexpr (Columns == 2) store_square<1>(c, row, column + 1);
  if constexpr (Rows == 2) store_square<2>(c, row + 1, column);
  if constexpr (Rows == 2 && Columns == 2) store_square<3>(c, row + 1, column + 1);
}

// C (16 * row_tiles, 16 * column_tiles) = start + A B, with a depth of 32 * depth_tiles.
template <bool OfRests = false, class Start>
__attribute__((noinline)) void multiply(int64_t row_tiles, int64_t column_tiles,
                                        int64_t depth_tiles, TilesOfA a, TilesOfB b, TilesOfC c,
                                        Start start) {
  for (int64_t column = 0; column < column_tiles; column += 2)
    for (int64_t row = 0; row < row_tiles; row += 2) {
      const bool two_rows = row + 1 < row_tiles, two_columns = column + 1 < column_tiles;
      if (two_rows && two_columns)
        multiply_squares<2, 2, OfRests>(depth_tiles, a, b, c, row, column, start);
      else if (two_rows)
        multiply_squares<2, 1, OfRests>(depth_tiles, a, b, c, row, column, start);
      else if (two_columns)
        multiply_squares<1, 2, OfRests>(depth_tiles, a, b, c, row, column, start);
      else
        multiply_squares<1, 1, OfRests>(depth_tiles, a, b, c, row, column, start);
    }
}

inline int64_t tiles_of(int64_t count) { return ceil_div(count, kTileSide); }
inline int64_t depth_tiles_of(int64_t count) { return ceil_div(count, kTileDepth); }

// ---- as in gemm.h -------------------------------------------------------------------------------

// C = start + A B: rows by panels. C is written up to the next multiples of 16. `of_rests`: with the
// products of the rests, so that those of numbers that are sums of two bfloat16 numbers are exact.
template <class Start = FromZero>
inline void gemm_packed(int64_t rows, int64_t columns, int64_t depth, const packed* a_rows,
                        const packed* b_panels, float* c, int64_t c_stride, Start start = {},
                        bool of_rests = true) {
  const int64_t row_tiles = tiles_of(rows), column_tiles = tiles_of(columns);
  const int64_t depth_tiles = depth_tiles_of(depth);
  const TilesOfA a = rows_of_a(a_rows, part_depth(depth));
  const TilesOfB b = panels_of_b(b_panels, depth);
  if (kParts > 1 && of_rests)
    multiply<true>(row_tiles, column_tiles, depth_tiles, a, b, rows_of_c(c, c_stride), start);
  else
    multiply(row_tiles, column_tiles, depth_tiles, a, b, rows_of_c(c, c_stride), start);
}

// ---- operands -----------------------------------------------------------------------------------

// to (P, padded) = factor * from (count), with zeros up to `padded`, a multiple of 32.
inline void split_row(const float* from, int64_t count, float factor, int64_t padded,
                      uint16_t* to) {
  int64_t n = 0;
  for (; n + 2 * kLanes <= count; n += 2 * kLanes) {
    const Parts of =
        Parts::of_inputs(load(from + n) * factor, load(from + n + kLanes) * factor);
    for (int64_t part = 0; part < kParts; ++part) store_pairs(to + part * padded + n, of.parts[part]);
  }
  for (; n < padded; ++n) {
    const PartsOfInput of(n < count ? from[n] * factor : 0);
    for (int64_t part = 0; part < kParts; ++part) to[part * padded + n] = of.parts[part];
  }
}

// from (count, depth), rows `stride` apart, as A, with rows of zeros up to a multiple of 32: to
// (count, packed_depth).
inline void pack_rows(const float* from, int64_t stride, int64_t count, int64_t depth,
                      packed* to, float factor = 1) {
  const int64_t row = packed_depth(depth);
  for (int64_t r = 0; r < count; ++r)
    split_row(from + r * stride, depth, factor, part_depth(depth), to + r * row);
  for (int64_t r = count; r < round_up(count, kTileDepth); ++r)
    __builtin_memset(to + r * row, 0, (uint64_t)(2 * row));
}

// A square of 32 by 32, transposed.
inline void transpose_square(const packed* from, int64_t from_stride, packed* to,
                             int64_t to_stride) {
  // Pairs of columns as floats: a square of 16 by 16, for even rows and for odd ones.
  vfloat even[kLanes], odd[kLanes];
#pragma GCC unroll 16
  for (int n = 0; n < kLanes; ++n) {
    even[n] = (vfloat)load_pairs(from + 2 * n * from_stride);
    odd[n] = (vfloat)load_pairs(from + (2 * n + 1) * from_stride);
  }
  transpose(even);
  transpose(odd);
#pragma GCC unroll 16
  for (int n = 0; n < kLanes; ++n) {
    const vuint x = (vuint)even[n], y = (vuint)odd[n];
    store_pairs(to + 2 * n * to_stride, (vpairs)((x & 0xffff) | y << 16));
    store_pairs(to + (2 * n + 1) * to_stride, (vpairs)(x >> 16 | (y & 0xffff0000)));
  }
}

// rows (count, P, depth) of pack_rows, transposed: to (depth, P, columns), those from count on zeros
// up to a multiple of 32.
inline void transpose_rows(const packed* rows, int64_t count, int64_t depth, int64_t columns,
                           packed* to) {
  const int64_t row = packed_depth(depth), part_row = part_depth(depth);
  for (int64_t r = 0; r < count; r += 2 * kLanes)
    for (int64_t k = 0; k < part_row; k += 2 * kLanes)
      for (int64_t part = 0; part < kParts; ++part)
        transpose_square(rows + r * row + part * part_row + k, row,
                         to + (k * kParts + part) * columns + r, kParts * columns);
}

// One column of panels, or one row of pairs, from floats (depth) or (columns).
inline void put_column(const float* from, int64_t column, int64_t depth, packed* panels) {
  packed* to = panels + column / kTileSide * kTileSide * packed_depth(depth) +
               column % kTileSide * 2;
  for (int64_t k = 0; k < part_depth(depth); ++k) {
    const PartsOfInput of(k < depth ? from[k] : 0);
    for (int64_t part = 0; part < kParts; ++part)
      to[(part * part_depth(depth) + k / 2 * 2) * kTileSide + k % 2] = of.parts[part];
  }
}
inline void put_row(const float* from, int64_t row, int64_t columns, packed* pairs) {
  packed* to = pairs + row / 2 * 2 * kParts * columns + row % 2;
  for (int64_t n = 0; n < columns; ++n) {
    const PartsOfInput of(from[n]);
    for (int64_t part = 0; part < kParts; ++part) to[2 * (part * columns + n)] = of.parts[part];
  }
}

// The 32 rows (P, depth) from `from` on, `stride` apart, those with `count` and beyond zeros: as two
// panels (2, P, depth / 2, 16, 2), or as pairs (16, P, columns, 2). Rows are read up to `depth` or
// `dim` alone; a row's rest lies part_depth numbers after it.
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
  const int64_t part_row = part_depth(depth);
  for (int64_t first = 0; first < kTileDepth; first += kTileSide)
    for (int64_t part = 0; part < kParts; ++part, panels += part_row * kTileSide)
      for (int64_t k = 0; k < part_row; k += kTileDepth) {
        vfloat square[kLanes];
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n) {
          const uint16_t* row = from + (first + n) * stride + part * part_row;
          square[n] =
              first + n < count ? (vfloat)load_up_to(row + k, depth - k) : vfloat{};
        }
        transpose(square);
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n)
          store((float*)(panels + k * kTileSide) + n * kLanes, square[n]);
      }
}
inline void pack_pairs(const uint16_t* from, int64_t stride, int64_t count, int64_t dim,
                       int64_t columns, packed* pairs) {
  for (int64_t r = 0; r < kTileDepth; r += 2)
    for (int64_t part = 0; part < kParts; ++part, pairs += 2 * columns)
      for (int64_t n = 0; n < columns; n += kLanes) {
        const uint16_t* row = from + r * stride + part * part_depth(dim) + n;
        const vhalf x = r < count ? load_half_up_to(row, dim - n) : vhalf{};
        const vhalf y = r + 1 < count ? load_half_up_to(row + stride, dim - n) : vhalf{};
        store_pairs(pairs + 2 * n, pair_up(join(x, y)));
      }
}

#endif

}  // namespace
}  // namespace relpos
