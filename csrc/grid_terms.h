// The terms of a grid of tokens, whose tables belong to its axes.
//
// Along axis a the row of a query and a key depends on their coordinates alone, so that a query has
// one relative logit for each coordinate of the keys: a short vector. For query i at coordinate y_i
//
//     s_ij  += A_a[i, c_a(j)]      A_a[i, c] = q_i . K_a[c - y_i] + B_a[c - y_i]     axis_scores
//     dp_ij += U_a[i, c_a(j)]      U_a[i, c] = dO_i . V_a[c - y_i]                   axis_dp
//
// with c_a(j) the coordinate of key j. Their adjoints are the sums of ds (axis_ds) and of p
// (axis_p) over the keys of each coordinate. They are made for one block and forgotten: memory does
// not grow with tokens times coordinates. The tables of queries, of which keys select rows, are in
// grid_queries.h.
//
//     by_coord   (rows, sum_size_k): for each row the coordinates of all axes, side by side
//     MR, NR     rows and columns of a register block; W = kLanes floats in a vector
#pragma once

#include <stdint.h>

#include "block_inputs.h"
#include "config.h"
#include "gemm.h"
#include "grid_plan.h"
#include "grid_token.h"
#include "integers.h"
#include "params.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// Neighbouring keys of a tile that differ only in their coordinate along the grid's last axis.
struct KeyRun {
  int64_t first, num_keys;             // keys of the tile
  int64_t last_coord;                  // of the first key along the last axis, in by_coord
  int64_t outer_coords[kMaxAxes - 1];  // of all its keys along the other axes, likewise
  int64_t joint_bias_index;            // of the first key, for a query at coordinates 0
};

// Rows of a block, or keys, that select nearly the same rows of an axis's table, multiplied together:
// for coordinate 0 of the other side row(n) selects row first_table_row + shift[n], and all together
// select num_table_rows rows.
struct RowGroup {
  int64_t first_row = 0, step = 1, num_rows = 0, first_table_row = 0, num_table_rows = 0;
  int64_t shift[kMR];  // 0 .. MR - 1

  int64_t row(int64_t n) const { return first_row + n * step; }
};

// Tokens along one axis: the rows of a block, which select from the tables of keys, bias and values;
// or keys, which select from those of queries. For each a number by coordinate of the other side is
// made, from a run of a table's rows.
struct AxisTokens {
  const Axis& axis;
  bool are_keys;
  const int64_t* coords;           // (end, kMaxAxes), of which the first: their own coordinates
  int64_t first_row, end_row;      // of the tokens; those before lie in the prefix
  int64_t size;                    // coordinates of the other side
  int64_t first_coord, sum_size;   // where these begin among those of all axes, and how many that are
  int64_t step;                    // between the rows of a group

  int64_t first_table_row(int64_t r) const {
    const int64_t coord = coords[r * kMaxAxes];
    return are_keys ? axis.first_row_of_queries(coord) : axis.first_table_row(coord);
  }
  // Row r's numbers (size) of by_coord (rows, sum_size).
  float* part(float* by_coord, int64_t r) const { return by_coord + r * sum_size + first_coord; }

  // The next rows, step apart, whose first table rows are less than MR apart; the first ones if group
  // is new; false after the last. Of a step of n rows come the rows 0, n, 2 n, ..., then 1, n + 1, ...
  bool next_group(RowGroup& group) const {
    int64_t first = first_row;
    if (group.num_rows) {
      first = group.row(group.num_rows);
      if (first >= end_row) {
        const int64_t begin = (group.first_row - first_row) % step + 1;
        first = begin < step ? first_row + begin : end_row;
      }
    }
    if (first >= end_row) return false;
    int64_t low = first_table_row(first), high = low;
    group.first_row = first, group.step = step, group.num_rows = 0;
    for (int64_t r = first; r < end_row && group.num_rows < kMR; r += step) {
      const int64_t table_row = first_table_row(r);
      if (max(high, table_row) - min(low, table_row) >= kMR) break;
      low = min(low, table_row), high = max(high, table_row);
      group.shift[group.num_rows++] = table_row;
    }
    for (int64_t n = 0; n < group.num_rows; ++n) group.shift[n] -= low;
    group.first_table_row = low, group.num_table_rows = size + high - low;
    return true;
  }
};

struct GridTerms : BlockInputs {
  using BlockInputs::BlockInputs;

  int64_t row_coords[kBlockRows][kMaxAxes];  // of the block's queries
  int64_t row_joint_bias_index[kBlockRows];  // to be subtracted from that of a key
  int64_t first_grid_row = 0;                // the rows before it lie in the prefix
  int64_t batch_entry = 0;                   // of the block
  // Where attention is local and there is no row of the prefix: the coordinates
  // box_from..box_to-1 of an axis are all that some row sees.
  bool has_box = false;
  int64_t box_from[kMaxAxes], box_to[kMaxAxes];
  KeyRun key_runs[kTileKeys];                // of the current tile
  int64_t num_key_runs = 0;

