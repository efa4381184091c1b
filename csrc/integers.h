// Sizes and indices, in place of <algorithm>. A kernel includes nothing of the standard library: an
// inline function compiled here, with AVX-512 say, might be the one copy that the linker keeps for
// the whole program.
#pragma once

#include <stdint.h>

namespace relpos {
namespace {

inline int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }
inline int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// For x >= 0:
inline int64_t ceil_div(int64_t x, int64_t unit) { return (x + unit - 1) / unit; }
inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
inline int64_t round_down(int64_t x, int64_t unit) { return x / unit * unit; }

// For any x:
inline int64_t floor_div(int64_t x, int64_t unit) {
  return x >= 0 ? x / unit : -((-x + unit - 1) / unit);
}

}  // namespace
}  // namespace relpos
