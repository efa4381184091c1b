// The scores of a tile, all terms and masks in them.
#pragma once

namespace relpos {
namespace {

// Neighbouring keys that lie along a grid's last axis.
struct Run {
  int64_t count;              // columns of the tile
  int64_t places[kMostAxes];  // of its first key, along each axis
};

struct Worker {
  const Problem& problem;
  const Call& call;
  Workspace work;

  Worker(const Problem& p, Workspace w) : problem(p), call(p.call), work(w) {}

  const Columns& columns(int kind, int64_t head) {
    const Table& table = call.tables[kind];
    if (table.heads == 1) return problem.tables[kind];
    Columns& own = work.tables[kind];
    if (own.head != head) {
      own.head = head;
      for (int64_t n = 0; n < problem.window(kind).panels(); ++n)
        fill_panel(table, call.dtype, problem.window(kind), n, problem.padded(kind), own,
                   work.scratch);
    }
    return own;
  }

  // ---- the inputs of a block ------------------------------------------------------------------

  void widen_rows(const View& x, Dtype dtype, int64_t b, int64_t h, int64_t first, int64_t count,
                  int64_t width, int64_t padded, float scale, float* to) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t at = b * x.strides[0] + h * x.strides[1] + (first + n) * x.strides[2];
      widen(x.data, dtype, at, width, scale, to + n * padded);
      fill(to + n * padded + width, padded - width, 0);
    }
  }

  // Rows of k or v as floats whose width is whole vectors: as they lie, or a copy.
  const float* rows_of(const View& x, const Block& block, const Tile& tile, int64_t width,
                       int64_t padded, float* copy, int64_t* row) {
    if (call.dtype == Dtype::f32 && width == padded) {
      *row = x.strides[2];
      return (const float*)x.data + block.b * x.strides[0] + block.g * x.strides[1] +
             tile.begin * x.strides[2];
    }
    *row = padded;
    widen_rows(x, call.dtype, block.b, block.g, tile.begin, tile.to, width, padded, 1, copy);
    return copy;
  }

  void pack_keys(const View& x, int64_t b, int64_t g, int64_t width, float* panels) {
    for (int64_t j = 0; j < call.keys; j += NR) {
      float* panel = panels + j * width;
      const int64_t count = smaller(NR, call.keys - j);
      if (count < NR) fill(panel, width * NR, 0);
      for (int64_t n = 0; n < count; ++n) {
        const int64_t at = b * x.strides[0] + g * x.strides[1] + (j + n) * x.strides[2];
        const float* row = (const float*)x.data + at;
        if (call.dtype != Dtype::f32) {
          widen(x.data, call.dtype, at, width, 1, work.scratch);
          row = work.scratch;
        }
        for (int64_t k = 0; k < width; ++k) panel[k * NR + n] = row[k];
      }
    }
  }

  void begin_block(Block& block, int64_t b, int64_t h, int64_t first, int64_t count) {
    block.b = b, block.h = h, block.g = h / call.repeat();
    block.first = first, block.count = count;
    block.position = call.start + first;
    if (work.packed_batch != b || work.packed_group != block.g) {
      if (!problem.few) pack_keys(call.k, b, block.g, call.width, work.key_panels);
      if (problem.backward) pack_keys(call.v, b, block.g, call.value_width, work.value_panels);
      work.packed_batch = b, work.packed_group = block.g;
    }
    widen_rows(call.q, call.dtype, b, h, first, count, call.width, problem.width, call.scale,
               work.q);
    pack_left(work.q, problem.width, count, call.width, work.q_panels);
    if (call.own_p()) {
      widen_rows(call.q_rel, call.dtype, b, h, first, count, call.rel_width, problem.rel_width,
                 call.scale, work.p);
      pack_left(work.p, problem.rel_width, count, call.rel_width, work.p_panels);
    }
    limit_keys(block);
    if (problem.scores.present) {
      beyond(block, problem.scores.left(), block.score_left);
      beyond(block, problem.scores.right(), block.score_right);
      work.by_offset.restart(0);
    }
  }

  void limit_keys(Block& block) {
    block.keys_begin = call.keys, block.keys_end = 0;
    const Documents& documents = call.documents;
    const int64_t of_batch = block.b * documents.stride;
    for (int64_t r = 0; r < block.count; ++r) {
      int64_t begin = 0, end = call.keys;
      if (documents.numbers) {
        const int64_t at = of_batch + block.position + r;
        begin = documents.begin[at], end = documents.end[at];
      }
      if (call.causal) end = smaller(end, block.position + r + 1);
      block.begin[r] = begin, block.end[r] = larger(end, begin);
      if (begin >= end) continue;
      block.keys_begin = smaller(block.keys_begin, begin);
      block.keys_end = larger(block.keys_end, end);
    }
  }