  // ---- tables ---------------------------------------------------------------------------------

  const AxisTables& axis_tables() const {
    return params.grid.axis_table_heads > 1 ? work.axis_tables : plan.axis_tables;
  }

  void fill_axis_tables(int64_t head) {
    AxisTables& own = work.axis_tables;
    if (params.grid.axis_table_heads <= 1 || own.head == head) return;
    own.head = head;
    own.fill_rows(params, plan.grid, plan.backward, 0, 1);
  }

  // The block's rows that an axis's keys are dotted with, axis_q_stride apart: q, or the axis's
  // part of q_rel.
  const float* axis_q(int axis) const {
    return params.grid.axes[axis].has_q_rel ? work.q_rel + plan.grid.axes[axis].first_q_rel
                                            : work.q;
  }
  int64_t axis_q_stride(int axis) const {
    return params.grid.axes[axis].has_q_rel ? plan.padded_rel_dim : plan.padded_head_dim;
  }

  // ---- a block --------------------------------------------------------------------------------

  // The coordinates of the block's rows, and work.axis_scores.
  void begin_grid(RowBlock& block) {
    const Grid& grid = params.grid;
    fill_axis_tables(block.h);
    locate_rows(block);
    if (grid.is_local) limit_to_seen_coords(block);
    if (!plan.grid.has_axis_scores) return;
    fill(work.axis_scores, block.num_rows * grid.sum_size_k, 0);
    for (int n = 0; n < grid.num_axes; ++n) {
      const AxisTokens rows = axis_rows(block, n);
      if (grid.axes[n].key_dim)
        multiply_axis_table(rows, n, kKeys, axis_q(n), axis_q_stride(n), work.axis_scores);
      if (grid.axes[n].has_bias) add_axis_bias(rows, n, work.axis_scores);
    }
  }

  void locate_rows(const RowBlock& block) {
    const Grid& grid = params.grid;
    first_grid_row = clamp(grid.prefix - block.first_row, 0, block.num_rows);
    GridToken query = GridToken::query(grid, max(block.first_row - grid.prefix, 0));
    for (int64_t r = first_grid_row; r < block.num_rows; ++r, query.step(grid.num_axes - 1)) {
      for (int n = 0; n < grid.num_axes; ++n) row_coords[r][n] = query.coords[n];
      row_joint_bias_index[r] = query.joint_bias_index();
    }
  }

  // The coordinates of keys along an axis that row r sees, by its window and range: from..to-1.
  void seen_coords(int64_t r, int axis, int64_t& from, int64_t& to) const {
    const Axis& of = params.grid.axes[axis];
    from = 0, to = of.size_k;
    of.window.limit(row_coords[r][axis], from, to);
    if (of.ranges.ranges) of.ranges.limit(batch_entry, row_coords[r][axis], from, to);
    to = max(from, to);
  }

  // Cut the keys that each row of the grid sees to those from the first to the last at coordinates
  // that it sees, in row-major order; what lies between is hidden by hide_unseen_coords. The box is
  // around those of all rows.
  void limit_to_seen_coords(RowBlock& block) {
    const Grid& grid = params.grid;
    batch_entry = block.b;
    has_box = first_grid_row == 0;  // the prefix sees all
    for (int n = 0; n < grid.num_axes; ++n) box_from[n] = grid.axes[n].size_k, box_to[n] = 0;
    for (int64_t r = first_grid_row; r < block.num_rows; ++r) {
      int64_t first = 0, last = 0;
      bool sees_any = true;
      for (int n = 0; n < grid.num_axes; ++n) {
        int64_t from, to;
        seen_coords(r, n, from, to);
        sees_any = sees_any && from < to;
        if (from >= to) continue;
        first = first * grid.axes[n].size_k + from;
        last = last * grid.axes[n].size_k + to - 1;
        box_from[n] = min(box_from[n], from), box_to[n] = max(box_to[n], to);
      }
      // The prefix is seen by all.
      const int64_t begin = grid.prefix || !sees_any ? 0 : first;
      const int64_t end = grid.prefix + (sees_any ? last + 1 : 0);
      block.key_begin[r] = max(block.key_begin[r], begin);
      block.key_end[r] = max(min(block.key_end[r], end), block.key_begin[r]);
    }
  }

