// Vectors of bfloat16 numbers, of which the matrix unit's operands are made (tile_products.h).
// Rounding is to nearest, to even halfway.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "simd.h"

namespace relpos {
namespace {

#if RELPOS_TILES

static_assert(kLanes == 16, "a vector is a row of a matrix tile");

typedef uint16_t vhalf __attribute__((vector_size(kLanes * 2)));   // W = kLanes numbers
typedef uint16_t vpairs __attribute__((vector_size(kLanes * 4)));  // 2W of them
typedef uint16_t vhalf_memory __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint16_t vpairs_memory __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));

inline vhalf load_half(const uint16_t* p) { return *(const vhalf_memory*)p; }
inline vpairs load_pairs(const uint16_t* p) { return *(const vpairs_memory*)p; }
inline void store_half(uint16_t* p, vhalf x) { *(vhalf_memory*)p = x; }
inline void store_pairs(uint16_t* p, vpairs x) { *(vpairs_memory*)p = x; }

#if defined(RELPOS_INTRINSICS)

// The numbers of x, then those of y; and of these the former and the latter. (GCC warns of the
// intrinsics without a mask.)
inline vpairs join(vhalf x, vhalf y) {
  const __m512i twice = _mm512_maskz_broadcast_i64x4(0xff, (__m256i)x);
  return (vpairs)_mm512_maskz_inserti64x4(0xff, twice, (__m256i)y, 1);
}
inline vhalf first_half(vpairs x) {
  return (vhalf)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)x, 0);
}
inline vhalf second_half(vpairs x) {
  return (vhalf)_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)x, 1);
}

// x rounded, then y.
inline vpairs round_joined(vfloat x, vfloat y) {
  return (vpairs)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
}

// Of two halves joined: a number of the first, one of the second, and so on.
inline vpairs pair_up(vpairs joined) {
  alignas(64) static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,
                                                 21, 6, 22, 7, 23, 8,  24, 9,  25, 10, 26,
                                                 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (vpairs)_mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(order),
                                                (__m512i)joined);
}

#else

union JoinedHalves {
  vhalf halves[2];
  vpairs joined;
};
inline vpairs join(vhalf x, vhalf y) {
  const JoinedHalves both = {{x, y}};
  return both.joined;
}
inline vhalf first_half(vpairs x) {
  JoinedHalves both;
  both.joined = x;
  return both.halves[0];
}
inline vhalf second_half(vpairs x) {
  JoinedHalves both;
  both.joined = x;
  return both.halves[1];
}

#if defined(RELPOS_BFMMLA)

union PairsParts {
  vpairs whole;
  uint16x8_t parts[4];
};
inline vpairs round_joined(vfloat x, vfloat y) {
  const VectorParts from[2] = {{x}, {y}};
  PairsParts to;
  for (int n = 0; n < 4; ++n) {
    const float32x4_t* const two = from[n / 2].parts + n % 2 * 2;
    to.parts[n] = vreinterpretq_u16_bf16(
        vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(two[0]), two[1]));
  }
  return to.whole;
}
inline vpairs pair_up(vpairs joined) {
  const PairsParts from = {joined};
  PairsParts to;
  for (int n = 0; n < 2; ++n) {
    to.parts[2 * n] = vzip1q_u16(from.parts[n], from.parts[n + 2]);
    to.parts[2 * n + 1] = vzip2q_u16(from.parts[n], from.parts[n + 2]);
  }
  return to.whole;
}

#else

inline vpairs round_joined(vfloat x, vfloat y) {
  vpairs joined;
  for (int n = 0; n < kLanes; ++n)
    joined[n] = float_to_bf16(x[n]), joined[n + kLanes] = float_to_bf16(y[n]);
  return joined;
}
inline vpairs pair_up(vpairs joined) {
  vpairs pairs;
  for (int n = 0; n < kLanes; ++n) pairs[2 * n] = joined[n], pairs[2 * n + 1] = joined[n + kLanes];
  return pairs;
}

#endif

#endif

inline vfloat to_float(vhalf x) { return (vfloat)(__builtin_convertvector(x, vuint) << 16); }

// What lies beyond bfloat16's largest number, and is finite, rounds to that; it has a rest.
constexpr float kLargestBf16 = 0x1.fep127f;

inline vfloat bounded(vfloat x) {
  const vfloat size = maximum(x, -x);
  const vint beyond = (size > kLargestBf16) & (size <= __FLT_MAX__);
  return select(beyond, select(x < 0, broadcast(-kLargestBf16), broadcast(kLargestBf16)), x);
}

// x, then y, in kParts: rounded, and the rest, rounded too. Infinity has no rest that is a number.
struct Parts {
  vpairs parts[kParts];

  Parts(vfloat x, vfloat y) : Parts(x, y, x, y) {}

  // Of any numbers; those above round to infinity where they are too large.
  static Parts of_inputs(vfloat x, vfloat y) {
    return kParts == 1 ? Parts(x, y) : Parts(x, y, bounded(x), bounded(y));
  }

 private:
  Parts(vfloat x, vfloat y, vfloat first_x, vfloat first_y) {
    parts[0] = round_joined(first_x, first_y);
    if constexpr (kParts == 2)
      parts[1] = round_joined(x - to_float(first_half(parts[0])),
                              y - to_float(second_half(parts[0])));
  }
};
// The same of one number.
struct PartsOfInput {
  uint16_t parts[kParts];

  explicit PartsOfInput(float x) {
    parts[0] = float_to_bf16(kParts == 1 ? x : bounded(broadcast(x))[0]);
    if constexpr (kParts == 2) {
      union { uint32_t bits; float value; } first;
      first.bits = (uint32_t)parts[0] << 16;
      parts[1] = float_to_bf16(x - first.value);
    }
  }
};

#endif

}  // namespace
}  // namespace relpos
