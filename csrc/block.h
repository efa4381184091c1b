// A block of rows against a tile of keys: the scores, shared by forward and backward.
#pragma once

namespace relpos {
namespace {

constexpr int64_t kRowsOfBlock = 64;
constexpr int64_t kTile = 256;         // keys
constexpr int64_t kTileRow = kTile + 16;
// Up to so many queries, scores are single products of rows as they lie: to pack all keys would
// cost more than to multiply them.
constexpr int64_t kFew = 4;
// Constants beyond a window are kept apart from the scores up to this size.
constexpr float kLargestShift = 65536;
constexpr int64_t kKeysAtOnce = 32;    // of the term that meets the keys
static_assert(kKeysAtOnce % W == 0 && kRowsOfBlock % W == 0 && kTile + W <= kTileRow,
              "whole vectors of keys and of queries");

// Memory handed out piece by piece; without any it only counts.
struct Arena {
  char* memory = nullptr;
  int64_t used = 0;

  float* take(int64_t count) {
    float* piece = memory ? (float*)(memory + used) : nullptr;
    used += rounded_up(count * (int64_t)sizeof(float), 64);
    return piece;
  }
};

// What does not change during a call.
struct Problem {
  const Call& call;
  bool backward;
  int64_t width, value_width, rel_width;  // rounded up to whole vectors
  Window scores;   // of keys and bias together
  Window queries;
  Window values;
  GridPlan grid;
  Columns tables[kKinds];  // those that all heads share
  AxisTables axes;         // likewise
  float kept;              // share of the weights that dropout keeps
  uint32_t drop_below;
  bool few;

  Problem(const Call& c, bool is_backward) : call(c), backward(is_backward) {
    width = rounded_up(c.width, W);
    value_width = rounded_up(c.value_width, W);
    // The parts of a grid's axes lie side by side, and one is read by whole vectors.
    rel_width = c.own_p() ? rounded_up(c.rel_width + (c.grid.count ? W : 0), W) : width;
    grid = GridPlan(c, value_width);
    scores = window_of(c, kKeys, kBias);
    queries = window_of(c, kQueries, kQueries);
    values = window_of(c, kValues, kValues);
    drop_below = (uint32_t)(c.dropout * 4294967296.0);
    kept = (float)(1 - (double)drop_below / 4294967296.0);
    // In both passes: backward's weights are right only if its scores are forward's to the bit.
    few = c.queries <= kFew;
  }

  const Window& window(int kind) const {
    return kind == kQueries ? queries : kind == kValues ? values : scores;
  }
  int64_t padded(int kind) const {
    return kind == kBias ? 1 : kind == kValues ? value_width : kind == kKeys ? rel_width : width;
  }
  int64_t rel_depth() const { return call.own_p() ? call.rel_width : call.width; }

  // Which forms of a table this pass reads.
  bool needs_rows(int kind) const {
    if (kind == kBias) return false;
    return kind == kValues ? !backward : backward;
  }
  bool needs_panels(int kind) const {
    if (kind == kBias) return false;
    return kind == kValues ? backward : !few;
  }
  AxisTables axis_tables(Arena& arena) const {
    return {arena.take(grid.padded), arena.take(grid.crossing)};
  }
  Columns columns(int kind, Arena& arena) const {
    Columns some;
    if (!call.tables[kind].present()) return some;
    const int64_t count = window(kind).panels() * NR;
    if (needs_rows(kind)) some.rows = arena.take(count * padded(kind));
    if (needs_panels(kind)) some.panels = arena.take(count * call.tables[kind].width);
    if (kind == kBias) some.line = arena.take(count);
    return some;
  }
};

// One thread's memory.
struct Workspace {
  float *q, *q_panels, *p, *p_panels, *scores, *output, *key_tile, *value_tile, *line, *scratch;
  float *key_panels, *met, *left_panels;
  // Of a grid: one head's tables, a group of rows, and numbers of each row by place.
  AxisTables axes;
  float *group, *by_key, *weights_by_place;
  Strip by_offset, weights;
  int64_t packed_batch = -1, packed_group = -1;
  Columns tables[kKinds];
  // Backward:
  float *d_output, *d_output_panels, *d_scores, *d_q, *d_p, *value_panels, *d_met;
  float *d_by_key, *value_by_place;
  Strip value_by_offset, d_scores_by_offset;

