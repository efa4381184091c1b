// The tiles of tiles.h on 64-bit ARM processors with bfloat16 products (BFMMLA of ARMv8.6), which
// have no registers of that size: they lie in memory of their thread.
//
// BFMMLA multiplies squares: C (2, 2) += A (2, 4) B (4, 2), A row-major, B by columns. A tile is
// put into that order when it is loaded, and taken out of it when it is stored:
//
//     tiles 0 to 3    C, as (8, 8) squares of two rows by two columns
//     tiles 4 and 5   A, as (8, 8) of two rows by four numbers
//     tiles 6 and 7   B, as (8, 8) of two columns by four numbers
//
// The two products of a pair are added up and then added to the sum; both are rounded to odd, and
// subnormal numbers are zeros, so that the last places are not those of AMX.
#pragma once

#include <stdint.h>

#include "config.h"

#if defined(RELPOS_BFMMLA)

#include <arm_neon.h>

namespace relpos {
namespace {

constexpr int kFirstA = 4, kFirstB = 6;

struct TileMemory {
  alignas(64) float32x4_t tiles[8][8][8];
};
inline float32x4_t (&tile_memory(int tile))[8][8] {
  static thread_local TileMemory memory;
  return memory.tiles[tile];
}

// The first halves of x and y, and the second ones.
inline float32x4_t low_halves(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}
inline float32x4_t high_halves(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

// Two rows of a tile side by side, a quarter of 16 bytes at a time: of C (columns n and n + 1) and
// of A (four numbers) halves of the two rows; of B, whose rows are pairs, a column's numbers.
template <int T>
inline void load_tile(const void* from, int64_t stride) {
  auto& tile = tile_memory(T);
  for (int row = 0; row < 8; ++row)
    for (int quarter = 0; quarter < 4; ++quarter) {
      const char* const at = (const char*)from + 2 * row * stride + 16 * quarter;
      const float32x4_t x = vreinterpretq_f32_u8(vld1q_u8((const uint8_t*)at));
      const float32x4_t y = vreinterpretq_f32_u8(vld1q_u8((const uint8_t*)at + stride));
      if constexpr (T < kFirstB) {
        tile[row][2 * quarter] = low_halves(x, y);
        tile[row][2 * quarter + 1] = high_halves(x, y);
      } else {
        tile[2 * quarter][row] = vzip1q_f32(x, y);
        tile[2 * quarter + 1][row] = vzip2q_f32(x, y);
      }
    }
}
template <int T>
inline void store_tile(void* to, int64_t stride) {
  static_assert(T < kFirstA, "a tile of sums");
  const auto& tile = tile_memory(T);
  for (int row = 0; row < 8; ++row)
    for (int quarter = 0; quarter < 4; ++quarter) {
      const float32x4_t left = tile[row][2 * quarter], right = tile[row][2 * quarter + 1];
      char* const at = (char*)to + 2 * row * stride + 16 * quarter;
      vst1q_f32((float*)at, low_halves(left, right));
      vst1q_f32((float*)(at + stride), high_halves(left, right));
    }
}
template <int T>
inline void zero_tile() {
  auto& tile = tile_memory(T);
  for (auto& row : tile)
    for (float32x4_t& square : row) square = vdupq_n_f32(0);
}

// Four squares by four at once: their sums stay in registers.
template <int C, int A, int B>
inline void multiply_tiles() {
  static_assert(C < kFirstA && A >= kFirstA && A < kFirstB && B >= kFirstB, "tiles in order");
  auto& c = tile_memory(C);
  const auto &a = tile_memory(A), &b = tile_memory(B);
  for (int row = 0; row < 8; row += 4)
    for (int column = 0; column < 8; column += 4) {
      float32x4_t sums[4][4];
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) sums[m][n] = c[row + m][column + n];
      for (int k = 0; k < 8; ++k) {
        bfloat16x8_t columns[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) columns[n] = vreinterpretq_bf16_f32(b[column + n][k]);
#pragma GCC unroll 4
        for (int m = 0; m < 4; ++m) {
          const bfloat16x8_t rows = vreinterpretq_bf16_f32(a[row + m][k]);
#pragma GCC unroll 4
          for (int n = 0; n < 4; ++n) sums[m][n] = vbfmmlaq_f32(sums[m][n], rows, columns[n]);
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) c[row + m][column + n] = sums[m][n];
    }
}

// Nothing to prepare.
struct TileSession {
  TileSession() {}
  ~TileSession() {}
};

}  // namespace
}  // namespace relpos

#endif
