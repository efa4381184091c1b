// Backward: the weights are computed again, tile by tile, from each row's saved largest score and
// sum.
//
// With dO divided by the share that dropout keeps, and delta_i = dO_i . o_i - d lse_i:
//
//     dP_ij = dO_i . (v_j + V[j-i])        dS = P * (dP - delta)
#pragma once

namespace relpos {
namespace {

// Sums over many blocks.
struct Totals {
  float* k = nullptr;  // (j, width), of one head of keys
  float* v = nullptr;
  float* tables[kKinds] = {};  // (heads, columns, padded), from head `first_head` on
  float* grid = nullptr;       // (heads, numbers of the padded tables of the axes), likewise
  float* joint = nullptr;      // (heads, joint_count), likewise
  int64_t first_head = 0;
};

struct Backward : Worker {
  Totals totals;
  float delta[kRowsOfBlock], d_lse[kRowsOfBlock];
  // Beyond the windows: sums of dS, dO . V, and sums of the weights.
  float d_scores_left[kRowsOfBlock], d_scores_right[kRowsOfBlock];
  float value_left[kRowsOfBlock], value_right[kRowsOfBlock];
  float weight_left[kRowsOfBlock], weight_right[kRowsOfBlock];

  using Worker::Worker;

  void run(int64_t b, int64_t h, int64_t first, int64_t count) {
    Block block;
    begin_block(block, b, h, first, count);
    begin_backward(block);
    float shift[kRowsOfBlock];
    for (Tile tile = {0, 0, 0, 0}; next_tile(block, tile);) {
      tile_scores(block, tile, shift);
      const Region values = multiply_values(block, tile);
      for (int64_t r = 0; r < count; ++r) differentiate(block, tile, r, shift[r], values);
      collect_values(block, tile);
      collect_scores(block, tile);
    }
    finish(block);
  }

  float* table_total(int kind, int64_t h) const {
    const int64_t head = call.tables[kind].heads == 1 ? 0 : h - totals.first_head;
    const int64_t columns = problem.window(kind).panels() * NR;
    return totals.tables[kind] ? totals.tables[kind] + head * columns * problem.padded(kind)
                               : nullptr;
  }

  void begin_backward(Block& block) {
    const int64_t width = problem.value_width;
    const float share = 1 / problem.kept;
    widen_rows(call.d_output, Dtype::f32, block.b, block.h, block.first, block.count,
               call.value_width, width, share, work.d_output);
    pack_left(work.d_output, width, block.count, call.value_width, work.d_output_panels);
    for (int64_t r = 0; r < block.count; ++r) {
      const int64_t row = (block.b * call.heads + block.h) * call.queries + block.first + r;
      d_lse[r] = call.d_lse.present() ? *at_view(call.d_lse, block.b, block.h, block.first + r) : 0;
      double sum = dot_in_double(call.output + row * call.value_width, work.d_output + r * width,
                                 call.value_width) * problem.kept;
      delta[r] = (float)(sum - d_lse[r]);
    }
    fill(work.d_q, block.count * problem.width, 0);
    if (call.own_p()) fill(work.d_p, block.count * problem.rel_width, 0);
    float* const sums[] = {d_scores_left, d_scores_right, weight_left, weight_right};
    for (float* some : sums) fill(some, block.count, 0);
    if (problem.values.present) {
      value_beyond(block, problem.values.left(), value_left);
      value_beyond(block, problem.values.right(), value_right);
    }
    begin_places(block);
    work.value_by_offset.restart(0);
    work.weights.restart(0);
    work.d_scores_by_offset.restart(0);
  }

  void begin_places(const Block& block) {
    const int64_t count = block.count * call.grid.width;
    if (problem.grid.by_key) fill(work.d_by_key, count, 0);
    if (!problem.grid.values) return;
    fill(work.weights_by_place, count, 0);
    fill(work.value_by_place, count, 0);
    for (int axis = 0; axis < call.grid.count; ++axis)
      if (call.grid.axes[axis].values)
        multiply_places(block, axis, work.d_output, problem.value_width, call.value_width,
                        axis_tables().columns + problem.grid.axes[axis].crossing.values,
                        work.value_by_place);
  }

