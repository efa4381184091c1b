// Vectors of W = kLanes floats in the compiler's own notation, compiled once for each instruction
// set.
#pragma once

#include <stdint.h>

#include "config.h"
#if defined(RELPOS_INTRINSICS) || defined(RELPOS_F16C)
#include <immintrin.h>
#endif
#if defined(RELPOS_BFMMLA)
#include <arm_neon.h>
#endif

namespace relpos {
namespace {

typedef float vfloat __attribute__((vector_size(kLanes * 4)));
typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vuint __attribute__((vector_size(kLanes * 4)));
// The same in memory, at any address.
typedef float vfloat_memory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t vshort_memory __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

constexpr float kInfinity = __builtin_inff();

inline vfloat load(const float* p) { return *(const vfloat_memory*)p; }
inline void store(float* p, vfloat x) { *(vfloat_memory*)p = x; }
inline vfloat broadcast(float x) { return vfloat{} + x; }

// `yes` in the lanes where the mask is all ones (-1, as comparisons give it), `no` where it is 0.
inline vfloat select(vint mask, vfloat yes, vfloat no) {
  return (vfloat)(((vint)yes & mask) | ((vint)no & ~mask));
}

// Lane n is lane lanes[n] of x, or from W on lane lanes[n] - W of y.
inline vfloat shuffle(vfloat x, vfloat y, vint lanes) {
#if defined(__clang__)
  vfloat out;
  for (int n = 0; n < kLanes; ++n) out[n] = lanes[n] < kLanes ? x[lanes[n]] : y[lanes[n] - kLanes];
  return out;
#else
  return __builtin_shuffle(x, y, lanes);
#endif
}

#if defined(RELPOS_BFMMLA)
// A vector as those of the processor that it is made of, for what GCC would do number by number.
union VectorParts {
  vfloat whole;
  float32x4_t parts[kLanes / 4];
};
#endif

// The larger of each pair; a NaN in `x` is lost.
inline vfloat maximum(vfloat x, vfloat y) {
#if defined(RELPOS_BFMMLA)
  VectorParts larger = {x}, other = {y};
  for (int n = 0; n < kLanes / 4; ++n) {
    const float32x4_t one = larger.parts[n], two = other.parts[n];
    larger.parts[n] = vbslq_f32(vcgtq_f32(one, two), one, two);
  }
  return larger.whole;
#else
  return x > y ? x : y;
#endif
}

inline vuint lane_numbers() {
  vuint numbers;
  for (int n = 0; n < kLanes; ++n) numbers[n] = (uint32_t)n;
  return numbers;
}

// -1 in the lanes from..to-1, which may lie outside the vector, 0 in the others.
inline vint lane_mask(int64_t from, int64_t to) {
  const vint lanes = (vint)lane_numbers();
  return (lanes >= (int32_t)from) & (lanes < (int32_t)to);
}

// Rows become columns: the two quarters off the diagonal change places, then those of each
// quarter.
inline void transpose(vfloat (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const vint lanes = (vint)lane_numbers();
    const vint low = (lanes & half) == 0 ? lanes : lanes - half + kLanes;
    const vint high = (lanes & half) == 0 ? lanes + half : lanes + kLanes;
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) {
      if (n & half) continue;
      const vfloat x = rows[n], y = rows[n + half];
      rows[n] = shuffle(x, y, low);
      rows[n + half] = shuffle(x, y, high);
    }
  }
}

// Each lane of x as many lanes further as `by` says, around the end.
inline vfloat rotate(vfloat x, int by) {
  return shuffle(x, x, ((vint)lane_numbers() + by) & (kLanes - 1));
}

inline float horizontal_sum(vfloat x) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) x += rotate(x, half);
  return x[0];
}

inline double horizontal_sum_in_double(vfloat x) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
}

// The horizontal sums of W vectors, to the bit: half of the lanes of two of them at a time.
inline vfloat horizontal_sums(vfloat (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const vint lanes = (vint)lane_numbers();
    const vint low = (lanes & half) == 0 ? lanes : lanes - half + kLanes;
    const vint high = (lanes & half) == 0 ? lanes + half : lanes + kLanes;
#pragma GCC unroll 8
    for (int n = 0; n < half; ++n)
      rows[n] = shuffle(rows[n], rows[n + half], low) + shuffle(rows[n], rows[n + half], high);
  }
  return rows[0];
}

// NaN may be lost: those of scores show in the sums of what is made of them.
inline float horizontal_max(vfloat x) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) x = maximum(x, rotate(x, half));
  return x[0];
}

