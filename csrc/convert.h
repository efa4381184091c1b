// Numbers of a tensor's dtype to float32 and back (round to nearest even).
#pragma once

#include <stdint.h>

#include "config.h"
#include "params.h"
#include "simd.h"
#if defined(RELPOS_NEON)
#include <arm_neon.h>
#endif

namespace relpos {
namespace {

// W numbers from p (W).
inline vfloat bf16_to_float(const uint16_t* p) {
  const vshort_memory halves = *(const vshort_memory*)p;
#if defined(RELPOS_F16C) && RELPOS_LANES == 16  // which GCC 12 makes five instructions of
  return (vfloat)((vuint)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)halves) << 16);
#else
  return (vfloat)(__builtin_convertvector(halves, vuint) << 16);
#endif
}

// Half precision: 1 bit of sign, 5 of exponent (bias 15), 10 of mantissa; a float has 1, 8 (bias
// 127), and 23.
inline float f16_to_float(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
  union { uint32_t bits; float value; } out;
  if (magnitude >= 0x7c00) {  // infinity or NaN
    out.bits = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x400) {
    out.bits = sign | ((magnitude << 13) + (112u << 23));  // 112 = 127 - 15
  } else {  // subnormal
    out.value = (float)magnitude * 5.9604644775390625e-8f;  // 2^-24
    out.bits |= sign;
  }
  return out.value;
}

// W numbers from p (W).
inline vfloat f16_to_float(const uint16_t* p) {
  const vshort_memory halves = *(const vshort_memory*)p;
#if defined(RELPOS_F16C) && RELPOS_LANES == 16
  return (vfloat)_mm512_maskz_cvtph_ps(0xffff, (__m256i)halves);
#elif defined(RELPOS_F16C)
  return (vfloat)_mm256_cvtph_ps((__m128i)halves);
#elif defined(RELPOS_NEON)
  return (vfloat)vcvt_f32_f16((float16x4_t)halves);
#else
  const vuint x = __builtin_convertvector(halves, vuint), magnitude = x & 0x7fff;
  const vuint bits = (magnitude << 13) + (112u << 23);
  const vint is_finite = magnitude < 0x7c00, is_normal = magnitude >= 0x400;
  const vfloat subnormal = __builtin_convertvector((vint)magnitude, vfloat) * 5.9604644775390625e-8f;
  const vfloat normal = select(is_finite, (vfloat)bits, (vfloat)(bits + (112u << 23)));
  return (vfloat)((vuint)select(is_normal, normal, subnormal) | (x & 0x8000) << 16);
#endif
}

inline uint16_t float_to_bf16(float x) {
  union { float value; uint32_t bits; } in;
  in.value = x;
  if (x != x) return (uint16_t)(in.bits >> 16 | 0x40);
  return (uint16_t)((in.bits + 0x7fff + (in.bits >> 16 & 1)) >> 16);
}

inline uint16_t float_to_f16(float x) {
  union { float value; uint32_t bits; } in, half;
  in.value = x;
  const uint16_t sign = (uint16_t)(in.bits >> 16 & 0x8000);
  in.bits &= 0x7fffffff;
  if (in.bits > 0x7f800000) return sign | 0x7e00;   // NaN
  if (in.bits >= 0x477ff000) return sign | 0x7c00;  // 65520, and what else rounds to infinity
  if (in.bits < 0x38800000) {                       // 2^-14: subnormal in half precision
    // Of a sum from 0.5 to 1 the last place is 2^-24, that of subnormals.
    half.value = 0.5f;
    in.value += half.value;
    return (uint16_t)(sign | (in.bits - half.bits));
  }
  in.bits += 0xfff + (in.bits >> 13 & 1);  // rounds what the shift below drops
  in.bits -= 112u << 23;
  return (uint16_t)(sign | in.bits >> 13);
}

#if defined(RELPOS_F16C) || defined(RELPOS_NEON)
// W numbers to p (W).
inline void float_to_f16(vfloat x, uint16_t* p) {
#if defined(RELPOS_F16C) && RELPOS_LANES == 16
  *(vshort_memory*)p = (vshort_memory)_mm512_maskz_cvtps_ph(0xffff, (__m512)x,
                                                            _MM_FROUND_TO_NEAREST_INT);
#elif defined(RELPOS_F16C)
  *(vshort_memory*)p = (vshort_memory)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#endif
}
#endif

// to (count) = scale * from[at..at+count-1]; `at` counts numbers of that dtype.
inline void convert_to_float(const void* from, Dtype dtype, int64_t at, int64_t count, float scale,
                             float* to) {
  int64_t n = 0;
  if (dtype == Dtype::f32) {
    const float* source = (const float*)from + at;
    for (; n + kLanes <= count; n += kLanes) store(to + n, load(source + n) * scale);
    for (; n < count; ++n) to[n] = source[n] * scale;
  } else if (dtype == Dtype::bf16) {
    const uint16_t* source = (const uint16_t*)from + at;
    for (; n + kLanes <= count; n += kLanes) store(to + n, bf16_to_float(source + n) * scale);
    for (; n < count; ++n) {
      union { uint32_t bits; float value; } one;
      one.bits = (uint32_t)source[n] << 16;
      to[n] = one.value * scale;
    }
  } else {
    const uint16_t* source = (const uint16_t*)from + at;
    for (; n + kLanes <= count; n += kLanes)
      store(to + n, f16_to_float(source + n) * scale);
    for (; n < count; ++n) to[n] = f16_to_float(source[n]) * scale;
  }
}

// to[at..at+count-1] = from (count), rounded.
inline void convert_from_float(const float* from, int64_t count, void* to, Dtype dtype,
                               int64_t at) {
  if (dtype == Dtype::f32) {
    float* target = (float*)to + at;
    for (int64_t n = 0; n < count; ++n) target[n] = from[n];
  } else if (dtype == Dtype::bf16) {
    uint16_t* target = (uint16_t*)to + at;
    for (int64_t n = 0; n < count; ++n) target[n] = float_to_bf16(from[n]);
  } else {
    uint16_t* target = (uint16_t*)to + at;
    int64_t n = 0;
#if defined(RELPOS_F16C) || defined(RELPOS_NEON)
    for (; n + kLanes <= count; n += kLanes) float_to_f16(load(from + n), target + n);
#endif
    for (; n < count; ++n) target[n] = float_to_f16(from[n]);
  }
}

}  // namespace
}  // namespace relpos