  // What each row's score gets beyond the window: that of one column.
  void beyond(const Block& block, int64_t column, float* to) {
    const Table &keys = call.tables[kKeys], &bias = call.tables[kBias];
    float constant = 0;
    if (bias.present()) {
      table_column(bias, call.dtype, problem.scores, block.h, column, 1, work.scratch);
      constant = work.scratch[0];
    }
    fill(to, block.count, constant);
    if (!keys.present()) return;
    table_column(keys, call.dtype, problem.scores, block.h, column, problem.rel_width,
                 work.scratch);
    for (int64_t r = 0; r < block.count; ++r)
      to[r] += dot(work.p + r * problem.rel_width, work.scratch, problem.rel_width);
  }

  // ---- tiles ----------------------------------------------------------------------------------

  bool next_tile(const Block& block, Tile& tile) const {
    const int64_t begin = tile.count ? tile.begin + kTile : rounded_down(block.keys_begin, NR);
    if (begin >= block.keys_end) return false;
    tile.begin = begin;
    tile.count = smaller(kTile, call.keys - begin);
    tile.from = larger(block.keys_begin - begin, 0);
    tile.to = smaller(block.keys_end - begin, tile.count);
    return true;
  }

  // Scores in work.scores; row r's true ones are larger by shift[r].
  void tile_scores(const Block& block, const Tile& tile, float* shift) {
    float* scores = work.scores;
    multiply_keys(block, tile, scores);
    fill(shift, block.count, 0);
    if (problem.scores.present) {
      const Region region = region_of(problem.scores, block, tile);
      if (region == kBand) add_band(block, tile, scores);
      for (int64_t r = 0; r < block.count && region != kBand; ++r)
        shift_row(tile, region == kLeft ? block.score_left[r] : block.score_right[r],
                  scores + r * kTileRow, shift + r);
    }
    if (problem.queries.present) add_met(block, tile, scores);
    if (call.grid.axes) add_grid(block, tile, scores);
    if (call.mask.data) add_mask(block, tile, scores);
    hide(block, tile, scores);
  }

  // A row's constant beyond the window is kept apart, so that no score is touched; unless it is so
  // large (a mask made of biases) that the scores would be lost beside it.
  void shift_row(const Tile& tile, float constant, float* scores, float* shift) {
    if (constant > -kLargestShift && constant < kLargestShift) {
      *shift = constant;
      return;
    }
    for (int64_t n = tile.from; n < tile.to; ++n) scores[n] += constant;
  }

  void multiply_keys(const Block& block, const Tile& tile, float* scores) {
    if (problem.few) {
      int64_t row;
      const float* k = rows_of(call.k, block, tile, call.width, problem.width, work.key_tile, &row);
      for (int64_t r = 0; r < block.count; ++r)
        for (int64_t n = tile.from; n < tile.to; ++n)
          scores[r * kTileRow + n] =
              dot(work.q + r * problem.width, k + n * row, problem.width);
      return;
    }
    const int64_t panel = tile.from / NR, panels = (tile.to + NR - 1) / NR - panel;
    times_panels<kPanels>(block.count, call.width, work.q_panels, 0,
                          work.key_panels + (tile.begin + panel * NR) * call.width, panels,
                          scores + panel * NR, kTileRow);
  }

  // Terms of keys and bias within their window.
  void add_band(const Block& block, const Tile& tile, float* scores) {
    const Window& window = problem.scores;
    const bool vectors = call.tables[kKeys].present();
    if (vectors && problem.few) {
      add_pairs(block, tile, scores);
      return;
    }
    if (vectors)
      reach_scores(block, tile.first_column(window, block), tile.end_column(window, block));
    const float* line = vectors ? nullptr : columns(kBias, block.h).line;
    for (int64_t r = 0; r < block.count; ++r)
      add_sheared(vectors ? work.by_offset.row(r) : line, window, tile.key(tile.low()),
                  block.position + r, tile.high() - tile.low(), scores + r * kTileRow + tile.low());
  }