// exp(x) to within two units in the last place, by the polynomial of Cephes' expf; 0 below -87.3,
// where a float would be subnormal. NaN stays NaN. Not for x above 88.
inline vfloat exponential(vfloat x) {
  const vfloat rounder = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vfloat shifted = x * 1.44269504088896341f + rounder;  // x / ln 2
  const vfloat whole = shifted - rounder;
  // ln 2 in two parts, the first so short that its products with `whole` are exact.
  vfloat r = x - whole * 0.693145751953125f;
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

inline float exponential(float x) { return exponential(broadcast(x))[0]; }

constexpr float kLog2OfE = 1.44269504088896341f;

// 2^x to within four units in the last place; 0 from -127 down; from 127 up some number that is no
// less than 2^127, infinity among them. NaN stays NaN.
// The polynomial is the minimax one for what x is above the next integer below.
inline vfloat power_of_two(vfloat x) {
#if defined(RELPOS_INTRINSICS)
  const vfloat r = (vfloat)_mm512_maskz_reduce_ps(0xffff, (__m512)x, 9);  // down
#else
  // Adding it rounds to an integer, with 127 more in the low bits.
  const vfloat rounder = broadcast(12582912.0f + 127.0f);
  const vfloat at_most = x > 127.0f ? broadcast(127.0f) : x;
  const vfloat limited = maximum(broadcast(-127.0f), at_most);
  const vfloat shifted = (limited - 0.5f) + rounder;
  const vfloat r = limited - (shifted - rounder);
#endif
  vfloat y = r * 1.8775766948238015e-3f + 8.98933969438076e-3f;
  y = y * r + 5.582631751894951e-2f;
  y = y * r + 2.4015361070632935e-1f;
  y = y * r + 6.931530833244324e-1f;
  y = y * r + 9.999999403953552e-1f;
#if defined(RELPOS_INTRINSICS)
  return (vfloat)_mm512_maskz_scalef_ps(0xffff, (__m512)y, (__m512)x);
#else
  return y * (vfloat)((vuint)shifted << 23);
#endif
}

// x * factor, rounded: not part of a fused product and sum, which would differ from the rounded
// numbers that it is compared with.
inline vfloat rounded_product(vfloat x, float factor) {
  vfloat product = x * factor;
#if defined(RELPOS_INTRINSICS)
  __asm__("" : "+v"(product));
#elif defined(RELPOS_BFMMLA)
  VectorParts rounded = {product};
  for (float32x4_t& part : rounded.parts) __asm__("" : "+w"(part));
  product = rounded.whole;
#endif
  return product;
}

// exp(factor * x - base) of a row's scores x, as a power of two: in one product and sum, whose
// error is that of rounding the base; where that is far from 0 (a mask of low numbers) the exact
// difference is taken first.
template <bool FarBase>
struct RowExponential {
  vfloat scale, base;
  float factor;

  RowExponential(float row_base, float row_factor)
      : scale(broadcast(row_factor * kLog2OfE)),
        base(broadcast(FarBase ? row_base : row_base * kLog2OfE)),
        factor(row_factor) {}
  vfloat operator()(vfloat x) const {
    return power_of_two(FarBase ? (rounded_product(x, factor) - base) * kLog2OfE
                                : x * scale - base);
  }
};
inline bool is_far_base(float base) { return !(base > -1024 && base < 1024); }

// tanh(x), and its derivative 1 - tanh(x)^2, to a few units in the last place: near 0 by a
// polynomial, elsewhere by e = exp(-2 |x|), with neither of which numbers nearly equal are
// subtracted. NaN stays NaN.
inline vfloat hyperbolic_tangent(vfloat x, vfloat& derivative) {
  const vfloat size = x < 0 ? -x : x, square = x * x;
  vfloat y = square * -5.70498872745e-3f + 2.06390887954e-2f;
  y = y * square - 5.37397155531e-2f;
  y = y * square + 1.33314422036e-1f;
  y = y * square - 3.33332819422e-1f;
  const vfloat near_zero = x + x * square * y;
  const vfloat e = exponential(-2 * size), sum = 1 + e;
  const vfloat far = (1 - e) / sum;
  const vint is_near = size < 0.625f;
  derivative = select(is_near, 1 - near_zero * near_zero, 4 * e / (sum * sum));
  return select(is_near, near_zero, x < 0 ? -far : far);
}

// Of x (count), whole vectors.
inline float sum_of(const float* x, int64_t count) {
  vfloat sums = {};
  for (int64_t n = 0; n < count; n += kLanes) sums += load(x + n);
  return horizontal_sum(sums);
}

// Whether all lanes are; NaN are not.
inline bool all_below(vfloat x, float limit) {
#if defined(RELPOS_INTRINSICS)
  return _mm512_cmp_ps_mask((__m512)x, (__m512)broadcast(limit), _CMP_LT_OQ) == 0xffff;
#else
  for (int n = 0; n < kLanes; ++n)
    if (!(x[n] < limit)) return false;
  return true;
#endif
}

inline bool any_nan(const float* x, int64_t count) {
  for (int64_t n = 0; n < count; ++n)
    if (x[n] != x[n]) return true;
  return false;
}

inline void fill(float* to, int64_t count, float value) {
  for (int64_t n = 0; n < count; ++n) to[n] = value;
}

}  // namespace
}  // namespace relpos
