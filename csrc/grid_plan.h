// Where the tables of a grid's axes lie, in three forms:
//
//     given        as the caller has them, one after another (Grid::axis_tables)
//     padded       (table_rows, padded row_dim): rows of whole vectors, which is how gradients are
//                  summed, and how rows are added up
//     transposed   (row_dim, transposed_stride): a column for each table row, for products with the
//                  rows of a block, or with keys
//
// W = kLanes, MR = kMR, NR = kNR. A coordinate is a token's place along one axis; in buffers by
// coordinate those of all axes lie side by side, each axis's from its first_coord on.
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "params.h"

namespace relpos {
namespace {

// Up to MR tokens whose table rows nearly coincide are multiplied together, by whole panels of NR
// (RowGroup in grid_terms.h). Such a product may write so many columns more than there are
// coordinates, and read so many beyond the end of a table.
constexpr int64_t kRowGroupSlack = kMR + kNR;

struct AxisPlan {
  int64_t first_coord_k = 0;  // of its coordinate 0 among those of all axes, for keys (sum_size_k)
  int64_t first_coord_q = 0;  // likewise for queries, of the axes with such a table (sum_size_q)
  int64_t first_q_rel = 0;    // where its part of a row of q_rel begins
  int64_t table_rows = 0;     // of each of its tables
  int64_t transposed_stride = 0;
  // Of the rows of each kind of table; 0 where there is none.
  int64_t row_dim[kTableKinds] = {}, padded_row_dim[kTableKinds] = {};
  // Where each table begins, in floats; absent ones are empty. A bias is not transposed.
  int64_t given[kTableKinds] = {}, padded[kTableKinds] = {}, transposed[kTableKinds] = {};
};

struct GridPlan {
  AxisPlan axes[kMaxAxes];
  int64_t padded_size = 0, transposed_size = 0;  // floats of all tables in these forms
  int64_t sum_size_q = 0;                        // over the axes that have a table of queries
  int64_t query_axis_stride = 0;                 // between the rows of query_axis_* (grid_queries.h)
  int64_t row_group_stride = 0;                  // between the rows of Workspace::row_group
  int64_t pair_stride = 0;                       // between the rows of by_pair (joint_bias.h)
  bool has_axis_scores = false, has_values = false;  // whether any axis has tables for these

  GridPlan() = default;
  explicit GridPlan(const Params& params) {
    const Grid& grid = params.grid;
    // An odd number of cache lines, as kTileStride.
    query_axis_stride = round_up(params.seqlen_k, kKeyChunk) + 16;
    pair_stride = round_up(params.seqlen_k, kKeyUnit);
    int64_t given_size = 0, first_coord_k = 0, first_q_rel = 0;
    for (int n = 0; n < grid.num_axes; ++n) {
      const Axis& axis = grid.axes[n];
      AxisPlan& plan = axes[n];
      plan.first_coord_k = first_coord_k, plan.first_coord_q = sum_size_q;
      plan.first_q_rel = first_q_rel;
      plan.table_rows = axis.table_rows();
      plan.transposed_stride = round_up(plan.table_rows + kRowGroupSlack, kLanes);
      first_coord_k += axis.size_k;
      sum_size_q += axis.has_queries ? axis.size_q : 0;
      first_q_rel += axis.has_q_rel ? axis.key_dim : 0;
      row_group_stride = max(row_group_stride,
                             round_up(max(axis.size_k, axis.size_q) + kRowGroupSlack, kLanes));
      has_axis_scores = has_axis_scores || axis.key_dim || axis.has_bias;
      has_values = has_values || axis.has_values;
      plan.row_dim[kKeys] = axis.key_dim;
      plan.row_dim[kQueries] = axis.has_queries ? params.head_dim : 0;
      plan.row_dim[kBias] = axis.has_bias ? 1 : 0;
      plan.row_dim[kValues] = axis.has_values ? params.value_dim : 0;
      for (int kind = 0; kind < kTableKinds; ++kind) {
        const int64_t dim = plan.row_dim[kind];
        plan.padded_row_dim[kind] = kind == kBias ? dim : round_up(dim, kLanes);
        plan.given[kind] = given_size, given_size += plan.table_rows * dim;
        plan.padded[kind] = padded_size;
        padded_size += plan.table_rows * plan.padded_row_dim[kind];
        plan.transposed[kind] = transposed_size;
        transposed_size += kind == kBias ? 0 : plan.transposed_stride * dim;
      }
    }
  }

  // Of a head's query_axis_scores.
  int64_t query_axis_size() const { return sum_size_q * query_axis_stride; }
};

// Calls visit(plan of the axis, kind) for each table of the grid.
template <class Visit>
void for_each_axis_table(const Params& params, const GridPlan& plan, Visit visit) {
  for (int n = 0; n < params.grid.num_axes; ++n)
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (plan.axes[n].row_dim[kind]) visit(plan.axes[n], kind);
}

// One head's tables of all axes, in the forms that a pass reads: the other parts are not filled.
struct AxisTables {
  float* padded = nullptr;      // (GridPlan::padded_size)
  float* transposed = nullptr;  // (GridPlan::transposed_size)
  int64_t head = -1;            // whose they are; -1 while nothing is in them

  // Fill every `step`-th run of W rows from the `first` one on. Forward multiplies queries by the
  // transposed keys, keys by the transposed queries, and adds up rows of values; backward multiplies
  // dO by the transposed values and adds up rows of keys and queries, after their transposed forms
  // have given the scores again.
  void fill_rows(const Params& params, const GridPlan& plan, bool backward, int64_t first,
                 int64_t step) const {
    const float* tables = params.grid.axis_tables + head * params.grid.axis_table_size;
    for_each_axis_table(params, plan, [&](const AxisPlan& axis, int kind) {
      const bool needs_padded = kind == kBias || (kind == kValues) != backward;
      const bool needs_transposed = kind != kBias && (kind != kValues || backward);
      const int64_t dim = axis.row_dim[kind], padded_dim = axis.padded_row_dim[kind];
      for (int64_t run = first * kLanes; run < axis.transposed_stride; run += step * kLanes)
        for (int64_t n = run; n < run + kLanes; ++n) {
          const bool inside = n < axis.table_rows;
          const float* from = tables + axis.given[kind] + n * dim;
          float* to = padded + axis.padded[kind] + n * padded_dim;
          if (needs_padded && inside)
            for (int64_t k = 0; k < padded_dim; ++k) to[k] = k < dim ? from[k] : 0;
          if (needs_transposed)
            for (int64_t k = 0; k < dim; ++k)
              transposed[axis.transposed[kind] + k * axis.transposed_stride + n] =
                  inside ? from[k] : 0;
        }
    });
  }
};

}  // namespace
}  // namespace relpos