  // The same for few queries: the table is read where it lies, a row for each pair.
  void add_pairs(const Block& block, const Tile& tile, float* scores) {
    const Window& window = problem.scores;
    const float* line =
        call.tables[kBias].present() ? columns(kBias, block.h).line : nullptr;
    for (int64_t r = 0; r < block.count; ++r)
      for (int64_t n = tile.from; n < tile.to; ++n) {
        const int64_t column = window.single(tile.key(n), block.position + r);
        scores[r * kTileRow + n] +=
            dot(work.p + r * problem.rel_width, row_shown(kKeys, block.h, column),
                problem.rel_width) +
            (line ? line[column] : 0);
      }
  }

  // The row of a table that a column shows: where it lies if it can be read there, or a copy.
  const float* row_shown(int kind, int64_t head, int64_t column) {
    const Table& table = call.tables[kind];
    const Window& window = problem.window(kind);
    const int64_t padded = problem.padded(kind), row = source_row(table, window, column);
    if (row >= 0 && call.dtype == Dtype::f32 && table.width == padded)
      return (const float*)table.rows +
             ((table.heads == 1 ? 0 : head) * table.count + row) * padded;
    table_column(table, call.dtype, window, head, column, padded, work.scratch);
    return work.scratch;
  }

  // Have the columns from..to-1 of keys and bias in the strip.
  void reach_scores(const Block& block, int64_t from, int64_t to) {
    Strip& strip = work.by_offset;
    from = rounded_down(from, NR);
    to = rounded_up(to, NR);
    if (strip.end == 0 || strip.end < from) strip.restart(from);
    if (to - strip.origin > kStrip) strip.move(from, block.count);
    if (to <= strip.end) return;
    const Columns& keys = columns(kKeys, block.h);
    const bool biased = call.tables[kBias].present();
    const float* line = biased ? columns(kBias, block.h).line : nullptr;
    const int64_t depth = problem.rel_depth();
    for (int64_t n = strip.end; n < to; n += NR) {
      float* out = strip.row(0) + n;
      times_panels<kPanels>(block.count, depth, work.p_panels, 0, keys.panels + n * depth, 1, out,
                            kStripRow);
      for (int64_t r = 0; r < block.count && line; ++r)
        for (int64_t c = 0; c < NR; c += W)
          store(out + r * kStripRow + c, load(out + r * kStripRow + c) + load(line + n + c));
    }
    strip.end = to;
  }

  // ---- the term that meets the keys -----------------------------------------------------------

  // scale * k_j . Q[low or high] for each key of the tile.
  void met_beyond(const Block& block, const Tile& tile, Region region, float* line) {
    const Window& window = problem.queries;
    table_column(call.tables[kQueries], call.dtype, window, block.h,
                 region == kLeft ? window.left() : window.right(), problem.width, work.scratch);
    int64_t row;
    const float* k = rows_of(call.k, block, tile, call.width, problem.width, work.key_tile, &row);
    for (int64_t n = tile.from; n < tile.to; ++n)
      line[n] = call.scale * dot(work.scratch, k + n * row, problem.width);
  }

  void add_met(const Block& block, const Tile& tile, float* scores) {
    const Window& window = problem.queries;
    const Region region = region_of(window, block, tile);
    if (region != kBand) {
      met_beyond(block, tile, region, work.line);
      for (int64_t r = 0; r < block.count; ++r)
        for (int64_t n = tile.from; n < tile.to; ++n)
          scores[r * kTileRow + n] += work.line[n];
      return;
    }
    int64_t row;
    const float* k = rows_of(call.k, block, tile, call.width, problem.width, work.key_tile, &row);
    for (int64_t r = 0; r < block.count && problem.few; ++r)
      for (int64_t n = tile.from; n < tile.to; ++n) {
        const int64_t column = window.single(tile.key(n), block.position + r);
        scores[r * kTileRow + n] +=
            call.scale * dot(k + n * row, row_shown(kQueries, block.h, column), problem.width);
      }
    if (problem.few) return;
    const Columns& table = columns(kQueries, block.h);
    for (int64_t n = tile.from; n < tile.to; n += kKeysAtOnce) {
      const int64_t count = smaller(kKeysAtOnce, tile.to - n);
      const int64_t low = rounded_down(window.single(tile.key(n), block.last_position()), NR);
      const int64_t high =
          rounded_up(window.single(tile.key(n + count - 1), block.position) + 1, NR);
      pack_left(k + n * row, row, count, call.width, work.left_panels);
      times_panels<kPanels>(count, call.width, work.left_panels, 0,
                            table.panels + low * call.width, (high - low) / NR, work.met,
                            kStripRow);
      for (int64_t r = 0; r < block.count; ++r)
        for (int64_t c = 0; c < count; ++c)
          scores[r * kTileRow + n + c] +=
              call.scale *
              work.met[c * kStripRow + window.single(tile.key(n + c), block.position + r) - low];
    }
  }

