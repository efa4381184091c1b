// Arrays of any shape and strides, in memory of exactly their size: a sanitizer sees every step
// beyond.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "../../csrc/kernel.h"

namespace fuzz {

using relpos::Dtype;
using Sizes = std::vector<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Random {
  std::mt19937_64 engine;

  explicit Random(uint64_t seed) : engine(seed) {}
  int64_t whole(int64_t low, int64_t high) {  // both included
    return low + (int64_t)(engine() % (uint64_t)(high - low + 1));
  }
  bool chance(double p) { return number(0, 1) < p; }
  double number(double low, double high) {
    return low + (high - low) * (double)(engine() >> 11) * 0x1p-53;
  }
};

inline int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 4 : dtype == Dtype::boolean ? 1 : 2;
}

// The relative error of rounding to a dtype, and the absolute one where its numbers end.
inline double rounding(Dtype dtype) {
  return dtype == Dtype::f32 ? 0x1p-24 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
}
inline double smallest(Dtype dtype) { return dtype == Dtype::f16 ? 0x1p-25 : 0x1p-120; }

inline double decode_half(Dtype dtype, uint16_t bits) {
  if (dtype == Dtype::bf16) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  if (exponent == 31) size = mantissa ? std::nan("") : kInfinity;
  return bits >> 15 ? -size : size;
}

inline double decode(Dtype dtype, const void* from, int64_t at) {
  if (dtype == Dtype::boolean) return ((const uint8_t*)from)[at];
  if (dtype == Dtype::f32) return ((const float*)from)[at];
  return decode_half(dtype, ((const uint16_t*)from)[at]);
}

// The number of a dtype next to `x` towards zero: what is drawn need not be rounded well.
inline void encode(Dtype dtype, double x, void* to, int64_t at) {
  const float single = (float)x;
  if (dtype == Dtype::boolean) {
    ((uint8_t*)to)[at] = x != 0;
  } else if (dtype == Dtype::f32) {
    ((float*)to)[at] = single;
  } else if (dtype == Dtype::bf16) {
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    ((uint16_t*)to)[at] = (uint16_t)(bits >> 16);
  } else {
    int exponent;
    const double size = std::fabs(x), fraction = std::frexp(size, &exponent);
    uint32_t bits = (uint32_t)std::ldexp(fraction, 11) - 1024 + (uint32_t)(exponent + 14) * 1024;
    if (size < 0x1p-14) bits = (uint32_t)std::ldexp(size, 24);
    if (size >= 65504) bits = 0x7bff;
    if (size == kInfinity) bits = 0x7c00;
    ((uint16_t*)to)[at] = (uint16_t)(bits | (x < 0 ? 0x8000 : 0));
  }
}

// Bytes on the heap, null where there are none, as torch has it; they begin `before` bytes into
// the allocation and end with it.
struct Memory {
  std::unique_ptr<char[]> bytes;
  char* data = nullptr;

  Memory() = default;
  Memory(int64_t count, int byte, int64_t before = 0) {
    if (count == 0) return;
    bytes.reset(new char[(size_t)(before + count)]);
    data = bytes.get() + before;
    std::memset(data, byte, (size_t)count);
  }
};

constexpr int kNotANumber = 0xff;  // as every byte, in all the dtypes

inline int64_t product(const Sizes& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

// An input: its numbers in row-major order, and as they lie in memory.
struct Array {
  Dtype dtype = Dtype::f32;
  Sizes sizes, strides;
  std::vector<double> numbers;
  Memory memory;

  bool present() const { return !sizes.empty(); }
  const double* row(int64_t index) const { return numbers.data() + index * sizes.back(); }
  relpos::TensorView view() const { return {memory.data, {stride(0), stride(1), stride(2)}}; }
  int64_t stride(size_t axis) const { return sizes[axis] == 1 ? 0 : strides[axis]; }

  // Calls visit(number in row-major order, index in memory) for all numbers.
  template <class Visit>
  void each(Visit visit) const {
    for (int64_t n = 0; n < product(sizes); ++n) {
      int64_t rest = n, at = 0;
      for (size_t axis = sizes.size(); axis-- > 0; rest /= sizes[axis])
        at += rest % sizes[axis] * strides[axis];
      visit((size_t)n, at);
    }
  }

  // Take numbers from draw(); those that share memory are one.
  template <class Draw>
  void fill(Random& random, Draw draw) {
    int64_t count = product(sizes) ? 1 : 0;
    for (size_t axis = 0; axis < sizes.size() && count; ++axis)
      count += (sizes[axis] - 1) * strides[axis];
    const int64_t unit = bytes_of(dtype);
    memory = Memory(count * unit, kNotANumber, random.whole(0, 3) * unit);
    numbers.assign((size_t)product(sizes), 0);
    each([&](size_t, int64_t at) { encode(dtype, draw(), memory.data, at); });
    each([&](size_t n, int64_t at) { numbers[n] = decode(dtype, memory.data, at); });
  }

  // One number of a contiguous array.
  void set(int64_t at, double x) {
    encode(dtype, x, memory.data, at);
    numbers[(size_t)at] = decode(dtype, memory.data, at);
  }
};

inline Sizes contiguous(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t step = 1;
  for (size_t axis = sizes.size(); axis-- > 0; step *= sizes[axis]) strides[axis] = step;
  return strides;
}

// Axes in any order, with gaps, some expanded; the last one contiguous if `rows`.
inline Sizes any_strides(Random& random, const Sizes& sizes, bool rows) {
  if (random.chance(0.3)) return contiguous(sizes);
  std::vector<size_t> order;
  for (size_t axis = 0; axis < sizes.size(); ++axis) order.push_back(axis);
  const int64_t free = (int64_t)sizes.size() - rows;
  for (int64_t n = free - 1; n > 0 && random.chance(0.5); --n)
    std::swap(order[(size_t)n], order[(size_t)random.whole(0, n)]);
  Sizes strides(sizes.size(), 1);
  int64_t step = 1;
  for (size_t n = sizes.size(); n-- > 0;) {
    const size_t axis = order[n];
    const bool contiguous_row = rows && n + 1 == sizes.size();
    if (!contiguous_row && random.chance(0.1)) {
      strides[axis] = 0;
      continue;
    }
    strides[axis] = step;
    step *= std::max<int64_t>(sizes[axis], 1);
    if (random.chance(0.3)) step += random.whole(1, 9);
  }
  return strides;
}

}  // namespace fuzz
