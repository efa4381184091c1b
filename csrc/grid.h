// A grid of tokens. Along one axis a query meets only as many rows as the axis has places, so that
// its terms are short vectors by place. For axis a and the place y_i of query i,
//
//     s_ij  += A_a[i, c_a(j)]      A_a[i, c] = p_i . K_a[c - y_i] + B_a[c - y_i]
//     dP_ij += U_a[i, c_a(j)]      U_a[i, c] = dO_i . V_a[c - y_i]
//
// with c_a(j) the place of key j. Their adjoints are the sums of dS and of the weights over the
// keys of each place. They are made for one block and forgotten: nothing of theirs grows with tokens
// times places. (What keys say to places of the queries comes from outside, and does.)
#pragma once

namespace relpos {
namespace {

// Neighbouring keys of a tile that lie along the grid's last axis.
struct Run {
  int64_t at, count;             // columns of the tile
  int64_t last;                  // the first one's place along the last axis, among all places
  int64_t outer[kMostAxes - 1];  // their places along the other axes, among all places
  int64_t entry;                 // of the joint bias, for a query at place 0
};

// Rows of a block whose rows of an axis's table nearly coincide: row first + n meets, at place 0 of
// the keys, row start + shift[n] of it. Together they meet `span` rows from `start` on.
struct Group {
  int64_t first = 0, count = 0, start = 0, span = 0;
  int64_t shift[MR];
};

struct OnGrid {
  const Problem& problem;
  const Call& call;
  Workspace work;
  int64_t places[kRowsOfBlock][kMostAxes];  // of the block's rows; none before `placed`
  int64_t entries[kRowsOfBlock];            // of the joint bias
  int64_t placed = 0;
  Run runs[kTile];
  int64_t run_count = 0;
  int64_t filled_head = -1;  // whose tables are in the workspace

  OnGrid(const Problem& p, Workspace w) : problem(p), call(p.call), work(w) {}

  // ---- tables ---------------------------------------------------------------------------------

  const AxisTables& axis_tables() const {
    return call.grid.table_heads > 1 ? work.axes : problem.axes;
  }

  void fill_axis_tables(int64_t head) {
    if (call.grid.table_heads <= 1 || head == filled_head) return;
    filled_head = head;
    work.axes.fill_rows(call, problem.grid, problem.value_width, problem.backward, head, 0, 1);
  }

  // What meets an axis's keys: rows of the block, `p_row` apart.
  const float* axis_p(int axis) const {
    return call.grid.axes[axis].own_p ? work.p + problem.grid.axes[axis].p : work.q;
  }
  int64_t p_row(int axis) const {
    return call.grid.axes[axis].own_p ? problem.rel_width : problem.width;
  }

  // ---- blocks ---------------------------------------------------------------------------------

  void begin_grid(const Block& block) {
    const Grid& grid = call.grid;
    fill_axis_tables(block.h);
    placed = clamped(grid.prefix - block.first, 0, block.count);
    for (int64_t r = placed; r < block.count; ++r) {
      int64_t token = block.first + r - grid.prefix, step = 1;
      entries[r] = 0;
      for (int n = grid.count - 1; n >= 0; --n) {
        const int64_t place = token % grid.axes[n].queries;
        places[r][n] = place;
        entries[r] += place * step;
        token /= grid.axes[n].queries, step *= 2 * grid.axes[n].keys - 1;
      }
    }
    if (!problem.grid.by_key) return;
    fill(work.by_key, block.count * grid.width, 0);
    for (int n = 0; n < grid.count; ++n) {
      const Axis& axis = grid.axes[n];
      const AxisPlan& plan = problem.grid.axes[n];
      if (axis.key_width)
        multiply_places(block, n, axis_p(n), p_row(n), axis.key_width,
                        axis_tables().columns + plan.crossing.keys, work.by_key);
      if (axis.bias) add_bias_by_place(block, n, work.by_key);
    }
  }

  bool next_group(const Block& block, int axis, Group& group) const {
    const Axis& of = call.grid.axes[axis];
    const int64_t first = larger(group.first + group.count, placed);
    if (first >= block.count) return false;
    int64_t low = of.start(places[first][axis]), high = low;
    group.first = first, group.count = 0;
    for (int64_t r = first; r < block.count && group.count < MR; ++r) {
      const int64_t start = of.start(places[r][axis]);
      if (larger(high, start) - smaller(low, start) >= MR) break;
      low = smaller(low, start), high = larger(high, start);
      group.shift[group.count++] = start;
    }
    for (int64_t n = 0; n < group.count; ++n) group.shift[n] -= low;
    group.start = low, group.span = of.keys + high - low;
    return true;
  }