  // ---- grids ----------------------------------------------------------------------------------

  // The next run of keys with neighbouring places, from column `at` of the tile on.
  Run run_at(const Tile& tile, int64_t at) const {
    const Grid& grid = call.grid;
    Run run;
    int64_t token = tile.key(at) - grid.prefix;
    for (int axis = grid.axes - 1; axis >= 0; --axis) {
      run.places[axis] = token % grid.keys[axis];
      token /= grid.keys[axis];
    }
    const int last = grid.axes - 1;
    run.count = smaller(grid.keys[last] - run.places[last], tile.to - at);
    return run;
  }

  int64_t first_run(const Tile& tile) const {
    return clamped(call.grid.prefix - tile.begin, tile.from, tile.to);
  }

  bool query_places(int64_t query, int64_t* places) const {
    const Grid& grid = call.grid;
    int64_t token = query - grid.prefix;
    if (token < 0) return false;
    for (int axis = grid.axes - 1; axis >= 0; --axis) {
      places[axis] = token % grid.queries[axis];
      token /= grid.queries[axis];
    }
    return true;
  }

  // Where the joint bias of a run starts.
  int64_t joint_entry(const Run& run, const int64_t* query) const {
    int64_t entry = 0;
    for (int axis = 0; axis < call.grid.axes; ++axis)
      entry = entry * (2 * call.grid.keys[axis] - 1) + run.places[axis] - query[axis] +
              call.grid.keys[axis] - 1;
    return entry;
  }

  const float* joint_of(int64_t h) const {
    return call.grid.joint + (call.grid.joint_heads == 1 ? 0 : h) * call.grid.joint_count;
  }

  // The number of a row for a run's places: outer axes summed, and where the last axis starts.
  float outer_of(const float* by_place, const Run& run, int64_t* last) const {
    float outer = 0;
    int64_t begin = 0;
    for (int axis = 0; axis + 1 < call.grid.axes; ++axis) {
      outer += by_place[begin + run.places[axis]];
      begin += call.grid.keys[axis];
    }
    *last = begin + run.places[call.grid.axes - 1];
    return outer;
  }

  // x (of one row) += numbers by place of the keys.
  void add_by_key(const Tile& tile, const float* by_place, float* x) const {
    for (int64_t at = first_run(tile); at < tile.to;) {
      const Run run = run_at(tile, at);
      int64_t last;
      const float outer = outer_of(by_place, run, &last);
      for (int64_t n = 0; n < run.count; ++n) x[at + n] += outer + by_place[last + n];
      at += run.count;
    }
  }

  // The adjoint: sums by place of the keys += x.
  void collect_by_key(const Tile& tile, const float* x, float* by_place) const {
    const int axes = call.grid.axes;
    for (int64_t at = first_run(tile); at < tile.to;) {
      const Run run = run_at(tile, at);
      float total = 0;
      for (int64_t n = 0; n < run.count; ++n) total += x[at + n];
      int64_t begin = 0;
      for (int axis = 0; axis + 1 < axes; ++axis) {
        by_place[begin + run.places[axis]] += total;
        begin += call.grid.keys[axis];
      }
      float* last = by_place + begin + run.places[axes - 1];
      for (int64_t n = 0; n < run.count; ++n) last[n] += x[at + n];
      at += run.count;
    }
  }

  const float* at_view(const View& x, int64_t b, int64_t h, int64_t i) const {
    return (const float*)x.data + b * x.strides[0] + h * x.strides[1] + i * x.strides[2];
  }

  void add_grid(const Block& block, const Tile& tile, float* scores) {
    const Grid& grid = call.grid;
    for (int64_t r = 0; r < block.count; ++r) {
      float* x = scores + r * kTileRow;
      if (grid.by_key.present())
        add_by_key(tile, at_view(grid.by_key, block.b, block.h, block.first + r), x);
      int64_t places[kMostAxes];
      if (!query_places(block.first + r, places)) continue;
      int64_t begin = 0;
      for (int axis = 0; axis < grid.axes && grid.by_query.present(); ++axis) {
        const float* line =
            at_view(grid.by_query, block.b, block.h, begin + places[axis]) + tile.begin;
        for (int64_t n = tile.from; n < tile.to; ++n) x[n] += line[n];
        begin += grid.queries[axis];
      }
      for (int64_t at = first_run(tile); grid.joint && at < tile.to;) {
        const Run run = run_at(tile, at);
        const float* line = joint_of(block.h) + joint_entry(run, places);
        for (int64_t n = 0; n < run.count; ++n) x[at + n] += line[n];
        at += run.count;
      }
    }
  }

