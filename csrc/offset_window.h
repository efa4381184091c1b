// The offsets that a table covers, as columns without ends.
//
// A window covers the offsets low..high (key position - query position): at or below `low`, and at
// or above `high`, a table is constant. Column n belongs to the offset base + n, and M = kMargin
// more columns at either end repeat the end ones: a vector of W = kLanes neighbouring keys (a square
// of 16 keys and queries on a matrix unit) reads neighbouring columns from a clamped one, and is
// right wherever it falls.
//
//     column:   0 ... M-1 | M  ...  num_columns-M-1 | ... num_columns-1
//     offset:    all low  | low       ...      high | all high
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "integers.h"
#include "params.h"
#include "simd.h"
#include "tile_products.h"

namespace relpos {
namespace {

struct OffsetWindow {
  bool present = false;
  int64_t low = 0, high = 0;
  int64_t base = 0;  // the offset of column 0
  int64_t num_columns = 0;

  // The column at which the vector of W keys from `key` on starts, for the query at `position`.
  int64_t vector_column(int64_t key, int64_t position) const {
    return clamp(key - position - base, 0, num_columns - kLanes);
  }
  // The column of one pair.
  int64_t pair_column(int64_t key, int64_t position) const {
    return clamp(key - position - base, kMargin, num_columns - kMargin - 1);
  }
  // The columns of `low` and `high`, which stand for the far regions too.
  int64_t low_column() const { return kMargin; }
  int64_t high_column() const { return num_columns - kMargin - 1; }
  int64_t num_panels() const { return ceil_div(num_columns, kNR); }
};

// The window of one kind of table, or of two kinds that share it (else the same kind twice), cut to
// the offsets that pairs of the call have.
inline OffsetWindow make_window(const Params& params, TableKind kind, TableKind shared_with) {
  int64_t first_offset = -(params.query_start + params.seqlen_q - 1);
  int64_t last_offset = params.seqlen_k - 1 - params.query_start;
  if (params.causal) last_offset = min(last_offset, 0);
  if (params.window.left >= 0) first_offset = max(first_offset, -params.window.left);
  if (params.window.right >= 0) last_offset = min(last_offset, params.window.right);
  last_offset = max(last_offset, first_offset);
  OffsetWindow window;
  const TableKind kinds[] = {kind, shared_with};
  for (const TableKind each : kinds) {
    const OffsetTable& table = params.tables[each];
    if (!table.present()) continue;
    // Where it is zero beyond its ends, a row of zeros at either end is in the window too.
    const int64_t low = table.first_offset - table.zero_beyond;
    const int64_t high = table.first_offset + table.num_rows - 1 + table.zero_beyond;
    window.low = window.present ? min(window.low, low) : low;
    window.high = window.present ? max(window.high, high) : high;
    window.present = true;
  }
  window.low = clamp(window.low, first_offset, last_offset);
  window.high = clamp(window.high, first_offset, last_offset);
  window.base = window.low - kMargin;
  window.num_columns = window.high - window.low + 1 + 2 * kMargin;
  if (kTiles) window.num_columns = round_up(window.num_columns, kNR);
  return window;
}

// The row of a table that a column of its window selects; -1 for zeros.
inline int64_t table_row(const OffsetTable& table, const OffsetWindow& window, int64_t column) {
  const int64_t offset = clamp(window.base + column, window.low, window.high);
  const int64_t row = offset - table.first_offset;
  if (table.zero_beyond && (row < 0 || row >= table.num_rows)) return -1;
  return clamp(row, 0, table.num_rows - 1);
}

// The row that a column selects, as floats, zeros after them: to (padded_dim). Also for the columns
// after the last, which fill its panel: zeros.
inline void read_table_row(const OffsetTable& table, Dtype dtype, const OffsetWindow& window,
                           int64_t head, int64_t column, int64_t padded_dim, float* to) {
  fill(to, padded_dim, 0);
  const int64_t row = column < window.num_columns ? table_row(table, window, column) : -1;
  if (row < 0) return;
  convert_to_float(table.rows, dtype,
                   (table.head_index(head) * table.num_rows + row) * table.row_dim, table.row_dim,
                   1, to);
}

// x / unit for a unit of at most 1; what is finite stays so.
inline float divided(float x, float unit) {
  const float y = x / unit, largest = __builtin_huge_valf() == __builtin_fabsf(x)
                                          ? __builtin_huge_valf()
                                          : __FLT_MAX__;
  return y > largest ? largest : y < -largest ? -largest : y;
}

// One head's table, a row for each column of its window, in the forms that this pass reads (the
// others are null). `columns` is num_panels * NR.
struct WindowTable {
  packed* rows = nullptr;    // (columns, padded_dim), Plan::padded_row_dim; or pairs
  packed* panels = nullptr;  // transposed and packed: (num_panels, row_dim, NR); or panels
  float* bias = nullptr;     // (columns), of a table of biases, in units of the products
  int64_t head = -1;        // whose it is; -1 while nothing is in it

  // Fill the NR columns of one panel, in all forms; a bias is divided by `unit`. scratch
  // (padded_dim) is for a row.
  void fill_panel(const OffsetTable& table, Dtype dtype, const OffsetWindow& window, int64_t panel,
                  int64_t padded_dim, float unit, float* scratch) const {
    for (int64_t n = panel * kNR; n < (panel + 1) * kNR; ++n) {
      read_table_row(table, dtype, window, head, n, padded_dim, scratch);
      if (bias) bias[n] = divided(scratch[0], unit);
      if (rows) put_row(scratch, n, padded_dim, rows);
      if (panels) put_column(scratch, n, table.row_dim, panels);
    }
  }
};

}  // namespace
}  // namespace relpos
