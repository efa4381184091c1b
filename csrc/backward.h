// Backward: the weights are computed again, tile by tile, from each row's saved largest score and sum.
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
      if (call.d_places.present())
        sum += dot_in_double(call.places + row * call.grid.width,
                             at_view(call.d_places, block.b, block.h, block.first + r),
                             call.grid.width);
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
    work.value_by_offset.restart(0);
    work.weights.restart(0);
    work.d_scores_by_offset.restart(0);
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
    const int64_t panel = tile.from / NR, panels = (tile.to + NR - 1) / NR - panel;
    times_panels<kPanels>(block.count, call.value_width, work.d_output_panels, 0,
                          work.value_panels + (tile.begin + panel * NR) * call.value_width, panels,
                          work.d_scores + panel * NR, kTileRow);
    if (call.d_places.present())
      for (int64_t r = 0; r < block.count; ++r)
        add_by_key(tile, scaled_places(block, r), work.d_scores + r * kTileRow);
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

  // d_places as the rest of dO: divided by the share that dropout keeps.
  const float* scaled_places(const Block& block, int64_t r) {
    const float* from = at_view(call.d_places, block.b, block.h, block.first + r);
    for (int64_t n = 0; n < call.grid.width; ++n) work.line[n] = from[n] / problem.kept;
    return work.line;
  }

  void reach_values(const Block& block, int64_t from, int64_t to) {
    Strip& strip = work.value_by_offset;
    from = rounded_down(from, NR), to = rounded_up(to, NR);
    if (strip.end < from || strip.end == 0) strip.restart(from);
    if (to - strip.origin > kStrip) strip.move(from, block.count);
    if (to <= strip.end) return;
    const int64_t depth = call.value_width;
    times_panels<kPanels>(block.count, depth, work.d_output_panels, 0,
                          columns(kValues, block.h).panels + strip.end * depth,
                          (to - strip.end) / NR, strip.row(0) + strip.end, kStripRow);
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
    if (call.grid.axes) collect_grid(block, tile);
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
    float* total = table_total(kQueries, block.h);
    if (!totals.k && !total) return;
    const Window& window = problem.queries;
    const int64_t width = problem.width;
    const Region region = region_of(window, block, tile);
    int64_t row;
    const float* k = rows_of(call.k, block, tile, call.width, width, work.key_tile, &row);
    const float* rows = columns(kQueries, block.h).rows;
    if (region != kBand) {
      const int64_t column = region == kLeft ? window.left() : window.right();
      for (int64_t n = tile.from; n < tile.to; ++n) {
        float sum = 0;
        for (int64_t r = 0; r < block.count; ++r) sum += work.d_scores[r * kTileRow + n];
        sum *= call.scale;
        if (totals.k) add_scaled(width, sum, rows + column * width, totals.k + tile.key(n) * width);
        if (total) add_scaled(width, sum, k + n * row, total + column * width);
      }
      return;
    }
    for (int64_t n = tile.from; n < tile.to; n += kKeysAtOnce) {
      const int64_t some = smaller(kKeysAtOnce, tile.to - n);
      const int64_t low = window.single(tile.key(n), block.last_position());
      const int64_t high = window.single(tile.key(n + some - 1), block.position) + 1;
      for (int64_t c = 0; c < some; ++c) {
        float* to = work.d_met + c * kStripRow;
        fill(to, high - low, 0);
        for (int64_t r = 0; r < block.count; ++r)
          to[window.single(tile.key(n + c), block.position + r) - low] +=
              call.scale * work.d_scores[r * kTileRow + n + c];
      }
      if (totals.k)
        add_times_rows<kRows>(some, high - low, work.d_met, kStripRow, rows + low * width, width,
                              totals.k + tile.key(n) * width, width, width);
      if (total)
        add_times_rows<kColumns>(high - low, some, work.d_met, kStripRow, k + n * row, row,
                                 total + low * width, width, width);
    }
  }

  // Rows are summed up before they meet the total, which rounds less.
  static void add_columns(int64_t rows, int64_t count, const float* d, int64_t row, float* total) {
    for (int64_t n = 0; n < count; n += W) {
      float sums[W] = {};
      const int64_t some = smaller(W, count - n);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < some; ++k) sums[k] += d[r * row + n + k];
      for (int64_t k = 0; k < some; ++k) total[n + k] += sums[k];
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
    const Gradients& gradients = call.gradients;
    for (int64_t r = 0; r < block.count; ++r) {
      const float* d = work.d_scores + r * kTileRow;
      const int64_t query = block.first + r;
      const int64_t head = block.b * call.heads + block.h;
      if (gradients.by_key)
        collect_by_key(tile, d, gradients.by_key + (head * call.queries + query) * grid.width);
      int64_t places[kMostAxes];
      if (!query_places(query, places)) continue;
      int64_t begin = 0;
      for (int axis = 0; axis < grid.axes && gradients.by_query; ++axis) {
        float* to = gradients.by_query +
                    (head * grid.query_width + begin + places[axis]) * call.keys + tile.begin;
        for (int64_t n = tile.from; n < tile.to; ++n) to[n] += d[n];
        begin += grid.queries[axis];
      }
      if (!totals.joint) continue;
      float* joint = totals.joint + (grid.joint_heads == 1 ? 0 : block.h - totals.first_head) *
                                        grid.joint_count;
      for (int64_t at = first_run(tile); at < tile.to;) {
        const Run run = run_at(tile, at);
        float* to = joint + joint_entry(run, places);
        for (int64_t n = 0; n < run.count; ++n) to[n] += d[at + n];
        at += run.count;
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