  void value_beyond(const Block& block, int64_t column, float* to) {
    const int64_t width = problem.value_width;
    table_column(call.tables[kValues], call.dtype, problem.values, block.h, column, width,
                 work.scratch);
    for (int64_t r = 0; r < block.count; ++r)
      to[r] = dot(work.d_output + r * width, work.scratch, width);
  }

  // dO . (v_j + V[j-i]) in work.d_scores, but for V's constants beyond the window.
  Region multiply_values(const Block& block, const Tile& tile) {
    const int64_t first = rounded_down(tile.from, NR);
    times_panels(block.count, call.value_width, work.d_output_panels,
                 work.value_panels + tile.key(first) * call.value_width, tile.to - first,
                 work.d_scores + first, kTileRow);
    for (int64_t r = placed; r < block.count && problem.grid.values; ++r)
      add_by_place(work.value_by_place + r * call.grid.width, work.d_scores + r * kTileRow);
    if (!problem.values.present) return kBand;
    const Window& window = problem.values;
    const Region region = region_of(window, block, tile);
    if (region != kBand) return region;
    reach_values(block, tile.first_column(window, block), tile.end_column(window, block));
    for (int64_t r = 0; r < block.count; ++r)
      add_sheared(work.value_by_offset.row(r), window, tile.key(tile.low()), block.position + r,
                  tile.high() - tile.low(), work.d_scores + r * kTileRow + tile.low());
    return region;
  }

  void reach_values(const Block& block, int64_t from, int64_t to) {
    Strip& strip = work.value_by_offset;
    from = rounded_down(from, NR), to = rounded_up(to, NR);
    if (strip.end < from || strip.end == 0) strip.restart(from);
    if (to - strip.origin > kStrip) strip.move(from, block.count);
    if (to <= strip.end) return;
    const int64_t depth = call.value_width;
    times_panels(block.count, depth, work.d_output_panels,
                 columns(kValues, block.h).panels + strip.end * depth, to - strip.end,
                 strip.row(0) + strip.end, kStripRow);
    strip.end = to;
  }

  // A row's scores and dP become its weights (dropped ones 0) and dS.
  void differentiate(const Block& block, const Tile& tile, int64_t r, float shift, Region values) {
    float* x = work.scores + r * kTileRow;
    float* d = work.d_scores + r * kTileRow;
    const int64_t first = tile.row_from(block, r), last = tile.row_to(block, r);
    const int64_t row = (block.b * call.heads + block.h) * call.queries + block.first + r;
    if (first >= last || call.most[row] == -kInfinity) {
      fill(x + tile.low(), tile.high() - tile.low(), 0);
      fill(d + tile.low(), tile.high() - tile.low(), 0);
      return;
    }
    const int64_t from = rounded_down(first, W), to = rounded_up(last, W);
    const vfloat base = broadcast(call.most[row] - shift), share = broadcast(1 / call.total[row]);
    float constant = 0;
    if (problem.values.present && values != kBand)
      constant = values == kLeft ? value_left[r] : value_right[r];
    const bool alone = block.begin[r] >= tile.begin && block.end[r] <= tile.begin + tile.count;
    if (!problem.drop_below && !alone) {
      const vfloat less = broadcast(delta[r] - constant);
      for (int64_t n = from; n < to; n += W) {
        const vfloat weight = exponential(load(x + n) - base) * share;
        store(x + n, weight);
        store(d + n, weight * (load(d + n) - less));
      }
    } else {
      float kept[kTile];
      for (int64_t n = from; n < to; n += W) store(kept + n, broadcast(1));
      if (problem.drop_below) drop(block, tile, r, from, to, kept);
      vfloat sum = {}, all = {};
      for (int64_t n = from; n < to; n += W) {
        const vfloat weight = exponential(load(x + n) - base) * share;
        const vfloat slope = load(kept + n) * (load(d + n) + constant);
        const vfloat part = weight * slope;
        // Hidden lanes have no weight, but what they would add may be NaN.
        const bool whole = n >= first && n + W <= last;
        sum += whole ? part : choose(lanes_between(first - n, last - n), part, vfloat{});
        all += weight;
        store(x + n, weight);
        store(d + n, slope);
      }
      // With all keys in one tile delta comes from these very weights: no rounding in between.
      const vfloat less = broadcast(alone ? sum_of(sum) / sum_of(all) : delta[r]);
      const vfloat more = broadcast(alone ? d_lse[r] : 0);
      for (int64_t n = from; n < to; n += W) {
        const vfloat weight = load(x + n);
        store(d + n, weight * (load(d + n) - less + more));
        store(x + n, weight * load(kept + n));
      }
    }
    fill(x + tile.low(), from - tile.low(), 0);
    fill(x + to, tile.high() - to, 0);
    // What is hidden has no part, whatever its value was.
    fill(d + tile.low(), first - tile.low(), 0);
    fill(d + last, tile.high() - last, 0);
  }

