// Matrix products of tiles that lie in cache, as in BLIS: register blocks of MR rows by NR columns,
// whose sums stay in registers.
//
//     C (rows, columns) = or += A (rows, depth) B (depth, columns)
//
//     kPackedRows   A in panels of MR rows, each (depth, MR): pack_rows
//     kRowMajor     A as it lies, rows `a_stride` apart
//     kTransposed   A as it lies transposed: (depth, rows), `a_stride` apart
//
// B is packed, in panels of NR columns, each (depth, NR); or row-major, rows `b_stride` apart. C is
// row-major, rows `c_stride` apart. Arguments are in the order of BLAS: the sizes, A, B, C.
//
// The columns of B and C are whole vectors, W = kLanes floats; gemm_packed takes any number of
// columns, and writes C up to the next whole vector.
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "simd.h"

namespace relpos {
namespace {

// Depth of a product that is computed at once: NR columns of B so deep fill half a first-level
// cache.
constexpr int64_t kMaxDepth = 128;

// C (Rows, Vectors * W) = or += A B; A's element (row, k) is at row * a_row + k * a_column. Those of
// B may be of 16 bits (elements.h).
template <int Rows, int Vectors, bool Add, class Element>
inline void register_block(int64_t depth, const float* __restrict a, int64_t a_row,
                           int64_t a_column, const Element* __restrict b, int64_t b_stride,
                           float* __restrict c, int64_t c_stride) {
  vfloat sums[Rows][Vectors];
#pragma GCC unroll 16
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) sums[m][n] = vfloat{};
  for (int64_t k = 0; k < depth; ++k) {
    vfloat b_row[Vectors];
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) b_row[n] = load(b + k * b_stride + n * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < Rows; ++m) {
      const float a_element = a[m * a_row + k * a_column];
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; ++n) sums[m][n] += a_element * b_row[n];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) {
      float* to = c + m * c_stride + n * kLanes;
      // Added to what was there at the end, not at the start: sums of sums round less.
      store(to, Add ? load(to) + sums[m][n] : sums[m][n]);
    }
}

enum ALayout { kPackedRows, kRowMajor, kTransposed };

// A register block with any number of rows up to MR: the template for that number is looked for
// from Rows = MR down.
template <int Vectors, ALayout Layout, bool Add, int Rows = kMR, class Element>
inline void register_rows(int64_t rows, int64_t depth, const float* a, int64_t a_stride,
                          const Element* b, int64_t b_stride, float* c, int64_t c_stride) {
  if constexpr (Rows > 0) {
    if (rows != Rows) {
      register_rows<Vectors, Layout, Add, Rows - 1>(rows, depth, a, a_stride, b, b_stride, c,
                                                    c_stride);
      return;
    }
    if constexpr (Layout == kPackedRows)
      register_block<Rows, Vectors, Add>(depth, a, 1, kMR, b, b_stride, c, c_stride);
    if constexpr (Layout == kRowMajor)
      register_block<Rows, Vectors, Add>(depth, a, a_stride, 1, b, b_stride, c, c_stride);
    if constexpr (Layout == kTransposed)
      register_block<Rows, Vectors, Add>(depth, a, 1, a_stride, b, b_stride, c, c_stride);
  }
}

// Of each panel of MR rows of a block, a run from..to-1: of columns of C, or of the depth. The rest
// is not wanted, or zero.
struct PanelRuns {
  static constexpr int64_t kMaxPanels = (kBlockRows + kMR - 1) / kMR;
  int64_t from[kMaxPanels], to[kMaxPanels];
};

// C = A B, both packed; with runs, those panels of C that have some of their columns. Not inlined,
// as below: each copy has the register blocks of 1..MR rows.
__attribute__((noinline)) inline void gemm_packed(int64_t rows, int64_t columns, int64_t depth,
                                                  const float* a_panels, const float* b_panels,
                                                  float* c, int64_t c_stride,
                                                  const PanelRuns* runs = nullptr) {
  for (int64_t n = 0; n < columns; n += kNR)
    for (int64_t m = 0; m < rows; m += kMR) {
      if (runs && (runs->to[m / kMR] <= n || runs->from[m / kMR] >= n + kNR)) continue;
      const float *a = a_panels + m * depth, *b = b_panels + n * depth;
      float* to = c + m * c_stride + n;
      const int64_t panel_rows = min(kMR, rows - m);
      if (columns - n > kNR - kLanes)
        register_rows<kNRVectors, kPackedRows, false>(panel_rows, depth, a, 0, b, kNR, to,
                                                      c_stride);
      else
        for (int64_t v = 0; v < columns - n; v += kLanes)
          register_rows<1, kPackedRows, false>(panel_rows, depth, a, 0, b + v, kNR, to + v,
                                               c_stride);
    }
}

