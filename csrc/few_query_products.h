// Products of a few rows of floats with rows of a call's tensors (keys, values, tables), each of
// which is read once.
//
//     scores (x_rows, count)   = or += x (x_rows, dim) rows (count, dim)^T     multiply_rows
//     out (x_rows, dim)       += weights (x_rows, count) rows (count, dim)     add_weighted_rows
//
// Rows are read as they lie. They are copied as floats, a few at a time, where their width is not
// whole vectors, and where so many rows of x want them that to convert them once is cheaper. For dot
// products they are copied in strips: W columns of each row side by side, (dim / W, rows, W).
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "elements.h"
#include "gemm.h"
#include "integers.h"
#include "params.h"
#include "simd.h"

namespace relpos {
namespace {

// Rows of values that are multiplied at a time: in a first-level cache, for all columns.
constexpr int64_t kValueChunk = 32;

// How far ahead rows are fetched from memory: a processor does not do it across rows that lie apart,
// nor in time while it converts.
constexpr int64_t kFetchedBytes = 8192;

// Register blocks of so many vectors: a row of values is read in as few runs as can be.
constexpr int kWideVectors = 2 * kNRVectors;
constexpr int kWideRows = kMR / 2;

// Some rows of a tensor, (count, dim), `stride` elements apart, of Elements as they lie.
template <class Element>
struct RowsInPlace {
  const Element* data;
  int64_t stride, count, dim;

  RowsInPlace(const void* tensor, int64_t first_element, int64_t row_stride, int64_t num_rows,
              int64_t width)
      : data((const Element*)tensor + first_element),
        stride(row_stride),
        count(num_rows),
        dim(width) {}
  bool are_floats() const { return sizeof(Element) == sizeof(float); }
  bool whole_vectors() const { return dim % kLanes == 0; }
  int64_t padded_dim() const { return round_up(dim, kLanes); }

  // The rows that follow first..first+number-1 by kFetchedBytes will be wanted soon. Inlined: GCC
  // takes a function that does nothing else for one without effect, and drops its calls.
  __attribute__((always_inline)) void fetch_ahead(int64_t first, int64_t number) const {
    const int64_t bytes = dim * (int64_t)sizeof(Element);
    first += kFetchedBytes / max(bytes, 1);
    for (int64_t n = first; n < min(first + number, count); ++n)
      for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char*)(data + n * stride) + at, 0, 2);
  }

  // W columns from `column` on of row n, zeros after the last column.
  vfloat load_columns(int64_t n, int64_t column) const {
    const Element* row = data + n * stride;
    if (column + kLanes <= dim) return load(row + column);
    vfloat columns = {};
    for (int64_t k = column; k < dim; ++k) columns[k - column] = as_float(row[k]);
    return columns;
  }

  // The rows first..first+number-1 as floats, zeros after each: to (number, padded_dim).
  void copy(int64_t first, int64_t number, float* to) const {
    for (int64_t n = 0; n < number; ++n)
      for (int64_t k = 0; k < dim; k += kLanes)
        store(to + n * padded_dim() + k, load_columns(first + n, k));
  }

  // The same in strips: to (padded_dim / W, strip_rows, W).
  void copy_strips(int64_t first, int64_t number, int64_t strip_rows, float* to) const {
    for (int64_t n = 0; n < number; ++n)
      for (int64_t k = 0; k < dim; k += kLanes)
        store(to + k * strip_rows + n * kLanes, load_columns(first + n, k));
  }
};

// Some rows of floats, or of numbers by key: (count, ...), `stride` apart.
struct FloatRows {
  float* data;
  int64_t stride, count;

  float* row(int64_t r) const { return data + r * stride; }
};

// The dot products of W rows with x (dim), whole vectors: to the bit those of `dot`.
template <class Element>
inline vfloat dot_in_place(const Element* rows, int64_t stride, const float* x, int64_t dim) {
  vfloat sums[kLanes];
#pragma GCC unroll 4
  for (int n = 0; n < kLanes; n += 4) {
    const Element* const four = rows + n * stride;
    vfloat of_four[4] = {};
    for (int64_t k = 0; k < dim; k += kLanes) {
      const vfloat x_part = load(x + k);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) of_four[m] += load(four + m * stride + k) * x_part;
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) sums[n + m] = of_four[m];
  }
  return horizontal_sums(sums);
}