  // ---- what flows to v and to the table of the values ----------------------------------------

  void collect_values(const Block& block, const Tile& tile) {
    const int64_t width = problem.value_width;
    if (totals.v)
      add_times_rows<kColumns>(tile.to - tile.from, block.count, work.scores + tile.from, kTileRow,
                               work.d_output, width, totals.v + tile.key(tile.from) * width, width,
                               width);
    for (int64_t r = placed; r < block.count && problem.grid.values && totals.grid; ++r)
      collect_by_place(work.scores + r * kTileRow, work.weights_by_place + r * call.grid.width);
    if (!totals.tables[kValues]) return;
    const Window& window = problem.values;
    const Region region = region_of(window, block, tile);
    if (region != kBand) {
      add_row_sums(block, tile, work.scores, region == kLeft ? weight_left : weight_right);
      return;
    }
    Strip& strip = work.weights;
    strip.reach(tile.first_column(window, block), tile.end_column(window, block), block.count,
                [&](int64_t from, int64_t to) { flush_values(block, from, to); });
    collect_band(block, tile, window, work.scores, strip);
  }

  void flush_values(const Block& block, int64_t from, int64_t to) {
    const int64_t width = problem.value_width;
    add_times_rows<kColumns>(to - from, block.count, work.weights.row(0) + from, kStripRow,
                             work.d_output, width, table_total(kValues, block.h) + from * width,
                             width, width);
  }

  // ---- what flows to q, k, the tables of the scores, the mask and the grid --------------------

  void collect_scores(const Block& block, const Tile& tile) {
    const int64_t width = problem.width;
    const float* d = work.d_scores;
    if (totals.k)
      add_times_rows<kColumns>(tile.to - tile.from, block.count, d + tile.from, kTileRow, work.q,
                               width, totals.k + tile.key(tile.from) * width, width, width);
    if (call.gradients.q) {
      int64_t row;
      const float* k = rows_of(call.k, block, tile, call.width, width, work.key_tile, &row);
      add_times_rows<kRows>(block.count, tile.to - tile.from, d + tile.from, kTileRow,
                            k + tile.from * row, row, work.d_q, width, width);
    }
    if (follows_scores()) collect_offsets(block, tile);
    if (problem.queries.present) collect_met(block, tile);
    if (call.gradients.mask) collect_mask(block, tile);
    if (call.grid.count) collect_grid(block, tile);
  }

  bool wants_p() const { return call.own_p() ? call.gradients.q_rel : call.gradients.q; }

  // Whether anything asks for dS by offset.
  bool follows_scores() const {
    return totals.tables[kBias] || totals.tables[kKeys] ||
           (call.tables[kKeys].present() && wants_p());
  }

  void collect_offsets(const Block& block, const Tile& tile) {
    const Window& window = problem.scores;
    const Region region = region_of(window, block, tile);
    if (region != kBand) {
      add_row_sums(block, tile, work.d_scores, region == kLeft ? d_scores_left : d_scores_right);
      return;
    }
    Strip& strip = work.d_scores_by_offset;
    strip.reach(tile.first_column(window, block), tile.end_column(window, block), block.count,
                [&](int64_t from, int64_t to) { flush_offsets(block, from, to); });
    collect_band(block, tile, window, work.d_scores, strip);
  }

  void flush_offsets(const Block& block, int64_t from, int64_t to) {
    if (from >= to) return;
    const Strip& strip = work.d_scores_by_offset;
    pass_on(block, strip.row(0) + from, kStripRow, from, to - from);
  }

