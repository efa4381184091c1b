// Where the tables of a grid's axes lie: as the caller has them, one after another; with their rows
// in whole vectors, which is how gradients are summed; and read across, for products with rows.
#pragma once

namespace relpos {
namespace {

// Up to MR queries whose rows of a table nearly coincide are multiplied together, by whole panels: so
// many columns more than the places of an axis such a product may write, and beyond a table read.
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

// Where one table of an axis lies in each form, and the width of its rows, also padded.
struct AxisTable {
  Kind kind;
  int64_t given, padded, crossing, width, padded_width;
};

// Calls visit(plan of the axis, table) for each table of the grid.
template <class Visit>
void each_axis_table(const Call& call, const GridPlan& grid, int64_t value_width, Visit visit) {
  for (int n = 0; n < call.grid.count; ++n) {
    const Axis& axis = call.grid.axes[n];
    const AxisPlan& plan = grid.axes[n];
    const AxisPlan::Tables &given = plan.given, &padded = plan.padded, &crossing = plan.crossing;
    if (axis.key_width)
      visit(plan, AxisTable{kKeys, given.keys, padded.keys, crossing.keys, axis.key_width,
                            plan.key_width});
    if (axis.bias) visit(plan, AxisTable{kBias, given.bias, padded.bias, 0, 1, 1});
    if (axis.values)
      visit(plan, AxisTable{kValues, given.values, padded.values, crossing.values,
                            call.value_width, value_width});
  }
}

// One head's tables of all axes: with padded rows, and read across.
struct AxisTables {
  float* rows = nullptr;
  float* columns = nullptr;

  // Every `step`-th run of W rows from the `first` one on, in the forms that a pass reads: keys meet
  // rows across, and their gradient the rows; values the other way round.
  void fill_rows(const Call& call, const GridPlan& grid, int64_t value_width, bool backward,
                 int64_t head, int64_t first, int64_t step) const {
    const float* all = call.grid.tables + head * call.grid.table_count;
    each_axis_table(call, grid, value_width, [&](const AxisPlan& plan, const AxisTable& table) {
      const bool by_rows = table.kind == kBias || (table.kind == kValues) != backward;
      const bool across = table.kind != kBias && (table.kind == kKeys || backward);
      for (int64_t run = first * W; run < plan.across; run += step * W)
        for (int64_t n = run; n < run + W; ++n) {
          const bool inside = n < plan.rows;
          const float* from = all + table.given + n * table.width;
          float* to = rows + table.padded + n * table.padded_width;
          for (int64_t k = 0; k < table.padded_width && inside && by_rows; ++k)
            to[k] = k < table.width ? from[k] : 0;
          for (int64_t k = 0; k < table.width && across; ++k)
            columns[table.crossing + k * plan.across + n] = inside ? from[k] : 0;
        }
    });
  }
};

}  // namespace
}  // namespace relpos