  Workspace(const Problem& problem, Arena& arena) {
    const Call& call = problem.call;
    const bool own_p = call.own_p();
    const int64_t widest = larger(larger(problem.width, problem.value_width), problem.rel_width);
    q = arena.take(kRowsOfBlock * problem.width);
    q_panels = arena.take((kRowsOfBlock + MR) * problem.width);
    p = own_p ? arena.take(kRowsOfBlock * problem.rel_width) : q;
    p_panels = own_p ? arena.take((kRowsOfBlock + MR) * problem.rel_width) : q_panels;
    scores = arena.take(kRowsOfBlock * kTileRow);
    output = problem.backward ? nullptr : arena.take(kRowsOfBlock * problem.value_width);
    key_tile = arena.take(kTile * problem.width);
    value_tile = arena.take(kTile * problem.value_width);
    line = arena.take(kTile + 2 * NR);
    scratch = arena.take(widest + NR);
    const int64_t panels = (call.keys + NR - 1) / NR;
    key_panels = problem.few ? nullptr : arena.take(panels * NR * call.width);
    by_offset.data = problem.scores.present ? arena.take(kRowsOfBlock * kStripRow) : nullptr;
    weights.data = problem.values.present ? arena.take(kRowsOfBlock * kStripRow) : nullptr;
    const bool meets_keys = problem.queries.present;
    met = meets_keys ? arena.take(kKeysAtOnce * kStripRow) : nullptr;
    left_panels = meets_keys ? arena.take((kKeysAtOnce + MR) * problem.width) : nullptr;
    for (int kind = 0; kind < kKinds; ++kind)
      if (call.tables[kind].heads > 1) tables[kind] = problem.columns(kind, arena);
    const GridPlan& grid = problem.grid;
    const int64_t by_place = kRowsOfBlock * call.grid.width;
    if (call.grid.table_heads > 1) axes = problem.axis_tables(arena);
    group = arena.take(MR * grid.group);
    by_key = arena.take(grid.by_key ? by_place : 0);
    weights_by_place = arena.take(grid.values ? by_place : 0);
    if (!problem.backward) return;
    d_output = arena.take(kRowsOfBlock * problem.value_width);
    d_output_panels = arena.take((kRowsOfBlock + MR) * problem.value_width);
    d_scores = arena.take(kRowsOfBlock * kTileRow);
    d_q = arena.take(kRowsOfBlock * problem.width);
    d_p = own_p ? arena.take(kRowsOfBlock * problem.rel_width) : d_q;
    value_panels = arena.take(panels * NR * call.value_width);
    d_met = meets_keys ? arena.take(kKeysAtOnce * kStripRow) : nullptr;
    const int64_t strip = kRowsOfBlock * kStripRow;
    value_by_offset.data = problem.values.present ? arena.take(strip) : nullptr;
    d_scores_by_offset.data = problem.scores.present ? arena.take(strip) : nullptr;
    d_by_key = arena.take(grid.by_key ? by_place : 0);
    value_by_place = arena.take(grid.values ? by_place : 0);
  }
};

// Some queries of one head.
struct Block {
  int64_t b, h, g;
  int64_t first, count;          // queries
  int64_t position;              // of the first one
  int64_t begin[kRowsOfBlock], end[kRowsOfBlock];  // the keys that a row may meet
  int64_t keys_begin, keys_end;  // that some row may meet
  float score_left[kRowsOfBlock], score_right[kRowsOfBlock];  // keys and bias beyond their window

  int64_t last_position() const { return position + count - 1; }
};

// Keys begin..begin+count-1, of which from..to-1 (counted from `begin`) are met by some row.
struct Tile {
  int64_t begin, count, from, to;

  int64_t key(int64_t n) const { return begin + n; }
  // The part that row r meets, `from >= to` if none.
  int64_t row_from(const Block& block, int64_t r) const {
    return clamped(block.begin[r] - begin, 0, count);
  }
  int64_t row_to(const Block& block, int64_t r) const {
    return clamped(block.end[r] - begin, 0, count);
  }
  // from..to in whole vectors.
  int64_t low() const { return rounded_down(from, W); }
  int64_t high() const { return rounded_up(to, W); }
  // The columns of a window that its vectors read.
  int64_t first_column(const Window& window, const Block& block) const {
    return window.column(key(low()), block.last_position());
  }
  int64_t end_column(const Window& window, const Block& block) const {
    return window.column(key(high() - W), block.position) + W;
  }
};

enum Region { kLeft, kBand, kRight };

inline Region region_of(const Window& window, const Block& block, const Tile& tile) {
  if (tile.key(tile.to - 1) - block.position <= window.low) return kLeft;
  if (tile.key(tile.from) - block.last_position() >= window.high) return kRight;
  return kBand;
}

}  // namespace
}  // namespace relpos