  // dS by offset, of columns from..from+count-1, to the tables and to p.
  void pass_on(const Block& block, const float* d, int64_t row, int64_t from, int64_t count) {
    const int64_t width = problem.rel_width;
    if (call.tables[kKeys].present() && wants_p())
      add_times_rows<kRows>(block.count, count, d, row,
                            columns(kKeys, block.h).rows + from * width, width, work.d_p, width,
                            width);
    if (float* total = table_total(kKeys, block.h))
      add_times_rows<kColumns>(count, block.count, d, row, work.p, width, total + from * width,
                               width, width);
    if (float* total = table_total(kBias, block.h))
      add_columns(block.count, count, d, row, total + from);
  }

  void collect_met(const Block& block, const Tile& tile) {
    if (!totals.k && !totals.tables[kQueries]) return;
    int64_t row;
    const float* k =
        rows_of(call.k, block, tile, call.width, problem.width, work.key_tile, &row);
    Region region;
    for (int64_t at = tile.from; at < tile.to;) {
      const Tile part = met_part(block, tile, at, region);
      if (region != kBand)
        collect_met_beyond(block, part, region, k, row);
      else
        collect_met_band(block, part, k, row);
      at = part.to;
    }
  }

  void collect_met_beyond(const Block& block, const Tile& part, Region region, const float* k,
                          int64_t row) {
    const Window& window = problem.queries;
    const int64_t width = problem.width, count = part.to - part.from;
    const int64_t column = region == kLeft ? window.left() : window.right();
    float* const sums = work.line;
    fill(sums, count, 0);
    add_columns(block.count, count, work.d_scores + part.from, kTileRow, sums);
    for (int64_t n = 0; n < count; ++n) sums[n] *= call.scale;
    if (totals.k) {
      const float* shown = columns(kQueries, block.h).rows + column * width;
      for (int64_t n = 0; n < count; ++n)
        add_scaled(width, sums[n], shown, totals.k + part.key(part.from + n) * width);
    }
    if (float* total = table_total(kQueries, block.h))
      add_times_rows<kRows>(1, count, sums, 0, k + part.from * row, row, total + column * width,
                            width, width);
  }

  void collect_met_band(const Block& block, const Tile& part, const float* k, int64_t row) {
    const int64_t width = problem.width, count = part.to - part.from;
    const int64_t low = met_low(block, part), columns_met = met_high(block, part) - low;
    for (int64_t n = 0; n < count; ++n) fill(work.d_met + n * kStripRow, columns_met, 0);
    collect_sheared_by_key(call.scale, work.d_met, low, problem.queries, part.key(part.from), count,
                           block.position, block.count, work.d_scores + part.from, kTileRow);
    if (totals.k)
      add_times_rows<kRows>(count, columns_met, work.d_met, kStripRow,
                            columns(kQueries, block.h).rows + low * width, width,
                            totals.k + part.key(part.from) * width, width, width);
    if (float* total = table_total(kQueries, block.h))
      add_times_rows<kColumns>(columns_met, count, work.d_met, kStripRow, k + part.from * row, row,
                               total + low * width, width, width);
  }

  // Rows are summed up before they meet the total, which rounds less.
  static void add_columns(int64_t rows, int64_t count, const float* d, int64_t row, float* total) {
    int64_t n = 0;
    for (; n + W <= count; n += W) {
      vfloat sums = {};
      for (int64_t r = 0; r < rows; ++r) sums += load(d + r * row + n);
      store(total + n, load(total + n) + sums);
    }
    for (; n < count; ++n) {
      float sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += d[r * row + n];
      total[n] += sum;
    }
  }

  void collect_mask(const Block& block, const Tile& tile) {
    const int64_t* strides = call.gradients.mask_strides;
    for (int64_t r = 0; r < block.count; ++r) {
      float* to = call.gradients.mask + block.b * strides[0] + block.h * strides[1] +
                  (block.first + r) * strides[2] + tile.begin * strides[3];
      const float* d = work.d_scores + r * kTileRow;
      for (int64_t n = tile.from; n < tile.to; ++n) to[n * strides[3]] += d[n];
    }
  }