  // Rows times a table read across, by place: added to `to`.
  void multiply_places(const Block& block, int axis, const float* rows, int64_t row, int64_t depth,
                       const float* columns, float* to) const {
    const AxisPlan& plan = problem.grid.axes[axis];
    const int64_t keys = call.grid.axes[axis].keys, wide = problem.grid.group;
    for (Group group; next_group(block, axis, group);) {
      for (int64_t n = 0; n < group.span; n += NR)
        some_rows<NV, kRows, false>(group.count, depth, rows + group.first * row, row,
                                    columns + group.start + n, plan.across, work.group + n, wide);
      for (int64_t r = 0; r < group.count; ++r)
        add_line(keys, work.group + r * wide + group.shift[r],
                 to + (group.first + r) * call.grid.width + plan.place);
    }
  }

  void add_bias_by_place(const Block& block, int axis, float* to) const {
    const AxisPlan& plan = problem.grid.axes[axis];
    const Axis& of = call.grid.axes[axis];
    for (int64_t r = placed; r < block.count; ++r)
      add_line(of.keys, axis_tables().rows + plan.padded.bias + of.start(places[r][axis]),
               to + r * call.grid.width + plan.place);
  }

  // Numbers by place of a group's rows as columns of the table: the adjoint's left side.
  void unshear(int axis, const Group& group, const float* by_place) const {
    const int64_t wide = problem.grid.group, keys = call.grid.axes[axis].keys;
    for (int64_t r = 0; r < group.count; ++r) {
      float* to = work.group + r * wide;
      fill(to, group.span, 0);
      add_line(keys,
               by_place + (group.first + r) * call.grid.width + problem.grid.axes[axis].place,
               to + group.shift[r]);
    }
  }

  static void add_line(int64_t count, const float* __restrict x, float* __restrict y) {
    for (int64_t n = 0; n < count; ++n) y[n] += x[n];
  }

  // ---- tiles ----------------------------------------------------------------------------------

  void find_runs(const Tile& tile) {
    const Grid& grid = call.grid;
    const int last = grid.count - 1;
    run_count = 0;
    for (int64_t at = clamped(grid.prefix - tile.begin, tile.from, tile.to); at < tile.to;) {
      Run& run = runs[run_count++];
      int64_t token = tile.key(at) - grid.prefix, step = 1;
      run.at = at, run.entry = 0;
      for (int n = last; n >= 0; --n) {
        const int64_t keys = grid.axes[n].keys, place = token % keys;
        run.entry += (place + keys - 1) * step;
        token /= keys, step *= 2 * keys - 1;
        (n == last ? run.last : run.outer[n]) = problem.grid.axes[n].place + place;
        if (n == last) run.count = smaller(keys - place, tile.to - at);
      }
      at += run.count;
    }
  }

  // x (of one row) += numbers by place of the keys.
  void add_by_place(const float* by_place, float* x) const {
    for (int64_t n = 0; n < run_count; ++n) {
      const Run& run = runs[n];
      float outer = 0;
      for (int axis = 0; axis + 1 < call.grid.count; ++axis) outer += by_place[run.outer[axis]];
      add_shifted(run.count, outer, by_place + run.last, x + run.at);
    }
  }

  static void add_shifted(int64_t count, float constant, const float* __restrict x,
                          float* __restrict y) {
    for (int64_t n = 0; n < count; ++n) y[n] += constant + x[n];
  }

  // The adjoint: sums by place of the keys += x.
  void collect_by_place(const float* x, float* by_place) const {
    for (int64_t n = 0; n < run_count; ++n) {
      const Run& run = runs[n];
      float* last = by_place + run.last;
      const float* from = x + run.at;
      vfloat sums = {};
      int64_t c = 0;
      for (; c + W <= run.count; c += W) {
        sums += load(from + c);
        store(last + c, load(last + c) + load(from + c));
      }
      float total = sum_of(sums);
      for (; c < run.count; ++c) total += from[c], last[c] += from[c];
      for (int axis = 0; axis + 1 < call.grid.count; ++axis) by_place[run.outer[axis]] += total;
    }
  }

  const float* at_view(const View& x, int64_t b, int64_t h, int64_t i) const {
    return (const float*)x.data + b * x.strides[0] + h * x.strides[1] + i * x.strides[2];
  }

  void add_grid(const Block& block, const Tile& tile, float* scores) {
    const Grid& grid = call.grid;
    find_runs(tile);
    for (int64_t r = placed; r < block.count; ++r) {
      float* x = scores + r * kTileRow;
      if (problem.grid.by_key) add_by_place(work.by_key + r * grid.width, x);
      int64_t begin = 0;
      for (int n = 0; n < grid.count && grid.by_query.present(); ++n) {
        const float* line =
            at_view(grid.by_query, block.b, block.h, begin + places[r][n]) + tile.begin;
        add_line(tile.to - tile.from, line + tile.from, x + tile.from);
        begin += grid.axes[n].queries;
      }
      if (!grid.joint) continue;
      const float* joint = grid.joint + (grid.joint_heads == 1 ? 0 : block.h) * grid.joint_count;
      for (int64_t n = 0; n < run_count; ++n)
        add_line(runs[n].count, joint + runs[n].entry - entries[r], x + runs[n].at);
    }
  }
};

}  // namespace
}  // namespace relpos
