// Tables as a kernel reads them: without ends, one column for each offset that some pair can meet.
//
// A window covers the offsets low..high; at or below `low`, and at or above `high`, everything is
// constant. W more columns at either end repeat the end ones, so that a vector of W neighbouring
// keys reads W neighbouring columns from a clamped one, and is right wherever it falls.
#pragma once

namespace relpos {
namespace {

struct Window {
  bool present = false;
  int64_t low = 0, high = 0;
  int64_t base = 0;   // the offset of column 0
  int64_t count = 0;  // columns

  // The column at which a vector starts whose first key is `key`.
  int64_t column(int64_t key, int64_t position) const {
    return clamped(key - position - base, 0, count - W);
  }
  // The column of one pair.
  int64_t single(int64_t key, int64_t position) const {
    return clamped(key - position - base, W, count - W - 1);
  }
  int64_t left() const { return W; }
  int64_t right() const { return count - W - 1; }
  int64_t panels() const { return (count + NR - 1) / NR; }
};

// The window of some of the call's tables, cut to the offsets that pairs meet.
inline Window window_of(const Call& call, Kind one, Kind other) {
  const int64_t least = -(call.start + call.queries - 1);
  int64_t most = call.keys - 1 - call.start;
  if (call.causal) most = smaller(most, 0);
  most = larger(most, least);
  Window window;
  const Kind kinds[] = {one, other};
  for (const Kind kind : kinds) {
    const Table& table = call.tables[kind];
    if (!table.present()) continue;
    const int64_t low = table.first - table.zero;
    const int64_t high = table.first + table.count - 1 + table.zero;
    window.low = window.present ? smaller(window.low, low) : low;
    window.high = window.present ? larger(window.high, high) : high;
    window.present = true;
  }
  window.low = clamped(window.low, least, most);
  window.high = clamped(window.high, least, most);
  window.base = window.low - W;
  window.count = window.high - window.low + 1 + 2 * W;
  return window;
}

// The row of a table that a column shows, or -1 for none.
inline int64_t source_row(const Table& table, const Window& window, int64_t column) {
  const int64_t offset = clamped(window.base + column, window.low, window.high);
  const int64_t row = offset - table.first;
  if (table.zero && (row < 0 || row >= table.count)) return -1;
  return clamped(row, 0, table.count - 1);
}

// A column of a table as `padded` floats.
inline void table_column(const Table& table, Dtype dtype, const Window& window, int64_t head,
                         int64_t column, int64_t padded, float* to) {
  fill(to, padded, 0);
  const int64_t row = column < window.count ? source_row(table, window, column) : -1;
  if (row < 0) return;
  const int64_t of_head = table.heads == 1 ? 0 : head;
  widen(table.rows, dtype, (of_head * table.count + row) * table.width, table.width, 1, to);
}

// One head's table over a window; what is not needed is null.
struct Columns {
  float* rows = nullptr;    // (panels * NR, padded): as rows
  float* panels = nullptr;  // transposed, in panels of NR
  float* line = nullptr;    // (panels * NR): scalars
  int64_t head = -1;        // whose it is
};

// Fill one panel of it.
inline void fill_panel(const Table& table, Dtype dtype, const Window& window, int64_t panel,
                       int64_t padded, const Columns& columns, float* scratch) {
  for (int64_t n = panel * NR; n < (panel + 1) * NR; ++n) {
    float* to = columns.rows ? columns.rows + n * padded : scratch;
    table_column(table, dtype, window, columns.head, n, padded, to);
    if (columns.line) columns.line[n] = to[0];
    if (!columns.panels) continue;
    float* column = columns.panels + panel * table.width * NR + n % NR;
    for (int64_t k = 0; k < table.width; ++k) column[k * NR] = to[k];
  }
}

}  // namespace
}  // namespace relpos