  // Cut a tile to its keys from the first to the last that lie in the box, up to a gap between
  // them as wide as a panel, after which the next tile begins; false if none does.
  bool cut_to_box(KeyTile& tile) const {
    const Grid& grid = params.grid;
    if (!has_box || tile.key(tile.from) < grid.prefix) return true;
    int64_t first = tile.to, end = tile.from, num_keys;
    for (int64_t at = tile.from; at < tile.to; at += num_keys) {
      const int last = grid.num_axes - 1;
      const GridToken key = GridToken::key(grid, tile.key(at) - grid.prefix);
      const int64_t* const coords = key.coords;
      num_keys = min(grid.axes[last].size_k - coords[last], tile.to - at);
      const int64_t from = at + max(box_from[last] - coords[last], 0);
      const int64_t to = at + min(box_to[last] - coords[last], num_keys);
      bool inside = from < to;
      for (int n = 0; n < last; ++n)
        inside = inside && coords[n] >= box_from[n] && coords[n] < box_to[n];
      if (!inside) continue;
      if (first < end && from - end >= kNR) {
        tile.num_keys = round_up(end, kNR);
        break;
      }
      first = min(first, from), end = to;
    }
    if (first >= end) return false;
    tile.whole = tile.whole && tile.from == first && tile.to == end;
    tile.from = first, tile.to = end;
    return true;
  }

  // The next tile of which some row sees keys, as BlockInputs has it.
  bool next_tile(const RowBlock& block, KeyTile& tile) const {
    while (BlockInputs::next_tile(block, tile))
      if (cut_to_box(tile)) return true;
    return false;
  }

  // The block's rows along an axis.
  AxisTokens axis_rows(const RowBlock& block, int axis) const {
    const Grid& grid = params.grid;
    // Tokens that follow each other lie along the last axis.
    const bool is_last = axis + 1 == grid.num_axes;
    return {grid.axes[axis], false, &row_coords[0][axis], first_grid_row, block.num_rows,
            grid.axes[axis].size_k, plan.grid.axes[axis].first_coord_k, grid.sum_size_k,
            is_last ? grid.axes[axis].step_of_queries() : 1};
  }

  // by_coord += x (rows, row_dim), `x_stride` apart, times one table of an axis.
  void multiply_axis_table(const AxisTokens& tokens, int axis, int kind, const float* x,
                           int64_t x_stride, float* by_coord) const {
    const AxisPlan& axis_plan = plan.grid.axes[axis];
    const float* const transposed = axis_tables().transposed + axis_plan.transposed[kind];
    const int64_t stride = plan.grid.row_group_stride;
    for (RowGroup group; tokens.next_group(group);) {
      for (int64_t n = 0; n < group.num_table_rows; n += kNR)
        register_rows<kNRVectors, kRowMajor, false>(
            group.num_rows, axis_plan.row_dim[kind], x + group.first_row * x_stride,
            group.step * x_stride,
            transposed + group.first_table_row + n, axis_plan.transposed_stride,
            work.row_group + n, stride);
      for (int64_t n = 0; n < group.num_rows; ++n)
        add_to(tokens.size, work.row_group + n * stride + group.shift[n],
               tokens.part(by_coord, group.row(n)));
    }
  }

  void add_axis_bias(const AxisTokens& rows, int axis, float* by_coord) const {
    const float* bias = axis_tables().padded + plan.grid.axes[axis].padded[kBias];  // (table_rows)
    for (int64_t r = rows.first_row; r < rows.end_row; ++r)
      add_to(rows.size, bias + rows.first_table_row(r), rows.part(by_coord, r));
  }

  // A group's numbers by coordinate as numbers by table row, in work.row_group (num_rows,
  // num_table_rows): the left side of the adjoint's products.
  void unshear_row_group(const AxisTokens& tokens, const RowGroup& group, float* by_coord) const {
    for (int64_t n = 0; n < group.num_rows; ++n) {
      float* to = work.row_group + n * plan.grid.row_group_stride;
      fill(to, group.num_table_rows, 0);
      add_to(tokens.size, tokens.part(by_coord, group.row(n)), to + group.shift[n]);
    }
  }

  // ---- a tile ---------------------------------------------------------------------------------

  void find_key_runs(const KeyTile& tile) {
    const Grid& grid = params.grid;
    const int last = grid.num_axes - 1;
    num_key_runs = 0;
    const int64_t first = clamp(grid.prefix - tile.begin, tile.from, tile.to);
    GridToken key = GridToken::key(grid, max(tile.key(first) - grid.prefix, 0));
    for (int64_t at = first; at < tile.to; key.step(last - 1), key.coords[last] = 0) {
      KeyRun& run = key_runs[num_key_runs++];
      run.first = at;
      run.num_keys = min(grid.axes[last].size_k - key.coords[last], tile.to - at);
      for (int n = 0; n <= last; ++n)
        (n == last ? run.last_coord : run.outer_coords[n]) =
            plan.grid.axes[n].first_coord_k + key.coords[n];
      run.joint_bias_index = joint_bias_centre(grid) + key.joint_bias_index();
      at += run.num_keys;
    }
  }

