// Forward: an online softmax over the tiles of keys.
#pragma once

namespace relpos {
namespace {

struct Forward : Worker {
  float most[kRowsOfBlock], total[kRowsOfBlock];
  float weight_left[kRowsOfBlock], weight_right[kRowsOfBlock];  // weights beyond the values' window

  using Worker::Worker;

  void run(int64_t b, int64_t h, int64_t first, int64_t count) {
    Block block;
    begin_block(block, b, h, first, count);
    fill(most, count, -kInfinity);
    fill(total, count, 0);
    fill(weight_left, count, 0);
    fill(weight_right, count, 0);
    fill(work.output, count * problem.value_width, 0);
    work.weights.restart(0);
    if (problem.grid.values) fill(work.weights_by_place, count * call.grid.width, 0);
    float shift[kRowsOfBlock];
    for (Tile tile = {0, 0, 0, 0}; next_tile(block, tile);) {
      tile_scores(block, tile, shift);
      for (int64_t r = 0; r < count; ++r) soften(block, tile, r, shift[r]);
      int64_t row;
      const float* v = rows_of(call.v, block, tile, call.value_width, problem.value_width,
                               work.value_tile, &row);
      add_times_rows<kRows>(count, tile.to - tile.from, work.scores + tile.from, kTileRow,
                            v + tile.from * row, row, work.output, problem.value_width,
                            problem.value_width);
      if (problem.values.present) collect_weights(block, tile);
      for (int64_t r = placed; r < count && problem.grid.values; ++r)
        collect_by_place(work.scores + r * kTileRow, work.weights_by_place + r * call.grid.width);
    }
    if (problem.values.present) finish_values(block);
    if (problem.grid.values) finish_values_by_place(block);
    write(block);
  }

  // Scores of a row as weights relative to the largest score so far.
  void soften(const Block& block, const Tile& tile, int64_t r, float shift) {
    float* x = work.scores + r * kTileRow;
    if (tile.row_from(block, r) >= tile.row_to(block, r)) {
      fill(x + tile.low(), tile.high() - tile.low(), 0);
      return;
    }
    const int64_t from = rounded_down(tile.row_from(block, r), W);
    const int64_t to = rounded_up(tile.row_to(block, r), W);
    vfloat top = broadcast(-kInfinity);
    for (int64_t n = from; n < to; n += W) top = maximum(load(x + n), top);
    float now = maximum_of(top) + shift;
    if (!(now > -kInfinity)) {
      // The row has no key here, unless there are NaN, which the maximum does not show.
      if (shift == shift && !any_nan(x + from, to - from)) {
        fill(x + tile.low(), tile.high() - tile.low(), 0);
        return;
      }
      now = __builtin_nanf("");
    }
    if (!(now <= most[r])) {
      if (most[r] != -kInfinity) rescale(r, exponential(most[r] - now));
      most[r] = now;
    }
    const vfloat base = broadcast(most[r] - shift);
    vfloat sum = {};
    for (int64_t n = from; n < to; n += W) {
      const vfloat weight = exponential(load(x + n) - base);
      sum += weight;
      store(x + n, weight);
    }
    total[r] += sum_of(sum);
    fill(x + tile.low(), from - tile.low(), 0);
    fill(x + to, tile.high() - to, 0);
    if (problem.drop_below) drop(block, tile, r, from, to, x);
  }

  void rescale(int64_t r, float factor) {
    total[r] *= factor, weight_left[r] *= factor, weight_right[r] *= factor;
    float* out = work.output + r * problem.value_width;
    for (int64_t n = 0; n < problem.value_width; ++n) out[n] *= factor;
    float* by_offset = work.weights.data + r * kStripRow;
    for (int64_t n = 0; n < work.weights.end - work.weights.origin; ++n) by_offset[n] *= factor;
    if (!problem.grid.values) return;
    float* by_place = work.weights_by_place + r * call.grid.width;
    for (int64_t n = 0; n < call.grid.width; ++n) by_place[n] *= factor;
  }

  // Sum the weights by offset, for the table of the values.
  void collect_weights(const Block& block, const Tile& tile) {
    const Window& window = problem.values;
    const Region region = region_of(window, block, tile);
    if (region != kBand) {
      add_row_sums(block, tile, work.scores, region == kLeft ? weight_left : weight_right);
      return;
    }
    work.weights.reach(tile.first_column(window, block), tile.end_column(window, block),
                       block.count,
                       [&](int64_t from, int64_t to) { flush_weights(block, from, to); });
    collect_band(block, tile, window, work.scores, work.weights);
  }

  void flush_weights(const Block& block, int64_t from, int64_t to) {
    const float* rows = columns(kValues, block.h).rows;
    add_times_rows<kRows>(block.count, to - from, work.weights.row(0) + from, kStripRow,
                          rows + from * problem.value_width, problem.value_width, work.output,
                          problem.value_width, problem.value_width);
  }

  void finish_values(const Block& block) {
    flush_weights(block, work.weights.origin, work.weights.end);
    const int64_t width = problem.value_width;
    const float* rows = columns(kValues, block.h).rows;
    const float* left = rows + problem.values.left() * width;
    const float* right = rows + problem.values.right() * width;
    for (int64_t r = 0; r < block.count; ++r) {
      float* out = work.output + r * width;
      if (weight_left[r] != 0) add_scaled(width, weight_left[r], left, out);
      if (weight_right[r] != 0) add_scaled(width, weight_right[r], right, out);
    }
  }

  void finish_values_by_place(const Block& block) {
    const int64_t width = problem.value_width;
    for (int axis = 0; axis < call.grid.count; ++axis) {
      if (!call.grid.axes[axis].values) continue;
      const float* rows = axis_tables().rows + problem.grid.axes[axis].padded.values;
      for (Group group; next_group(block, axis, group);) {
        unshear(axis, group, work.weights_by_place);
        add_times_rows<kRows>(group.count, group.span, work.group, problem.grid.group,
                              rows + group.start * width, width, work.output + group.first * width,
                              width, width);
      }
    }
  }

  void write(const Block& block) {
    for (int64_t r = 0; r < block.count; ++r) {
      const int64_t at = (block.b * call.heads + block.h) * call.queries + block.first + r;
      float* out = work.output + r * problem.value_width;
      const float factor = total[r] == 0 ? 0 : 1 / (total[r] * problem.kept);
      for (int64_t n = 0; n < problem.value_width; ++n) out[n] *= factor;
      narrow(out, call.value_width, call.output, Dtype::f32, at * call.value_width);
      call.most[at] = total[r] == 0 ? -kInfinity : most[r];
      call.total[at] = total[r];
      call.lse[at] = total[r] == 0 ? -kInfinity : most[r] + __builtin_logf(total[r]);
    }
  }
};

}  // namespace
}  // namespace relpos
