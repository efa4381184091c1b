// A row of the output as it is kept: rounded to the call's dtype, beside what that took off in 16
// bits, which together have nearly twice the digits. Of rounded numbers alone the error of delta
// would be an error of every ds of the row, and the gradients of tables sum them.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "integers.h"
#include "params.h"

namespace relpos {
namespace {

constexpr int64_t kOutputPart = 64;  // numbers at a time

// What rounding took off is kept times this: in float16 it might be too small otherwise. As in
// src/relpos/ops/rounded_off.py.
inline float rounded_off_scale(Dtype dtype) { return dtype == Dtype::f16 ? 2048 : 1; }

// Row i of head h from out (value_dim).
inline void write_output_row(const Params& params, int64_t b, int64_t h, int64_t i,
                             const float* out) {
  const int64_t dim = params.value_dim, at = params.output.row_start(b, h, i);
  convert_from_float(out, dim, params.output.data, params.dtype, at);
  if (!params.rounded_off.data) return;
  const int64_t to = params.rounded_off.row_start(b, h, i);
  const float scale = rounded_off_scale(params.dtype);
  float part[kOutputPart];
  for (int64_t n = 0; n < dim; n += kOutputPart) {
    const int64_t count = min(kOutputPart, dim - n);
    convert_to_float(params.output.data, params.dtype, at + n, count, 1, part);
    for (int64_t m = 0; m < count; ++m) part[m] = (out[n + m] - part[m]) * scale;
    convert_from_float(part, count, params.rounded_off.data, params.dtype, to + n);
  }
}

// The same row to out (value_dim).
inline void read_output_row(const Params& params, int64_t b, int64_t h, int64_t i, float* out) {
  const int64_t dim = params.value_dim;
  convert_to_float(params.output.data, params.dtype, params.output.row_start(b, h, i), dim, 1, out);
  if (!params.rounded_off.data) return;
  const int64_t from = params.rounded_off.row_start(b, h, i);
  const float scale = 1 / rounded_off_scale(params.dtype);
  float part[kOutputPart];
  for (int64_t n = 0; n < dim; n += kOutputPart) {
    const int64_t count = min(kOutputPart, dim - n);
    convert_to_float(params.rounded_off.data, params.dtype, from + n, count, scale, part);
    for (int64_t m = 0; m < count; ++m) out[n + m] += part[m];
  }
}

}  // namespace
}  // namespace relpos