  // ---- masks ----------------------------------------------------------------------------------

  void add_mask(const Block& block, const Tile& tile, float* scores) {
    const Mask& mask = call.mask;
    const int64_t step = mask.strides[3];
    for (int64_t r = 0; r < block.count; ++r) {
      float* x = scores + r * kTileRow;
      const int64_t at = block.b * mask.strides[0] + block.h * mask.strides[1] +
                         (block.first + r) * mask.strides[2] + tile.begin * step;
      if (mask.dtype == Dtype::boolean) {
        const uint8_t* row = (const uint8_t*)mask.data + at;
        for (int64_t n = tile.from; n < tile.to; ++n)
          x[n] = row[n * step] ? x[n] : -kInfinity;
      } else if (mask.dtype == Dtype::f32) {
        const float* row = (const float*)mask.data + at;
        if (step == 1)
          for (int64_t n = tile.from; n < tile.to; ++n) x[n] += row[n];
        else
          for (int64_t n = tile.from; n < tile.to; ++n) x[n] += row[n * step];
      } else {
        const int64_t some = step ? tile.to - tile.from : 1;
        widen(mask.data, mask.dtype, at + tile.from * step, some, 1, work.line);
        for (int64_t n = tile.from; n < tile.to; ++n) x[n] += work.line[(n - tile.from) * step];
      }
    }
  }

  // -inf where a row must not look, within the whole vectors that it touches.
  void hide(const Block& block, const Tile& tile, float* scores) {
    const Documents& documents = call.documents;
    for (int64_t r = 0; r < block.count; ++r) {
      float* x = scores + r * kTileRow;
      const int64_t from = tile.row_from(block, r), to = tile.row_to(block, r);
      if (from >= to) continue;
      if (documents.numbers && documents.mixed) {
        const int32_t* numbers = documents.numbers + block.b * documents.stride;
        const int32_t own = numbers[block.position + r];
        for (int64_t n = from; n < to; ++n)
          x[n] = numbers[tile.key(n)] == own ? x[n] : -kInfinity;
      }
      for (int64_t n = rounded_down(from, W); n < from; ++n) x[n] = -kInfinity;
      for (int64_t n = to; n < rounded_up(to, W); ++n) x[n] = -kInfinity;
    }
  }

  // x by offset, added to the strip.
  void collect_band(const Block& block, const Tile& tile, const Window& window, const float* x,
                    Strip& strip) {
    for (int64_t r = 0; r < block.count; ++r)
      collect_sheared(x + r * kTileRow + tile.low(), window, tile.key(tile.low()),
                      block.position + r, tile.high() - tile.low(), strip.row(r));
  }

  // Row sums of x, added to `sums`.
  void add_row_sums(const Block& block, const Tile& tile, const float* x, float* sums) {
    for (int64_t r = 0; r < block.count; ++r)
      sums[r] += sum_of(x + r * kTileRow + tile.low(), tile.high() - tile.low());
  }

  // ---- dropout --------------------------------------------------------------------------------

  // Set x to 0 where dropout drops: a function of the seed and of the pair alone.
  void drop(const Block& block, const Tile& tile, int64_t r, int64_t from, int64_t to, float* x) {
    uint64_t z = call.seed + 0x9e3779b97f4a7c15u *
                                 (uint64_t)(1 + (block.b * call.heads + block.h) * call.queries +
                                            block.first + r);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const vuint start = vuint{} + (uint32_t)z, key = vuint{} + (uint32_t)(z >> 32);
    for (int64_t n = from; n < to; n += W) {
      vuint u = start + (lane_numbers() + (uint32_t)tile.key(n)) * 0x9e3779b9u;
      u = (u ^ u >> 16) * 0x21f0aaadu;
      u ^= key;
      u = (u ^ u >> 15) * 0x735a2d97u;
      u ^= u >> 15;
      store(x + n, choose((vint)(u < problem.drop_below), vfloat{}, load(x + n)));
    }
  }
};

}  // namespace
}  // namespace relpos