  // One row: x (tile) += the sum over the axes of by_coord (sum_size_k) at each key's coordinates.
  void add_by_coord(const float* by_coord, float* x) const {
    for (int64_t n = 0; n < num_key_runs; ++n) {
      const KeyRun& run = key_runs[n];
      float outer = 0;
      for (int axis = 0; axis + 1 < params.grid.num_axes; ++axis)
        outer += by_coord[run.outer_coords[axis]];
      add_with_constant(run.num_keys, outer, by_coord + run.last_coord, x + run.first);
    }
  }

  // y (count) += constant + x (count).
  static void add_with_constant(int64_t count, float constant, const float* __restrict x,
                                float* __restrict y) {
    for (int64_t n = 0; n < count; ++n) y[n] += constant + x[n];
  }

  // The adjoint: by_coord (sum_size_k) += for each coordinate the sum of x (tile) over its keys.
  void accumulate_by_coord(const float* x, float* by_coord) const {
    for (int64_t n = 0; n < num_key_runs; ++n) {
      const KeyRun& run = key_runs[n];
      float* last = by_coord + run.last_coord;
      const float* from = x + run.first;
      vfloat sums = {};
      int64_t c = 0;
      for (; c + kLanes <= run.num_keys; c += kLanes) {
        sums += load(from + c);
        store(last + c, load(last + c) + load(from + c));
      }
      float sum = horizontal_sum(sums);
      for (; c < run.num_keys; ++c) sum += from[c], last[c] += from[c];
      for (int axis = 0; axis + 1 < params.grid.num_axes; ++axis)
        by_coord[run.outer_coords[axis]] += sum;
    }
  }

  // Whether anything of the grid is read, or summed, by runs of keys.
  bool reads_key_runs() const {
    return plan.grid.has_axis_scores || plan.grid.has_values || params.grid.is_local ||
           (params.grid.joint_bias && !plan.joint_bias_by_pair);
  }
  // Where the number of row r and a key of the tile lies among those by pair (joint_bias.h).
  int64_t pair_index(const RowBlock& block, const KeyTile& tile, int64_t r, int64_t key) const {
    return (block.first_row + r) * plan.grid.pair_stride + tile.key(key);
  }

  // scores (rows, kTileStride) += all terms of the grid but for those of its tables of queries.
  void add_grid_scores(const RowBlock& block, const KeyTile& tile, float* scores) {
    const Grid& grid = params.grid;
    if (reads_key_runs()) find_key_runs(tile);
    for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r) {
      float* x = scores + r * kTileStride;
      if (plan.grid.has_axis_scores) add_by_coord(work.axis_scores + r * grid.sum_size_k, x);
      if (!grid.joint_bias) continue;
      if (plan.joint_bias_by_pair) {
        const float* by_pair =
            plan.joint_bias_by_pair + grid.joint_bias_head(block.h) * plan.pairs_size();
        const int64_t from = tile.vector_from();
        add_to(tile.vector_to() - from, by_pair + pair_index(block, tile, r, from), x + from);
        continue;
      }
      const float* joint_bias =
          grid.joint_bias + grid.joint_bias_head(block.h) * grid.joint_bias_size;
      for (int64_t n = 0; n < num_key_runs; ++n)
        add_to(key_runs[n].num_keys,
               joint_bias + key_runs[n].joint_bias_index - row_joint_bias_index[r],
               x + key_runs[n].first);
    }
  }

  // Row r's scores x (tile) of keys at other coordinates than it sees become -inf.
  void hide_unseen_coords(int64_t r, float* x) const {
    const int last = params.grid.num_axes - 1;
    for (int64_t n = 0; n < num_key_runs; ++n) {
      const KeyRun& run = key_runs[n];
      int64_t from = 0, to = run.num_keys;  // what is seen of the run
      for (int axis = 0; axis <= last; ++axis) {
        int64_t first, end;
        seen_coords(r, axis, first, end);
        const int64_t coord = (axis == last ? run.last_coord : run.outer_coords[axis]) -
                              plan.grid.axes[axis].first_coord_k;
        if (axis < last && (coord < first || coord >= end)) to = 0;
        if (axis == last) from = clamp(first - coord, 0, to), to = clamp(end - coord, from, to);
      }
      fill(x + run.first, from, -kInfinity);
      fill(x + run.first + to, run.num_keys - to, -kInfinity);
    }
  }
};

}  // namespace
}  // namespace relpos
