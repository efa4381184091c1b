// Products of a few rows of floats with rows of a call's tensors (keys, values, tables), each of
// which is read once.
//
//     scores (x_rows, count)   = x (x_rows, dim) rows (count, dim)^T           multiply_by_rows
//     the same of a table, += where each query has its offsets                 add_sheared_products
//     out (x_rows, dim)       += weights (x_rows, count) rows (count, dim)     add_weighted_rows
//
// Rows are read as they lie. They are copied as floats, a few at a time, where their width is not
// whole vectors, and where so many rows of x want them that to convert them once is cheaper. For
// dot products they are copied in squares, W columns of each row side by side, (dim / W, W, W), or,
// for kPanelRows rows of x or more, transposed. Sums are those of `dot` to the bit, whichever way.
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

// For so many rows of x, rows are transposed for dot products: their lanes need not be added up.
constexpr int64_t kPanelRows = 8;

// How far ahead rows are fetched from memory, a few at a time: a processor does not do it across
// rows that lie apart, nor in time while it converts; and many asked for at once make it wait.
constexpr int64_t kFetchedBytes = 8192;
constexpr int64_t kFetchedRows = 8;

// Register blocks of so many vectors: a row of values is read in as few runs as can be.
constexpr int kWideVectors = 2 * kNRVectors;
constexpr int kWideRows = kMR / 2;

// Some rows of a tensor, (count, dim), `stride` elements apart, of Elements as they lie.
template <class Element>
struct RowsInPlace {
  const Element* data;
  int64_t stride, count, dim;
  int64_t rows_ahead;  // that kFetchedBytes are

  RowsInPlace(const void* tensor, int64_t first_element, int64_t row_stride, int64_t num_rows,
              int64_t width)
      : data((const Element*)tensor + first_element),
        stride(row_stride),
        count(num_rows),
        dim(width),
        rows_ahead(kFetchedBytes / max(width * (int64_t)sizeof(Element), 1)) {}
  bool are_floats() const { return sizeof(Element) == sizeof(float); }
  bool whole_vectors() const { return dim % kLanes == 0; }
  int64_t padded_dim() const { return round_up(dim, kLanes); }

  // The rows that follow first..first+number-1 by kFetchedBytes will be wanted soon. Inlined: GCC
  // takes a function that does nothing else for one without effect, and drops its calls.
  __attribute__((always_inline)) void fetch_ahead(int64_t first, int64_t number) const {
    const int64_t bytes = dim * (int64_t)sizeof(Element);
    for (int64_t n = first; n < min(first + number, count - rows_ahead); ++n)
      for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char*)(data + (n + rows_ahead) * stride) + at, 0, 2);
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
    for (int64_t n = 0; n < number; ++n) {
      fetch_ahead(first + n, 1);
      for (int64_t k = 0; k < dim; k += kLanes)
        store(to + n * padded_dim() + k, load_columns(first + n, k));
    }
  }

  // The same in squares, of at most W rows: to (padded_dim / W, W, W).
  void copy_squares(int64_t first, int64_t number, float* to) const {
    for (int64_t n = 0; n < number; ++n) {
      fetch_ahead(first + n, 1);
      for (int64_t k = 0; k < dim; k += kLanes)
        store(to + (k + n) * kLanes, load_columns(first + n, k));
    }
  }

  // The same transposed, at most NR rows: to a panel (padded_dim, NR), zeros after the last row.
  void copy_transposed(int64_t first, int64_t number, float* panel) const {
    for (int64_t n = 0; n < kNR; n += kLanes) {
      fetch_ahead(first + n, clamp(number - n, 0, kLanes));
      for (int64_t k = 0; k < dim; k += kLanes) {
        vfloat square[kLanes];
#pragma GCC unroll 16
        for (int m = 0; m < kLanes; ++m)
          square[m] = n + m < number ? load_columns(first + n + m, k) : vfloat{};
        transpose(square);
#pragma GCC unroll 16
        for (int m = 0; m < kLanes; ++m) store(panel + (k + m) * kNR + n, square[m]);
      }
    }
  }
};

// Some rows of floats, or of numbers by key: (count, ...), `stride` apart.
struct FloatRows {
  float* data;
  int64_t stride, count;

  float* row(int64_t r) const { return data + r * stride; }
};

// The dot products of W rows, from row `first` on, with x (dim), whole vectors.
template <class Element>
inline vfloat dot_in_place(const RowsInPlace<Element>& rows, int64_t first, const float* x) {
  vfloat sums[kLanes];
#pragma GCC unroll 4
  for (int n = 0; n < kLanes; n += 4) {
    const Element* const four = rows.data + (first + n) * rows.stride;
    rows.fetch_ahead(first + n, 4);
    vfloat of_four[4] = {};
    for (int64_t k = 0; k < rows.dim; k += kLanes) {
      const vfloat x_part = load(x + k);
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) of_four[m] += load(four + m * rows.stride + k) * x_part;
    }
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) sums[n + m] = of_four[m];
  }
  return horizontal_sums(sums);
}

// The same for rows in squares (dim / W, W, W).
inline vfloat dot_squares(const float* squares, const float* x, int64_t dim) {
  vfloat sums[kLanes];
#pragma GCC unroll 16
  for (int n = 0; n < kLanes; ++n) sums[n] = vfloat{};
  for (int64_t k = 0; k < dim; k += kLanes, squares += kLanes * kLanes) {
    const vfloat x_part = load(x + k);
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) sums[n] += load(squares + n * kLanes) * x_part;
  }
  return horizontal_sums(sums);
}

