// Tokens of a grid, in row-major order: the coordinates of the last axis change fastest.
#pragma once

#include <stdint.h>

#include "integers.h"
#include "params.h"

namespace relpos {
namespace {

// A query or a key that lies on the grid.
struct GridToken {
  const Grid& grid;
  int64_t Axis::*size;  // of an axis: size_q or size_k
  int64_t coords[kMaxAxes];

  // Token `number` of those that lie on the grid, which begin after the prefix.
  static GridToken query(const Grid& grid, int64_t number) {
    return GridToken(grid, &Axis::size_q, number);
  }
  static GridToken key(const Grid& grid, int64_t number) {
    return GridToken(grid, &Axis::size_k, number);
  }

  // Go on along an axis, and after its end to the next coordinate of the axis before it. The later
  // axes stay.
  void step(int axis) {
    for (int n = axis; n >= 0; --n) {
      if (++coords[n] < grid.axes[n].*size) return;
      coords[n] = 0;
    }
  }

  // The entry of the joint bias for a query and a key is centre + key's index - query's index.
  int64_t joint_bias_index() const {
    int64_t index = 0;
    for (int n = 0; n < grid.num_axes; ++n)
      index = index * (2 * grid.axes[n].size_k - 1) + coords[n];
    return index;
  }

 private:
  GridToken(const Grid& of, int64_t Axis::*its_size, int64_t number) : grid(of), size(its_size) {
    for (int n = grid.num_axes - 1; n >= 0; --n) {
      coords[n] = number % (grid.axes[n].*size);
      number /= grid.axes[n].*size;
    }
  }
};

// The entry of the joint bias whose offsets are 0.
inline int64_t joint_bias_centre(const Grid& grid) { return grid.joint_bias_size / 2; }

}  // namespace
}  // namespace relpos
