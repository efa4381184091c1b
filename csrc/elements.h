// Numbers of 16 bits that become floats as they are loaded, in registers: rows of a call's tensors
// are multiplied as they lie.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "simd.h"

namespace relpos {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// W numbers from p (W).
inline vfloat load(const Bf16* p) { return bf16_to_float((const uint16_t*)p); }
inline vfloat load(const F16* p) { return f16_to_float((const uint16_t*)p); }

inline float as_float(float x) { return x; }
inline float as_float(Bf16 x) {
  union { uint32_t bits; float value; } out;
  out.bits = (uint32_t)x.bits << 16;
  return out.value;
}
inline float as_float(F16 x) { return f16_to_float(x.bits); }

}  // namespace
}  // namespace relpos
