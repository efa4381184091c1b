// The scores of a tile, all terms and masks in them.
#pragma once

namespace relpos {
namespace {

struct Worker : OnGrid {
  using OnGrid::OnGrid;

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
      if (!call.grid.count)
        pack_left(work.p, problem.rel_width, count, call.rel_width, work.p_panels);
    }
    limit_keys(block);
    if (call.grid.count) begin_grid(block);
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
    if (call.grid.count) add_grid(block, tile, scores);
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
    const int64_t first = rounded_down(tile.from, NR);
    times_panels(block.count, call.width, work.q_panels,
                 work.key_panels + tile.key(first) * call.width, tile.to - first, scores + first,
                 kTileRow);
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
      times_panels(block.count, depth, work.p_panels, keys.panels + n * depth, NR, out, kStripRow);
      for (int64_t r = 0; r < block.count && line; ++r)
        for (int64_t c = 0; c < NR; c += W)
          store(out + r * kStripRow + c, load(out + r * kStripRow + c) + load(line + n + c));
    }
    strip.end = to;
  }

  // ---- the term that meets the keys -----------------------------------------------------------

  // The part of a tile from key `at` on whose keys are met alike: far ones, or a few of the band.
  Tile met_part(const Block& block, const Tile& tile, int64_t at, Region& region) const {
    Tile part = tile;
    part.from = at, part.to = smaller(at + kKeysAtOnce, tile.to);
    region = region_of(problem.queries, block, part);
    while (region != kBand && part.to < tile.to) {
      Tile more = part;
      more.to = smaller(part.to + kKeysAtOnce, tile.to);
      if (region_of(problem.queries, block, more) != region) break;
      part = more;
    }
    return part;
  }

  void add_met(const Block& block, const Tile& tile, float* scores) {
    int64_t row;
    const float* k = rows_of(call.k, block, tile, call.width, problem.width, work.key_tile, &row);
    Region region;
    for (int64_t at = tile.from; at < tile.to;) {
      const Tile part = met_part(block, tile, at, region);
      if (region != kBand)
        add_met_beyond(block, part, region, k, row, scores);
      else if (problem.few)
        add_met_pairs(block, part, k, row, scores);
      else
        add_met_band(block, part, k, row, scores);
      at = part.to;
    }
  }

  // scale * k_j . Q[low or high] for each key.
  void add_met_beyond(const Block& block, const Tile& part, Region region, const float* k,
                      int64_t row, float* scores) {
    const Window& window = problem.queries;
    float* const line = work.line;
    table_column(call.tables[kQueries], call.dtype, window, block.h,
                 region == kLeft ? window.left() : window.right(), problem.width, work.scratch);
    for (int64_t n = 0; n < problem.width; ++n) work.scratch[n] *= call.scale;
    for (int64_t n = part.from; n < part.to && problem.few; ++n)
      line[n] = dot(work.scratch, k + n * row, problem.width);
    for (int64_t n = rounded_down(part.from, NR); n < part.to && !problem.few; n += NR)
      some_rows<NV, kRows, false>(1, call.width, work.scratch, 0,
                                  work.key_panels + part.key(n) * call.width, NR, line + n, 0);
    for (int64_t r = 0; r < block.count; ++r)
      for (int64_t n = part.from; n < part.to; ++n) scores[r * kTileRow + n] += line[n];
  }

  void add_met_pairs(const Block& block, const Tile& part, const float* k, int64_t row,
                     float* scores) {
    for (int64_t r = 0; r < block.count; ++r)
      for (int64_t n = part.from; n < part.to; ++n) {
        const int64_t column = problem.queries.single(part.key(n), block.position + r);
        scores[r * kTileRow + n] +=
            call.scale * dot(k + n * row, row_shown(kQueries, block.h, column), problem.width);
      }
  }

  void add_met_band(const Block& block, const Tile& part, const float* k, int64_t row,
                    float* scores) {
    const Columns& table = columns(kQueries, block.h);
    const int64_t count = part.to - part.from, low = rounded_down(met_low(block, part), NR);
    pack_left(k + part.from * row, row, count, call.width, work.left_panels);
    times_panels(count, call.width, work.left_panels, table.panels + low * call.width,
                 met_high(block, part) - low, work.met, kStripRow);
    add_sheared_by_key(call.scale, work.met, low, problem.queries, part.key(part.from), count,
                       block.position, block.count, scores + part.from, kTileRow);
  }

  // The columns that whole vectors of queries read for these keys.
  int64_t met_low(const Block& block, const Tile& part) const {
    return problem.queries.column(part.key(part.from),
                                  block.position + rounded_up(block.count, W) - 1);
  }
  int64_t met_high(const Block& block, const Tile& part) const {
    return problem.queries.column(part.key(part.to - 1), block.position + W - 1) + W;
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
