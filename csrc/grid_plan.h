// Where the tables of a grid's axes lie, in three forms:
//
//     given        as the caller has them, one after another (Grid::axis_tables)
//     padded       (table_rows, padded row_dim): rows of whole vectors, which is how gradients are
//                  summed, and how rows are added up
//     transposed   (row_dim, transposed_stride): a column for each table row, for products with the
//                  rows of a block
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

// Up to MR rows of a block whose table rows nearly coincide are multiplied together, by whole
// panels of NR (RowGroup in grid_terms.h). Such a product may write so many columns more than there
// are coordinates, and read so many beyond the end of a table.
constexpr int64_t kRowGroupSlack = kMR + kNR;

struct AxisPlan {
  int64_t first_coord_k = 0;  // of its coordinate 0 among those of all axes, for keys (sum_size_k)
  int64_t first_coord_q = 0;  // likewise for queries (sum_size_q)
  int64_t first_q_rel = 0;    // where its part of a row of q_rel begins
  int64_t table_rows = 0;     // of each of its tables
  int64_t padded_key_dim = 0;
  int64_t transposed_stride = 0;
  // Where each table begins, in floats; absent ones are empty.
  struct TableStarts {
    int64_t keys = 0, bias = 0, values = 0;
  };
  TableStarts given, padded, transposed;
};

struct GridPlan {
  AxisPlan axes[kMaxAxes];
  int64_t padded_value_dim = 0;
  int64_t padded_size = 0, transposed_size = 0;  // floats of all tables in these forms
  int64_t row_group_stride = 0;                  // between the rows of Workspace::row_group
  bool has_axis_scores = false, has_values = false;  // whether any axis has tables for these

  GridPlan() = default;
  GridPlan(const Params& params, int64_t padded_dim_of_values)
      : padded_value_dim(padded_dim_of_values) {
    const Grid& grid = params.grid;
    int64_t given_size = 0, first_coord_k = 0, first_coord_q = 0, first_q_rel = 0;
    for (int n = 0; n < grid.num_axes; ++n) {
      const Axis& axis = grid.axes[n];
      AxisPlan& plan = axes[n];
      plan.first_coord_k = first_coord_k, plan.first_coord_q = first_coord_q;
      plan.first_q_rel = first_q_rel;
      plan.table_rows = axis.table_rows();
      plan.padded_key_dim = round_up(axis.key_dim, kLanes);
      plan.transposed_stride = round_up(plan.table_rows + kRowGroupSlack, kLanes);
      first_coord_k += axis.size_k, first_coord_q += axis.size_q;
      first_q_rel += axis.has_q_rel ? axis.key_dim : 0;
      row_group_stride = max(row_group_stride, round_up(axis.size_k + kRowGroupSlack, kLanes));
      has_axis_scores = has_axis_scores || axis.key_dim || axis.has_bias;
      has_values = has_values || axis.has_values;
      const int64_t bias_dim = axis.has_bias ? 1 : 0;
      const int64_t value_dim = axis.has_values ? params.value_dim : 0;
      const int64_t padded_dim = axis.has_values ? padded_value_dim : 0;
      lay_out(plan.given, given_size, plan.table_rows, axis.key_dim, bias_dim, value_dim);
      lay_out(plan.padded, padded_size, plan.table_rows, plan.padded_key_dim, bias_dim, padded_dim);
      lay_out(plan.transposed, transposed_size, plan.transposed_stride, axis.key_dim, 0, value_dim);
    }
  }

  // One axis's tables, after `size` floats of the axes before it.
  static void lay_out(AxisPlan::TableStarts& starts, int64_t& size, int64_t rows, int64_t key_dim,
                      int64_t bias_dim, int64_t value_dim) {
    starts.keys = size, size += rows * key_dim;
    starts.bias = size, size += rows * bias_dim;
    starts.values = size, size += rows * value_dim;
  }
};

// One table of an axis: where it begins in each form.
struct AxisTable {
  TableKind kind;
  int64_t given, padded, transposed, row_dim, padded_row_dim;
};

// Calls visit(plan of the axis, table) for each table of the grid.
template <class Visit>
void for_each_axis_table(const Params& params, const GridPlan& plan, Visit visit) {
  for (int n = 0; n < params.grid.num_axes; ++n) {
    const Axis& axis = params.grid.axes[n];
    const AxisPlan& axis_plan = plan.axes[n];
    const AxisPlan::TableStarts &given = axis_plan.given, &padded = axis_plan.padded;
    const AxisPlan::TableStarts& transposed = axis_plan.transposed;
    if (axis.key_dim)
      visit(axis_plan, AxisTable{kKeys, given.keys, padded.keys, transposed.keys, axis.key_dim,
                                 axis_plan.padded_key_dim});
    if (axis.has_bias) visit(axis_plan, AxisTable{kBias, given.bias, padded.bias, 0, 1, 1});
    if (axis.has_values)
      visit(axis_plan, AxisTable{kValues, given.values, padded.values, transposed.values,
                                 params.value_dim, plan.padded_value_dim});
  }
}

// One head's tables of all axes, in the forms that a pass reads: the other parts are not filled.
struct AxisTables {
  float* padded = nullptr;      // (GridPlan::padded_size)
  float* transposed = nullptr;  // (GridPlan::transposed_size)
  int64_t head = -1;            // whose they are; -1 while nothing is in them

  // Fill every `step`-th run of W rows from the `first` one on. Forward multiplies queries by the
  // transposed keys and adds up rows of values; backward multiplies dO by the transposed values and
  // adds up rows of keys, after the transposed keys have given the scores again.
  void fill_rows(const Params& params, const GridPlan& plan, bool backward, int64_t first,
                 int64_t step) const {
    const float* tables = params.grid.axis_tables + head * params.grid.axis_table_size;
    for_each_axis_table(params, plan, [&](const AxisPlan& axis, const AxisTable& table) {
      const bool needs_padded = table.kind == kBias || (table.kind == kValues) != backward;
      const bool needs_transposed = table.kind != kBias && (table.kind == kKeys || backward);
      for (int64_t run = first * kLanes; run < axis.transposed_stride; run += step * kLanes)
        for (int64_t n = run; n < run + kLanes; ++n) {
          const bool inside = n < axis.table_rows;
          const float* from = tables + table.given + n * table.row_dim;
          float* to = padded + table.padded + n * table.padded_row_dim;
          if (needs_padded && inside)
            for (int64_t k = 0; k < table.padded_row_dim; ++k)
              to[k] = k < table.row_dim ? from[k] : 0;
          if (needs_transposed)
            for (int64_t k = 0; k < table.row_dim; ++k)
              transposed[table.transposed + k * axis.transposed_stride + n] = inside ? from[k] : 0;
        }
    });
  }
};

}  // namespace
}  // namespace relpos