// Rows of x that are multiplied with a panel at once: each load serves several products.
constexpr int kTogether = 4;

// sums: the lanes First, First + Step, ... of the dot products of rows with a panel's columns,
// added up as horizontal_sum does; a lane's own sum is of every W-th number.
template <int First, int Step>
__attribute__((always_inline)) inline void sum_lanes(const float* const (&rows)[kTogether],
                                                     const float* panel, int64_t dim,
                                                     vfloat (&sums)[kTogether][kNRVectors]) {
  vfloat others[kTogether][kNRVectors];
  if constexpr (Step < kLanes) {
    sum_lanes<First, 2 * Step>(rows, panel, dim, sums);
    sum_lanes<First + Step, 2 * Step>(rows, panel, dim, others);
  } else {
#pragma GCC unroll 4
    for (int m = 0; m < kTogether; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < kNRVectors; ++v) sums[m][v] = vfloat{};
    for (int64_t k = First; k < dim; k += kLanes) {
      vfloat columns[kNRVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kNRVectors; ++v) columns[v] = load(panel + k * kNR + v * kLanes);
#pragma GCC unroll 4
      for (int m = 0; m < kTogether; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < kNRVectors; ++v) sums[m][v] += rows[m][k] * columns[v];
    }
    return;
  }
#pragma GCC unroll 4
  for (int m = 0; m < kTogether; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < kNRVectors; ++v) sums[m][v] += others[m][v];
}

// use(r, n, count, products): of x's row r with the `count` rows from n on, at most W; lanes from
// `count` on are anything. scratch (NR, padded_dim).
template <class Element, class Use>
inline void for_each_panel_product(const FloatRows& x, const RowsInPlace<Element>& rows,
                                   float* scratch, const Use& use) {
  for (int64_t n = 0; n < rows.count; n += kNR) {
    rows.copy_transposed(n, min(kNR, rows.count - n), scratch);
    for (int64_t r = 0; r < x.count; r += kTogether) {
      // The last row again and again, where there are fewer.
      const float* of_x[kTogether];
      for (int m = 0; m < kTogether; ++m) of_x[m] = x.row(min(r + m, x.count - 1));
      vfloat sums[kTogether][kNRVectors];
      sum_lanes<0, 1>(of_x, scratch, rows.padded_dim(), sums);
      for (int64_t m = 0; m < min(kTogether, x.count - r); ++m)
        for (int64_t v = 0; v < kNRVectors && n + v * kLanes < rows.count; ++v)
          use(r + m, n + v * kLanes, min(kLanes, rows.count - n - v * kLanes), sums[m][v]);
    }
  }
}

// The same, for any number of rows of x. scratch (max(W, NR), padded_dim).
template <class Element, class Use>
inline void for_each_product(const FloatRows& x, const RowsInPlace<Element>& rows, float* scratch,
                             const Use& use) {
  if (x.count >= kPanelRows) return for_each_panel_product(x, rows, scratch, use);
  const bool in_place = rows.whole_vectors() && x.count == 1;
  for (int64_t n = 0; n < rows.count; n += kLanes) {
    const int64_t count = min(kLanes, rows.count - n);
    if (in_place && count == kLanes) {
      use(0, n, count, dot_in_place(rows, n, x.data));
      continue;
    }
    rows.copy_squares(n, count, scratch);
    for (int64_t r = 0; r < x.count; ++r)
      use(r, n, count, dot_squares(scratch, x.row(r), rows.padded_dim()));
  }
}

// scores = x rows^T, in whole vectors.
template <class Element>
inline void multiply_by_rows(const FloatRows& x, const RowsInPlace<Element>& rows,
                             const FloatRows& scores, float* scratch) {
  for_each_product(x, rows, scratch, [&](int64_t r, int64_t n, int64_t, vfloat products) {
    store(scores.row(r) + n, products);
  });
}

// Where the products with a table's rows belong: those of x's row r with row n to the key
// first_key[r] + n, if it is one of 0..num_keys-1.
struct Shear {
  int64_t first_key[kBlockRows];
  int64_t num_keys;
};

// scores += x rows^T, sheared.
template <class Element>
inline void add_sheared_products(const FloatRows& x, const RowsInPlace<Element>& rows,
                                 const FloatRows& scores, const Shear& shear, float* scratch) {
  for_each_product(x, rows, scratch, [&](int64_t r, int64_t n, int64_t count, vfloat products) {
    const int64_t key = shear.first_key[r] + n;
    float* const to = scores.row(r);
    if (key >= 0 && key + kLanes <= shear.num_keys && count == kLanes)
      return store(to + key, load(to + key) + products);
    for (int64_t m = max(-key, 0); m < min(count, shear.num_keys - key); ++m)
      to[key + m] += products[m];
  });
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
  const int64_t chunk = in_place && weights.count <= kWideRows ? kFetchedRows : kValueChunk;
  for (int64_t n = 0; n < rows.count; n += chunk) {
    const int64_t count = min(chunk, rows.count - n);
    const FloatRows some = {weights.data + n, weights.stride, weights.count};
    if (in_place) {
      rows.fetch_ahead(n, count);
      add_weighted_chunk(some, rows.data + n * rows.stride, rows.stride, count, dim, out);
    } else {
      rows.copy(n, count, scratch);
      add_weighted_chunk(some, (const float*)scratch, dim, count, dim, out);
    }
  }
}

}  // namespace
}  // namespace relpos