  void collect_grid(const Block& block, const Tile& tile) {
    const Grid& grid = call.grid;
    const int64_t head = block.b * call.heads + block.h;
    for (int64_t r = placed; r < block.count; ++r) {
      const float* d = work.d_scores + r * kTileRow;
      if (problem.grid.by_key) collect_by_place(d, work.d_by_key + r * grid.width);
      int64_t begin = 0;
      for (int n = 0; n < grid.count && call.gradients.by_query; ++n) {
        float* to = call.gradients.by_query +
                    (head * grid.query_width + begin + places[r][n]) * call.keys + tile.begin;
        add_line(tile.to - tile.from, d + tile.from, to + tile.from);
        begin += grid.axes[n].queries;
      }
      if (!totals.joint) continue;
      float* joint = totals.joint + (grid.joint_heads == 1 ? 0 : block.h - totals.first_head) *
                                        grid.joint_count;
      for (int64_t n = 0; n < run_count; ++n)
        add_line(runs[n].count, d + runs[n].at, joint + runs[n].entry - entries[r]);
    }
  }

  // Sums by place, to p and to the tables of the axes.
  void finish_places(const Block& block) {
    const Grid& grid = call.grid;
    const int64_t wide = problem.grid.group, value_width = problem.value_width;
    float* const total =
        totals.grid ? totals.grid + (grid.table_heads == 1 ? 0 : block.h - totals.first_head) *
                                        problem.grid.padded
                    : nullptr;
    for (int n = 0; n < grid.count; ++n) {
      const Axis& axis = grid.axes[n];
      const AxisPlan& plan = problem.grid.axes[n];
      const int64_t width = plan.key_width, row = p_row(n);
      const bool wants_p = axis.own_p ? call.gradients.q_rel : call.gradients.q;
      float* const d_p = axis.own_p ? work.d_p + plan.p : work.d_q;
      const bool wanted = (width && (wants_p || total)) || (axis.bias && total);
      for (Group group; wanted && next_group(block, n, group);) {
        unshear(n, group, work.d_by_key);
        if (width && wants_p)
          add_times_rows<kRows>(group.count, group.span, work.group, wide,
                                axis_tables().rows + plan.padded.keys + group.start * width, width,
                                d_p + group.first * row, row, width);
        if (width && total)
          add_times_rows<kColumns>(group.span, group.count, work.group, wide,
                                   axis_p(n) + group.first * row, row,
                                   total + plan.padded.keys + group.start * width, width, width);
        if (axis.bias && total)
          add_columns(group.count, group.span, work.group, wide,
                      total + plan.padded.bias + group.start);
      }
      for (Group group; axis.values && total && next_group(block, n, group);) {
        unshear(n, group, work.weights_by_place);
        add_times_rows<kColumns>(group.span, group.count, work.group, wide,
                                 work.d_output + group.first * value_width, value_width,
                                 total + plan.padded.values + group.start * value_width,
                                 value_width, value_width);
      }
    }
  }

  void finish(const Block& block) {
    if (totals.tables[kValues]) {
      flush_values(block, work.weights.origin, work.weights.end);
      float* total = table_total(kValues, block.h);
      const int64_t width = problem.value_width;
      add_times_rows<kColumns>(1, block.count, weight_left, 1, work.d_output, width,
                               total + problem.values.left() * width, width, width);
      add_times_rows<kColumns>(1, block.count, weight_right, 1, work.d_output, width,
                               total + problem.values.right() * width, width, width);
    }
    if (follows_scores()) {
      const Strip& strip = work.d_scores_by_offset;
      flush_offsets(block, strip.origin, strip.end);
      pass_on(block, d_scores_left, 1, problem.scores.left(), 1);
      pass_on(block, d_scores_right, 1, problem.scores.right(), 1);
    }
    if (call.grid.count) finish_places(block);
    if (call.gradients.q) write(block, work.d_q, problem.width, call.width, call.gradients.q);
    if (call.gradients.q_rel)
      write(block, work.d_p, problem.rel_width, call.rel_width, call.gradients.q_rel);
  }

  void write(const Block& block, float* from, int64_t padded, int64_t width, void* to) {
    for (int64_t r = 0; r < block.count; ++r) {
      float* row = from + r * padded;
      for (int64_t n = 0; n < padded; ++n) row[n] *= call.scale;
      const int64_t at = (block.b * call.heads + block.h) * call.queries + block.first + r;
      narrow(row, width, to, call.dtype, at * width);
    }
  }
};

}  // namespace
}  // namespace relpos
