// A strip: for the rows of one block, numbers by offset, of the offsets around the current tile.
//
// It moves along a window from left to right. Read, it is the unsheared half of the skew: row r's
// number for key j is at column (j - position of r), so that a tile is a view whose rows start one
// column earlier each. Written, it is the adjoint: sums by offset, that go to a table's gradient.
#pragma once

namespace relpos {
namespace {

constexpr int64_t kStrip = 512;            // columns that a strip holds
constexpr int64_t kStripRow = kStrip + 16;  // an odd number of cache lines, against aliasing

struct Strip {
  float* data = nullptr;
  int64_t origin = 0;  // column `origin` is at data[0]
  int64_t end = 0;     // columns origin..end-1 hold something

  const float* row(int64_t r) const { return data + r * kStripRow - origin; }
  float* row(int64_t r) { return data + r * kStripRow - origin; }

  void restart(int64_t at) { origin = end = at; }

  // Make room for the columns from..to-1 of sums, new ones zero. Columns before `from` are
  // complete: where they have to go, flush(begin, end) is called for them first.
  template <class Flush>
  void reach(int64_t from, int64_t to, int64_t rows, const Flush& flush) {
    if (end == 0) restart(from);
    if (to - origin > kStrip) {
      flush(origin, smaller(from, end));
      move(from, rows);
    }
    if (to > end) clear(to, rows);
  }

  // Forget the columns before `at`.
  void move(int64_t at, int64_t rows) {
    const int64_t kept = larger(end - at, 0);
    for (int64_t r = 0; r < rows && kept > 0; ++r) {
      float* to = data + r * kStripRow;
      const float* from = to + (at - origin);
      for (int64_t n = 0; n < kept; ++n) to[n] = from[n];
    }
    origin = at;
    end = larger(end, at);
  }

  void clear(int64_t until, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) fill(row(r) + end, until - end, 0);
    end = until;
  }
};

// x += the strip, sheared: `count` keys from `key` on, for the query at `position`.
inline void add_sheared(const float* strip_row, const Window& window, int64_t key, int64_t position,
                        int64_t count, float* x) {
  const int64_t first = key - position - window.base, last = window.count - W;
  for (int64_t n = 0; n < count; n += W)
    store(x + n, load(x + n) + load(strip_row + clamped(first + n, 0, last)));
}

// The adjoint: the strip += x, unsheared.
inline void collect_sheared(const float* x, const Window& window, int64_t key, int64_t position,
                            int64_t count, float* strip_row) {
  const int64_t first = key - position - window.base, last = window.count - W;
  for (int64_t n = 0; n < count; n += W) {
    float* to = strip_row + clamped(first + n, 0, last);
    store(to, load(to) + load(x + n));
  }
}

// The same seen from the keys: `met` has a row for each of `count` keys from `key` on, and in it
// the window's columns from `low` on. x, which gets `factor` times that, has a row for each query
// from `position` on, `row` apart. Rows of `met` are read, and numbers of x written, up to the next
// whole vector of keys.
inline void add_sheared_by_key(float factor, const float* met, int64_t low, const Window& window,
                               int64_t key, int64_t count, int64_t position, int64_t queries,
                               float* x, int64_t row) {
  for (int64_t c = 0; c < count; c += W)
    for (int64_t r = 0; r < queries; r += W) {
      vfloat square[W];  // of a key and, backwards, the queries; then transposed
#pragma GCC unroll 16
      for (int n = 0; n < W; ++n)
        square[n] = load(met + (c + n) * kStripRow +
                         window.column(key + c + n, position + r + W - 1) - low);
      transpose(square);
      float* to = x + r * row + c;
      for (int64_t n = 0; n < smaller(W, queries - r); ++n)
        store(to + n * row, load(to + n * row) + factor * square[W - 1 - n]);
    }
}

// The adjoint: met += factor * x.
inline void collect_sheared_by_key(float factor, float* met, int64_t low, const Window& window,
                                   int64_t key, int64_t count, int64_t position, int64_t queries,
                                   const float* x, int64_t row) {
  for (int64_t c = 0; c < count; c += W)
    for (int64_t r = 0; r < queries; r += W) {
      vfloat square[W];
#pragma GCC unroll 16
      for (int n = 0; n < W; ++n)
        square[W - 1 - n] = r + n < queries ? load(x + (r + n) * row + c) : vfloat{};
      transpose(square);
      for (int64_t n = 0; n < smaller(W, count - c); ++n) {
        float* to = met + (c + n) * kStripRow +
                    window.column(key + c + n, position + r + W - 1) - low;
        store(to, load(to) + factor * square[n]);
      }
    }
}

}  // namespace
}  // namespace relpos