// C += A B, A as it lies or transposed, B row-major; with runs, A is zero outside them.
template <ALayout Layout>
__attribute__((noinline)) void gemm_add(int64_t rows, int64_t columns, int64_t depth,
                                        const float* a, int64_t a_stride, const float* b,
                                        int64_t b_stride, float* c, int64_t c_stride,
                                        const PanelRuns* runs = nullptr) {
  for (int64_t n = 0; n < columns; n += kNR) {
    const int64_t vectors = min(kNRVectors, (columns - n) / kLanes);
    for (int64_t part = 0; part < depth; part += kMaxDepth) {
      const int64_t part_end = min(part + kMaxDepth, depth);
      for (int64_t m = 0; m < rows; m += kMR) {
        const int64_t k = runs ? max(part, runs->from[m / kMR]) : part;
        const int64_t part_depth = (runs ? min(part_end, runs->to[m / kMR]) : part_end) - k;
        if (part_depth <= 0) continue;
        const float* a_part = Layout == kRowMajor ? a + m * a_stride + k : a + m + k * a_stride;
        const float* b_part = b + k * b_stride + n;
        float* to = c + m * c_stride + n;
        const int64_t part_rows = min(kMR, rows - m);
        if (vectors == kNRVectors) {
          register_rows<kNRVectors, Layout, true>(part_rows, part_depth, a_part, a_stride, b_part,
                                                  b_stride, to, c_stride);
        } else {
          for (int64_t v = 0; v < vectors; ++v)
            register_rows<1, Layout, true>(part_rows, part_depth, a_part, a_stride,
                                           b_part + v * kLanes, b_stride, to + v * kLanes,
                                           c_stride);
        }
      }
    }
  }
}

// Calls with(k, n, column) for columns of W numbers, element k of the rows n..n+W-1 of from (count,
// depth), rows `stride` apart: of whole squares of W rows and W elements.
template <class With>
inline void for_each_column(const float* from, int64_t stride, int64_t count, int64_t depth,
                            const With& with) {
  for (int64_t n = 0; n + kLanes <= count; n += kLanes)
    for (int64_t k = 0; k + kLanes <= depth; k += kLanes) {
      vfloat square[kLanes];
#pragma GCC unroll 16
      for (int m = 0; m < kLanes; ++m) square[m] = load(from + (n + m) * stride + k);
      transpose(square);
#pragma GCC unroll 16
      for (int m = 0; m < kLanes; ++m) with(k + m, n, square[m]);
    }
}

// to (depth, count), rows `to_stride` apart, = from (count, depth), rows `stride` apart, transposed.
inline void transpose_matrix(const float* from, int64_t stride, int64_t count, int64_t depth,
                             float* to, int64_t to_stride) {
  for_each_column(from, stride, count, depth, [&](int64_t k, int64_t n, vfloat column) {
    store(to + k * to_stride + n, column);
  });
  const int64_t columns = round_down(count, kLanes), elements = round_down(depth, kLanes);
  for (int64_t n = 0; n < count; ++n)
    for (int64_t k = n < columns ? elements : 0; k < depth; ++k)
      to[k * to_stride + n] = from[n * stride + k];
}

// from (count, depth), rows `stride` apart, transposed: to a panel (depth, NR), zeros after the last
// column.
inline void pack_panel(const float* from, int64_t stride, int64_t count, int64_t depth,
                       float* panel) {
  if (count < kNR) fill(panel, depth * kNR, 0);
  transpose_matrix(from, stride, count, depth, panel, kNR);
}

// from (count, depth), rows `stride` apart, in panels of MR rows: panels (count / MR, depth, MR).
inline void pack_rows(const float* from, int64_t stride, int64_t count, int64_t depth,
                      float* panels) {
  if constexpr (kLanes % kMR == 0)
    for_each_column(from, stride, count, depth, [&](int64_t k, int64_t n, vfloat column) {
      float rows[kLanes];
      store(rows, column);
      for (int64_t m = 0; m < kLanes; m += kMR)
        __builtin_memcpy(panels + (n + m) * depth + k * kMR, rows + m, kMR * sizeof(float));
    });
  const int64_t whole = kLanes % kMR == 0 ? round_down(count, kLanes) : 0;
  const int64_t elements = round_down(depth, kLanes);
  for (int64_t m = 0; m < count; m += kMR) {
    const int64_t first = m < whole ? elements : 0;
    const int64_t rows = min(kMR, count - m);
    float* panel = panels + m * depth;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = first; k < depth; ++k) panel[k * kMR + r] = from[(m + r) * stride + k];
  }
}