// The same for rows in strips.
inline vfloat dot_strips(const float* strips, int64_t strip_rows, const float* x, int64_t dim) {
  vfloat sums[kLanes];
#pragma GCC unroll 16
  for (int n = 0; n < kLanes; ++n) sums[n] = vfloat{};
  for (int64_t k = 0; k < dim; k += kLanes, strips += strip_rows * kLanes) {
    const vfloat x_part = load(x + k);
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) sums[n] += load(strips + n * kLanes) * x_part;
  }
  return horizontal_sums(sums);
}

// to = or += the first `count` lanes of x; where they replace, whole vectors are written.
template <bool Add>
inline void put_scores(vfloat x, int64_t count, float* to) {
  if (!Add)
    store(to, x);
  else if (count >= kLanes)
    store(to, load(to) + x);
  else
    for (int64_t n = 0; n < count; ++n) to[n] += x[n];
}

// scores = x rows^T, or with Add += that. scratch (padded_dim / W, W, W).
template <bool Add, class Element>
inline void multiply_rows(const FloatRows& x, const RowsInPlace<Element>& rows,
                          const FloatRows& scores, float* scratch) {
  const int64_t dim = rows.padded_dim();
  const bool in_place = rows.whole_vectors() && x.count == 1;
  for (int64_t n = 0; n < rows.count; n += kLanes) {
    const int64_t count = min(kLanes, rows.count - n);
    rows.fetch_ahead(n, kLanes);
    if (in_place && count == kLanes) {
      put_scores<Add>(dot_in_place(rows.data + n * rows.stride, rows.stride, x.data, dim), kLanes,
                      scores.data + n);
      continue;
    }
    rows.copy_strips(n, count, kLanes, scratch);
    for (int64_t r = 0; r < x.count; ++r)
      put_scores<Add>(dot_strips(scratch, kLanes, x.row(r), dim), count, scores.row(r) + n);
  }
}

// scores += x rows^T, where `count` rows are strips (padded_dim / W, strip_rows, W), which go on for
// W - 1 rows.
inline void add_strip_products(const FloatRows& x, const float* strips, int64_t strip_rows,
                               int64_t count, int64_t padded_dim, const FloatRows& scores) {
  for (int64_t n = 0; n < count; n += kLanes)
    for (int64_t r = 0; r < x.count; ++r)
      put_scores<true>(dot_strips(strips + n * kLanes, strip_rows, x.row(r), padded_dim),
                       count - n, scores.row(r) + n);
}

// out (weights.count, dim) += weights (weights.count, count) rows, both of whole vectors.
template <class Element>
inline void add_weighted_chunk(const FloatRows& weights, const Element* rows, int64_t stride,
                               int64_t count, int64_t dim, const FloatRows& out) {
  for (int64_t n = 0; n < dim;) {
    const bool wide = dim - n >= kWideVectors * kLanes;
    for (int64_t r = 0; r < weights.count; r += kWideRows) {
      const int64_t num_rows = min(kWideRows, weights.count - r);
      if (wide)
        register_rows<kWideVectors, kRowMajor, true, kWideRows>(
            num_rows, count, weights.row(r), weights.stride, rows + n, stride, out.row(r) + n,
            out.stride);
      else
        register_rows<1, kRowMajor, true, kWideRows>(num_rows, count, weights.row(r),
                                                     weights.stride, rows + n, stride,
                                                     out.row(r) + n, out.stride);
    }
    n += wide ? kWideVectors * kLanes : kLanes;
  }
}

// out += weights rows; out has padded_dim columns. scratch (kValueChunk, padded_dim).
template <class Element>
inline void add_weighted_rows(const FloatRows& weights, const RowsInPlace<Element>& rows,
                              const FloatRows& out, float* scratch) {
  const int64_t dim = rows.padded_dim();
  const bool in_place =
      rows.whole_vectors() && (weights.count <= kWideRows || rows.are_floats());
  for (int64_t n = 0; n < rows.count; n += kValueChunk) {
    const int64_t count = min(kValueChunk, rows.count - n);
    rows.fetch_ahead(n, kValueChunk);
    const FloatRows some = {weights.data + n, weights.stride, weights.count};
    if (in_place) {
      add_weighted_chunk(some, rows.data + n * rows.stride, rows.stride, count, dim, out);
    } else {
      rows.copy(n, count, scratch);
      add_weighted_chunk(some, (const float*)scratch, dim, count, dim, out);
    }
  }
}

}  // namespace
}  // namespace relpos
