// A mask on the scores of one query.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "params.h"
#include "simd.h"

namespace relpos {
namespace {

// x (count) += the mask's numbers for query i and the keys from `key` on; -inf where it is false.
// scratch (count).
inline void add_mask_row(const Mask& mask, int64_t b, int64_t h, int64_t i, int64_t key,
                         int64_t count, float* x, float* scratch) {
  const int64_t step = mask.strides[3];  // 0 where all keys have the same number
  const int64_t at =
      b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + key * step;
  if (mask.dtype == Dtype::boolean) {
    const uint8_t* row = (const uint8_t*)mask.data + at;
    for (int64_t n = 0; n < count; ++n) x[n] = row[n * step] ? x[n] : -kInfinity;
  } else if (mask.dtype == Dtype::f32) {
    const float* row = (const float*)mask.data + at;
    if (step == 1)
      for (int64_t n = 0; n < count; ++n) x[n] += row[n];
    else
      for (int64_t n = 0; n < count; ++n) x[n] += row[n * step];
  } else {  // its step is 0 or 1
    convert_to_float(mask.data, mask.dtype, at, step ? count : 1, 1, scratch);
    for (int64_t n = 0; n < count; ++n) x[n] += scratch[n * step];
  }
}

}  // namespace
}  // namespace relpos
