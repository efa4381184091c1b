// Vectors of `W` floats in the compiler's own notation, compiled once for each instruction set.
#pragma once

namespace relpos {
namespace {

typedef float vfloat __attribute__((vector_size(W * 4)));
typedef int32_t vint __attribute__((vector_size(W * 4)));
typedef uint32_t vuint __attribute__((vector_size(W * 4)));
typedef uint16_t vshort __attribute__((vector_size(W * 2)));
typedef float vfloat_memory __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint16_t vshort_memory __attribute__((vector_size(W * 2), aligned(2), may_alias));

constexpr float kInfinity = __builtin_inff();

inline vfloat load(const float* p) { return *(const vfloat_memory*)p; }
inline void store(float* p, vfloat x) { *(vfloat_memory*)p = x; }
inline vfloat broadcast(float x) { return vfloat{} + x; }
inline vfloat choose(vint mask, vfloat yes, vfloat no) {
  return (vfloat)(((vint)yes & mask) | ((vint)no & ~mask));
}

// The lanes of x and then y that `lanes` numbers.
inline vfloat shuffle(vfloat x, vfloat y, vint lanes) {
#if defined(__clang__)
  vfloat out;
  for (int n = 0; n < W; ++n) out[n] = lanes[n] < W ? x[lanes[n]] : y[lanes[n] - W];
  return out;
#else
  return __builtin_shuffle(x, y, lanes);
#endif
}

// The larger of each pair; a NaN in `x` is lost.
inline vfloat maximum(vfloat x, vfloat y) { return x > y ? x : y; }

inline vuint lane_numbers() {
  vuint numbers;
  for (int n = 0; n < W; ++n) numbers[n] = (uint32_t)n;
  return numbers;
}

// The lanes from..to-1, of which some may lie outside the vector.
inline vint lanes_between(int64_t from, int64_t to) {
  const vint lanes = (vint)lane_numbers();
  return (lanes >= (int32_t)from) & (lanes < (int32_t)to);
}

// Rows become columns.
inline void transpose(vfloat (&rows)[W]) {
#pragma GCC unroll 4
  for (int half = W / 2; half > 0; half /= 2) {
    const vint lanes = (vint)lane_numbers();
    const vint low = (lanes & half) == 0 ? lanes : lanes - half + W;
    const vint high = (lanes & half) == 0 ? lanes + half : lanes + W;
#pragma GCC unroll 16
    for (int n = 0; n < W; ++n) {
      if (n & half) continue;
      const vfloat x = rows[n], y = rows[n + half];
      rows[n] = shuffle(x, y, low);
      rows[n + half] = shuffle(x, y, high);
    }
  }
}

inline float sum_of(vfloat x) {
  float lanes[W];
  store(lanes, x);
  for (int half = W / 2; half > 0; half /= 2)
    for (int n = 0; n < half; ++n) lanes[n] += lanes[n + half];
  return lanes[0];
}

inline float maximum_of(vfloat x) {
  float most = x[0];
  for (int n = 1; n < W; ++n) most = x[n] > most ? x[n] : most;
  return most;
}

// exp(x) to within two units in the last place; 0 below -87.3, where a float would be subnormal.
// NaN stays NaN. Not for x above 88.
inline vfloat exponential(vfloat x) {
  const vfloat rounder = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vfloat shifted = x * 1.44269504088896341f + rounder;
  const vfloat whole = shifted - rounder;
  vfloat r = x - whole * 0.693145751953125f;  // ln 2 in two parts, the first one short
  r = r - whole * 1.42860677e-06f;
  vfloat y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  // 2^whole: the low bits of `shifted` are that integer, and the bits above leave by the shift.
  const vfloat power = (vfloat)(((vuint)shifted + 127u) << 23);
  return x < -87.3f ? vfloat{} : y * power;
}

inline float sum_of(const float* x, int64_t count) {  // whole vectors
  vfloat sums = {};
  for (int64_t n = 0; n < count; n += W) sums += load(x + n);
  return sum_of(sums);
}

inline bool any_nan(const float* x, int64_t count) {
  for (int64_t n = 0; n < count; ++n)
    if (x[n] != x[n]) return true;
  return false;
}

inline float exponential(float x) { return exponential(broadcast(x))[0]; }

// Half precision, as float and back (round to nearest even).
inline vfloat widen_bf16(const uint16_t* p) {
  return (vfloat)(__builtin_convertvector(*(const vshort_memory*)p, vuint) << 16);
}

inline float widen_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
  union { uint32_t bits; float value; } out;
  if (magnitude >= 0x7c00) {
    out.bits = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x400) {
    out.bits = sign | ((magnitude << 13) + (112u << 23));
  } else {
    out.value = (float)magnitude * 5.9604644775390625e-8f;  // 2^-24
    out.bits |= sign;
  }
  return out.value;
}

inline uint16_t narrow_bf16(float x) {
  union { float value; uint32_t bits; } in;
  in.value = x;
  if (x != x) return (uint16_t)(in.bits >> 16 | 0x40);
  return (uint16_t)((in.bits + 0x7fff + (in.bits >> 16 & 1)) >> 16);
}

inline uint16_t narrow_f16(float x) {
  union { float value; uint32_t bits; } in, magic;
  in.value = x;
  const uint16_t sign = (uint16_t)(in.bits >> 16 & 0x8000);
  in.bits &= 0x7fffffff;
  if (in.bits > 0x7f800000) return sign | 0x7e00;
  if (in.bits >= 0x477ff000) return sign | 0x7c00;  // rounds to 65536 or more
  if (in.bits < 0x38800000) {                       // subnormal in half precision
    magic.bits = 0x3f000000;
    in.value += magic.value;
    return (uint16_t)(sign | (in.bits - magic.bits));
  }
  in.bits += 0xc8000fff + (in.bits >> 13 & 1);
  return (uint16_t)(sign | in.bits >> 13);
}

// `count` numbers from anywhere in a tensor, times `scale`, as floats.
inline void widen(const void* from, Dtype dtype, int64_t at, int64_t count, float scale,
                  float* to) {
  int64_t n = 0;
  if (dtype == Dtype::f32) {
    const float* source = (const float*)from + at;
    for (; n + W <= count; n += W) store(to + n, load(source + n) * scale);
    for (; n < count; ++n) to[n] = source[n] * scale;
  } else if (dtype == Dtype::bf16) {
    const uint16_t* source = (const uint16_t*)from + at;
    for (; n + W <= count; n += W) store(to + n, widen_bf16(source + n) * scale);
    for (; n < count; ++n) {
      union { uint32_t bits; float value; } one;
      one.bits = (uint32_t)source[n] << 16;
      to[n] = one.value * scale;
    }
  } else {
    const uint16_t* source = (const uint16_t*)from + at;
    for (; n < count; ++n) to[n] = widen_f16(source[n]) * scale;
  }
}

inline void narrow(const float* from, int64_t count, void* to, Dtype dtype, int64_t at) {
  if (dtype == Dtype::f32) {
    float* target = (float*)to + at;
    for (int64_t n = 0; n < count; ++n) target[n] = from[n];
  } else if (dtype == Dtype::bf16) {
    uint16_t* target = (uint16_t*)to + at;
    for (int64_t n = 0; n < count; ++n) target[n] = narrow_bf16(from[n]);
  } else {
    uint16_t* target = (uint16_t*)to + at;
    for (int64_t n = 0; n < count; ++n) target[n] = narrow_f16(from[n]);
  }
}

inline void fill(float* to, int64_t count, float value) {
  for (int64_t n = 0; n < count; ++n) to[n] = value;
}

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }
inline int64_t clamped(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}
inline int64_t rounded_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
inline int64_t rounded_down(int64_t x, int64_t unit) { return x / unit * unit; }

}  // namespace
}  // namespace relpos
