// Where the tables of a grid's axes lie: as the caller has them, one after another; with their rows
// in whole vectors, which is how gradients are summed; and read across, for products with rows.
#pragma once

namespace relpos {
namespace {

// Up to MR queries whose rows of a table nearly coincide are multiplied together: so many columns
// such a product may read beyond the last row.
constexpr int64_t kSlack = MR + NR;

struct AxisPlan {
  int64_t place = 0;      // its place 0 among those of all axes
  int64_t p = 0;          // its part of q_rel
  int64_t rows = 0;       // of each of its tables
  int64_t key_width = 0;  // padded
  int64_t across = 0;     // columns of a table that is read across
  // Where each table begins; what is absent is empty.
  struct Tables {
    int64_t keys = 0, bias = 0, values = 0;
  };
  Tables given, padded, crossing;
};

struct GridPlan {
  AxisPlan axes[kMostAxes];
  int64_t padded = 0, crossing = 0;  // numbers of all tables in these forms
  int64_t group = 0;                 // columns of a group of rows
  bool by_key = false, values = false;

  GridPlan() = default;
  GridPlan(const Call& call, int64_t value_width) {
    const Grid& grid = call.grid;
    int64_t given = 0, place = 0, p = 0;
    for (int n = 0; n < grid.count; ++n) {
      const Axis& axis = grid.axes[n];
      AxisPlan& plan = axes[n];
      plan.place = place, plan.p = p, plan.rows = axis.rows();
      plan.key_width = rounded_up(axis.key_width, W);
      plan.across = rounded_up(plan.rows + kSlack, W);
      place += axis.keys, p += axis.own_p ? axis.key_width : 0;
      group = larger(group, rounded_up(axis.keys + kSlack, W));
      by_key = by_key || axis.key_width || axis.bias, values = values || axis.values;
      const int64_t bias = axis.bias ? 1 : 0, own_values = axis.values ? call.value_width : 0;
      const int64_t padded_values = axis.values ? value_width : 0;
      lay_out(plan.given, given, plan.rows, axis.key_width, bias, own_values);
      lay_out(plan.padded, padded, plan.rows, plan.key_width, bias, padded_values);
      lay_out(plan.crossing, crossing, plan.across, axis.key_width, 0, own_values);
    }
  }

  static void lay_out(AxisPlan::Tables& tables, int64_t& at, int64_t rows, int64_t keys,
                      int64_t bias, int64_t values) {
    tables.keys = at, at += rows * keys;
    tables.bias = at, at += rows * bias;
    tables.values = at, at += rows * values;
  }
};

// Calls visit(plan of the axis, where the table begins as given, padded, and read across (-1: it is
// not), the width of its rows, and their padded width) for each table of the grid.
template <class Visit>
void each_axis_table(const Call& call, const GridPlan& grid, int64_t value_width, Visit visit) {
  for (int n = 0; n < call.grid.count; ++n) {
    const Axis& axis = call.grid.axes[n];
    const AxisPlan& plan = grid.axes[n];
    const AxisPlan::Tables &given = plan.given, &padded = plan.padded, &crossing = plan.crossing;
    if (axis.key_width)
      visit(plan, given.keys, padded.keys, crossing.keys, axis.key_width, plan.key_width);
    if (axis.bias) visit(plan, given.bias, padded.bias, int64_t{-1}, int64_t{1}, int64_t{1});
    if (axis.values)
      visit(plan, given.values, padded.values, crossing.values, call.value_width, value_width);
  }
}

}  // namespace
}  // namespace relpos
