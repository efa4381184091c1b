// The matrix unit: eight registers, each of 16 rows of 64 bytes (a "matrix tile").
//
//     load_tile<T>(from, stride)    rows `stride` bytes apart, at any address
//     store_tile<T>(to, stride)
//     zero_tile<T>()
//     multiply_tiles<C, A, B>()     C (16, 16) += A (16, 32) B (32, 16)
//
// C is of floats and A of bfloat16 numbers, row-major; a row of B holds the numbers of two rows in
// pairs: (16, 16, 2). Between a TileSession's construction and its end these are the registers of
// Intel's AMX, or an emulation of them that any processor runs, to the bit (RELPOS_EMULATED_TILES).
#pragma once

#include <stdint.h>

#include "bfmmla_tiles.h"
#include "config.h"

namespace relpos {
namespace {

constexpr int64_t kTileSide = 16;    // rows; columns of C; pairs of rows of B
constexpr int64_t kTileDepth = 32;   // columns of A

#if defined(RELPOS_BFMMLA)

// bfmmla_tiles.h has them.

#elif RELPOS_TILES && !defined(RELPOS_EMULATED_TILES)

// A strict clobber: the compiler does not see what these read and write.
template <int T>
inline void load_tile(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void store_tile(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int C, int A, int B>
inline void multiply_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// The registers of this thread, all of whole size; and subnormal numbers as zeros, as the matrix
// unit takes them: vectors would be slow with them.
struct TileSession {
  uint32_t control;  // of the vector unit, as it was

  TileSession() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } sizes;
    for (int n = 0; n < 8; ++n) sizes.row_bytes[n] = 64, sizes.rows[n] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(sizes));
    control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control | 0x8040);
  }
  ~TileSession() {
    __asm__ volatile("tilerelease" ::);
    __builtin_ia32_ldmxcsr(control);
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

#elif RELPOS_TILES

struct EmulatedTiles {
  alignas(64) uint8_t rows[8][16][64];
};
inline EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

template <int T>
inline void load_tile(const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(emulated_tiles().rows[T][r], (const char*)from + r * stride, 64);
}
template <int T>
inline void store_tile(void* to, int64_t stride) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy((char*)to + r * stride, emulated_tiles().rows[T][r], 64);
}
template <int T>
inline void zero_tile() {
  __builtin_memset(emulated_tiles().rows[T], 0, sizeof emulated_tiles().rows[T]);
}

// Subnormal numbers are zeros to the matrix unit.
inline float unit_float(uint32_t bits) {
  union { uint32_t bits; float value; } x;
  x.bits = (bits & 0x7f800000) ? bits : bits & 0x80000000;
  return x.value;
}
inline float flushed(float x) {
  union { float value; uint32_t bits; } in;
  in.value = x;
  return unit_float(in.bits);
}
// The even and the odd of the 32 products have a sum each.
template <int C, int A, int B>
inline void multiply_tiles() {
  auto& tiles = emulated_tiles().rows;
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0, c;
      for (int k = 0; k < 16; ++k) {
        uint16_t a[2], b[2];
        __builtin_memcpy(a, tiles[A][m] + 4 * k, 4);
        __builtin_memcpy(b, tiles[B][k] + 4 * n, 4);
        even = flushed(even + unit_float((uint32_t)a[0] << 16) * unit_float((uint32_t)b[0] << 16));
        odd = flushed(odd + unit_float((uint32_t)a[1] << 16) * unit_float((uint32_t)b[1] << 16));
      }
      __builtin_memcpy(&c, tiles[C][m] + 4 * n, 4);
      c = flushed(flushed(c) + flushed(even + odd));
      __builtin_memcpy(tiles[C][m] + 4 * n, &c, 4);
    }
}

struct TileSession {
  TileSession() {}
  ~TileSession() {}
};

#else

// Vectors need no preparation.
struct TileSession {
  TileSession() {}
  ~TileSession() {}
};

#endif

}  // namespace
}  // namespace relpos
