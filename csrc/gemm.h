// Matrix products of tiles that lie in cache: register blocks of MR rows by NV vectors.
//
// Two layouts of the right side:
//   panels    the columns in panels of NR, each `depth x NR` (a transposed matrix is packed so)
//   rows      the matrix as it lies, `depth` rows of `width` numbers, a multiple of W
// and three of the left side:
//   panels    the rows in panels of MR, each `depth x MR`
//   rows      as it lies
//   columns   as it lies, read transposed
#pragma once

namespace relpos {
namespace {

constexpr int NR = NV * W;

// C (M x N vectors) = or += A B; A's element (row, k) is at row * a_row + k * a_step.
template <int M, int N, bool Add>
inline void register_block(int64_t depth, const float* __restrict a, int64_t a_row, int64_t a_step,
                           const float* __restrict b, int64_t b_row, float* __restrict c,
                           int64_t c_row) {
  vfloat sums[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[m][n] = vfloat{};
  for (int64_t k = 0; k < depth; ++k) {
    vfloat row[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) row[n] = load(b + k * b_row + n * W);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const float factor = a[m * a_row + k * a_step];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[m][n] += factor * row[n];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      float* to = c + m * c_row + n * W;
      // Added to what was there at the end, not at the start: sums of sums round less.
      store(to, Add ? load(to) + sums[m][n] : sums[m][n]);
    }
}

enum Left { kPanels, kRows, kColumns };

// A register block with any number of rows up to MR.
template <int N, Left L, bool Add, int M = MR>
inline void some_rows(int64_t count, int64_t depth, const float* a, int64_t lda, const float* b,
                      int64_t b_row, float* c, int64_t c_row) {
  if constexpr (M > 0) {
    if (count != M) {
      some_rows<N, L, Add, M - 1>(count, depth, a, lda, b, b_row, c, c_row);
      return;
    }
    if constexpr (L == kPanels) register_block<M, N, Add>(depth, a, 1, MR, b, b_row, c, c_row);
    if constexpr (L == kRows) register_block<M, N, Add>(depth, a, lda, 1, b, b_row, c, c_row);
    if constexpr (L == kColumns) register_block<M, N, Add>(depth, a, 1, lda, b, b_row, c, c_row);
  }
}

// C (rows x columns, in whole vectors) = A B, with A and B in panels.
__attribute__((noinline)) inline void times_panels(int64_t rows, int64_t depth, const float* a,
                                                   const float* panels, int64_t columns, float* c,
                                                   int64_t c_row) {
  for (int64_t n = 0; n < columns; n += NR)
    for (int64_t m = 0; m < rows; m += MR) {
      const float *left = a + m * depth, *right = panels + n * depth;
      float* out = c + m * c_row + n;
      const int64_t some = smaller(MR, rows - m);
      if (columns - n > NR - W)
        some_rows<NV, kPanels, false>(some, depth, left, 0, right, NR, out, c_row);
      else
        for (int64_t v = 0; v < columns - n; v += W)
          some_rows<1, kPanels, false>(some, depth, left, 0, right + v, NR, out + v, c_row);
    }
}

// C (rows x width) += A B, with B's rows as they lie; the depth is cut so that B stays in cache.
template <Left L>
__attribute__((noinline)) void add_times_rows(int64_t rows, int64_t depth, const float* a,
                                              int64_t lda, const float* b, int64_t b_row, float* c,
                                              int64_t c_row, int64_t width) {
  constexpr int64_t kDepth = 128;
  for (int64_t n = 0; n < width; n += NR) {
    const int64_t vectors = smaller(NV, (width - n) / W);
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int64_t some = smaller(kDepth, depth - k);
      for (int64_t m = 0; m < rows; m += MR) {
        const float* left = L == kRows ? a + m * lda + k : a + m + k * lda;
        const float* right = b + k * b_row + n;
        float* out = c + m * c_row + n;
        const int64_t count = smaller(MR, rows - m);
        if (vectors == NV) {
          some_rows<NV, L, true>(count, some, left, lda, right, b_row, out, c_row);
        } else {
          for (int64_t v = 0; v < vectors; ++v)
            some_rows<1, L, true>(count, some, left, lda, right + v * W, b_row, out + v * W, c_row);
        }
      }
    }
  }
}

// Rows (count x depth, `row` apart) as panels of MR for the left side.
inline void pack_left(const float* from, int64_t row, int64_t count, int64_t depth, float* to) {
  for (int64_t m = 0; m < count; m += MR) {
    const int64_t some = smaller(MR, count - m);
    float* panel = to + m * depth;
    for (int64_t r = 0; r < some; ++r)
      for (int64_t k = 0; k < depth; ++k) panel[k * MR + r] = from[(m + r) * row + k];
  }
}

// y += factor * x.
inline void add_scaled(int64_t count, float factor, const float* x, float* y) {
  for (int64_t n = 0; n < count; ++n) y[n] += factor * x[n];
}

inline double dot_in_double(const float* x, const float* y, int64_t count) {
  double total = 0;
  for (int64_t n = 0; n < count; ++n) total += (double)x[n] * (double)y[n];
  return total;
}

inline float dot(const float* x, const float* y, int64_t count) {
  vfloat sums = {};
  int64_t n = 0;
  for (; n + W <= count; n += W) sums += load(x + n) * load(y + n);
  float total = sum_of(sums);
  for (; n < count; ++n) total += x[n] * y[n];
  return total;
}

}  // namespace
}  // namespace relpos