#if !RELPOS_TILES

// Of packed rows and columns: no more than the numbers themselves.
inline int64_t packed_depth(int64_t depth) { return depth; }

// One column of panels (columns / NR, depth, NR), or one of rows (count, columns), from floats.
inline void put_column(const float* from, int64_t column, int64_t depth, packed* panels) {
  packed* to = panels + column / kNR * kNR * depth + column % kNR;
  for (int64_t k = 0; k < depth; ++k) to[k * kNR] = from[k];
}
inline void put_row(const float* from, int64_t row, int64_t columns, packed* rows) {
  __builtin_memcpy(rows + row * columns, from, (uint64_t)(columns * (int64_t)sizeof(float)));
}

#endif

// y (count) += x (count).
inline void add_to(int64_t count, const float* __restrict x, float* __restrict y) {
  for (int64_t n = 0; n < count; ++n) y[n] += x[n];
}

// y (count) += factor * x (count).
inline void add_scaled(int64_t count, float factor, const float* x, float* y) {
  for (int64_t n = 0; n < count; ++n) y[n] += factor * x[n];
}

// x . y, both (count).
inline double dot_in_double(const float* x, const float* y, int64_t count) {
  double sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += (double)x[n] * (double)y[n];
  return sum;
}

inline float dot(const float* x, const float* y, int64_t count) {
  vfloat sums = {};
  int64_t n = 0;
  for (; n + kLanes <= count; n += kLanes) sums += load(x + n) * load(y + n);
  float sum = horizontal_sum(sums);
  for (; n < count; ++n) sum += x[n] * y[n];
  return sum;
}

// The dot products of W rows with x, all (count) with whole vectors: to the bit those of `dot`,
// without adding up the lanes of each by itself.
inline vfloat dot_rows(const float* const (&rows)[kLanes], const float* x, int64_t count) {
  vfloat sums[kLanes];
#pragma GCC unroll 16
  for (int n = 0; n < kLanes; ++n) sums[n] = vfloat{};
  for (int64_t k = 0; k < count; k += kLanes) {
    const vfloat x_part = load(x + k);
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n) sums[n] += load(rows[n] + k) * x_part;
  }
  return horizontal_sums(sums);
}

// y (count) += the dot products of as many rows with x, (count, depth) and (depth), whole vectors.
inline void add_dots(int64_t count, int64_t depth, const float* rows, const float* x, float* y) {
  int64_t r = 0;
  for (; r + kLanes <= count; r += kLanes) {
    const float* group[kLanes];
    for (int n = 0; n < kLanes; ++n) group[n] = rows + (r + n) * depth;
    store(y + r, load(y + r) + dot_rows(group, x, depth));
  }
  for (; r < count; ++r) y[r] += dot(rows + r * depth, x, depth);
}

// What rounding took from after = before + x, exactly (Knuth's TwoSum).
template <class T>
inline T lost_in_sum(T before, T x, T after) {
  const T added = after - before;
  return (before - (after - added)) + (x - added);
}

// sums (columns) += the column sums of x (rows, columns), rows `stride` apart, and lost (columns),
// if there is one, += what the additions lose. Rows are summed in groups of 8, and all of them
// before they are added, which rounds less.
inline void add_column_sums(int64_t rows, int64_t columns, const float* x, int64_t stride,
                            float* sums, float* lost = nullptr) {
  int64_t n = 0;
  for (; n + kLanes <= columns; n += kLanes) {
    vfloat of_rows = {};
    for (int64_t r = 0; r < rows;) {
      vfloat of_group = {};
      for (const int64_t end = min(r + 8, rows); r < end; ++r) of_group += load(x + r * stride + n);
      of_rows += of_group;
    }
    const vfloat before = load(sums + n), after = before + of_rows;
    store(sums + n, after);
    if (lost) store(lost + n, load(lost + n) + lost_in_sum(before, of_rows, after));
  }
  for (; n < columns; ++n) {
    double of_rows = 0;
    for (int64_t r = 0; r < rows; ++r) of_rows += x[r * stride + n];
    const float before = sums[n], after = before + (float)of_rows;
    sums[n] = after;
    if (lost) lost[n] += lost_in_sum(before, (float)of_rows, after);
  }
}

}  // namespace
}  // namespace relpos
