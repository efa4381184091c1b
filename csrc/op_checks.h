// What an op refuses: tensors whose sizes do not fit each other.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "op_arguments.h"
#include "params.h"

namespace relpos {

// relpos/ops/argument_checks.py has looked at all that users give, and says it better. Here the op refuses
// tensors whose sizes do not fit each other, as in a program that torch.jit.trace has written down
// for another length: a kernel would read beyond their memory.
inline void require(bool fits, const char* rule) {
  if (!fits) throw std::runtime_error(std::string("relpos native: ") + rule);
}

// Whether x has these sizes; below 0: -size or 1.
inline bool has_sizes(const Tensor& x, std::initializer_list<int64_t> sizes) {
  if (x.dim() != (int64_t)sizes.size()) return false;
  int64_t axis = 0;
  for (const int64_t size : sizes) {
    const int64_t found = x.size(axis++);
    if (found != std::abs(size) && !(size <= 0 && found == 1)) return false;
  }
  return true;
}

inline int64_t count_tokens(const Arguments& from, const Ints& grid) {
  int64_t tokens = 1;
  for (const int64_t size : grid) tokens *= size;
  return from.prefix + tokens;
}

inline void check_shapes(const Arguments& from) {
  require(from.q.dim() == 4 && from.k.dim() == 4 && from.v.dim() == 4, "q, k and v have 4 axes");
  const int64_t b = from.q.size(0), h = from.q.size(1), i = from.q.size(2), d = from.q.size(3);
  const int64_t g = from.k.size(1), j = from.k.size(2), value_dim = from.v.size(3);
  require(has_sizes(from.k, {b, g, j, d}) && g > 0 && h % g == 0, "k must be (b, g, j, d)");
  require(has_sizes(from.v, {b, g, j, value_dim}), "v must be (b, g, j, dv)");
  const ScalarType dtype = from.q.scalar_type();
  require(from.k.scalar_type() == dtype && from.v.scalar_type() == dtype,
          "k and v must have the dtype of q");
  int64_t rel_dim = d;
  if (from.q_rel) {
    require(from.q_rel->dim() == 4, "q_rel has 4 axes");
    if (from.key_grid.empty()) rel_dim = from.q_rel->size(3);
    require(has_sizes(*from.q_rel, {b, h, i, from.q_rel->size(3)}), "q_rel must be (b, h, i, d)");
  }
  const struct { const OptionalTensor& rows; bool has_width; int64_t width; } tables[] = {
      {from.keys, true, rel_dim}, {from.queries, true, d}, {from.bias, false, 0},
      {from.values, true, value_dim}};
  for (const auto& [rows, has_width, width] : tables) {
    if (!rows) continue;
    require(from.first_offsets.size() == kTableKinds, "each table has a first offset");
    require(rows->dim() > 1 && (has_width ? has_sizes(*rows, {-h, rows->size(1), width})
                                          : has_sizes(*rows, {-h, rows->size(1)})),
            "tables must be (h or 1, r, d), a bias (h or 1, r)");
    require(rows->scalar_type() == dtype, "tables must have the dtype of q");
  }
  if (from.mask) require(has_sizes(*from.mask, {-b, -h, -i, -j}), "mask must fit (b, h, i, j)");
  if (from.documents) {
    require(has_sizes(*from.documents, {-b, j}), "documents must be (b or 1, j)");
    const bool among_keys = from.query_start >= 0 && from.query_start + i <= j;
    require(from.query_documents ? has_sizes(*from.query_documents, {-b, i}) : among_keys,
            "query_documents must be (b or 1, i), or the queries among the keys");
  }
  if (from.key_ranges)
    require(has_sizes(*from.key_ranges, {-b, i, 2}), "key_ranges must be (b or 1, i, 2)");
  const size_t axes = from.key_grid.size();
  const auto fits = [](const Ints& list, size_t size) { return list.empty() || list.size() == size; };
  require(fits(from.zero_beyond, kTableKinds) && fits(from.window, 2 * std::max<size_t>(axes, 1)) &&
              fits(from.dropout_origin, 5),
          "lists must be as long as they are declared");
  require(!from.seed || has_sizes(*from.seed, {}), "seed must be one number");
  require(axes || !from.axis_ranges, "axis_ranges are of a grid");
  if (!axes) return;
  require(axes <= kMaxAxes, "a grid has too many axes");
  for (const Ints* list : {&from.query_grid, &from.axis_key_widths, &from.axis_has_q_rel,
                           &from.axis_has_queries, &from.axis_has_bias, &from.axis_has_values})
    require(list->size() == axes, "lists must have an element for each axis");
  require(count_tokens(from, from.key_grid) == j && count_tokens(from, from.query_grid) == i,
          "a grid must have as many tokens as there are");
  int64_t entries = 1, q_rel_dim = 0, coordinates = 0;
  for (size_t n = 0; n < axes; ++n) {
    entries *= 2 * from.key_grid[n] - 1, coordinates += from.query_grid[n];
    if (from.axis_has_q_rel[n]) q_rel_dim += from.axis_key_widths[n];
  }
  require(q_rel_dim == (from.q_rel ? from.q_rel->size(3) : 0), "q_rel must have each axis's part");
  if (from.axis_ranges)
    require(has_sizes(*from.axis_ranges, {-b, coordinates, 2}),
            "axis_ranges must be (b or 1, sum of query_grid, 2)");
  if (from.joint_bias)
    require(has_sizes(*from.joint_bias, {-h, entries}), "joint_bias must be (h or 1, entries)");
}

}  // namespace relpos
