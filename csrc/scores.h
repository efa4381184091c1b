// The scores of a block of rows against a tile of keys, all terms and masks in them, and which
// weights dropout drops; shared by forward and backward.
//
//     x_ij = scale * (q_i . k_j + q_rel_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + grid_ij
//     s_ij = cap(x_ij) + mask_ij      cap(x) = c tanh(x / c) with a softcap of c, else x
//
//     scores           (rows, kTileStride): rows of the block, of which those of the tile are
//                      there (work.s), and its keys
//     offset_scores    (rows, kBufferStride): q_rel . K + B by column of the score window
//     seen_keys        what each panel of MR rows needs of the tile: of the rest (causal, a window)
//                      scores are not computed, but on a matrix unit, and whatever is there is hidden
//     row_shift        (rows): a constant of a row's scores in this tile that is not in them yet
//
// With a matrix unit scores are divided by a factor, tile_factor, that it would round away, as long
// as no other term is added.
//
// W = kLanes floats in a vector; NR = kNR columns in a panel.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "integers.h"
#include "mask.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "queries_term.h"
#include "simd.h"
#include "tile.h"
#include "tile_products.h"

namespace relpos {
namespace {

// A row's constant left or right of a window is kept apart from its scores up to this size. Beside
// a larger one (a mask made of biases), row_max - row_shift would have no digits for the scores.
constexpr float kMaxRowShift = 65536;

#if RELPOS_TILES

// Where numbers by offset lie that a square of 16 queries and 16 keys reads: the columns of a
// window, from a clamped one on.
struct BandSquares {
  const OffsetWindow& window;
  int64_t key, position;  // of the first key and the first row

  // The column of the square's first key and last query; those of the others lie 1 to 30 after it.
  int64_t column(int64_t row, int64_t key_column) const {
    return clamp(key + kTileSide * key_column - position - kTileSide * row - (kTileSide - 1) -
                     window.base,
                 0, window.num_columns - (2 * kTileSide - 1));
  }
  // What the squares of so many rows, and so many keys, read.
  int64_t first_column(int64_t num_rows) const { return column(num_rows / kTileSide - 1, 0); }
  int64_t end_column(int64_t num_keys) const {
    return column(0, num_keys / kTileSide - 1) + 2 * kTileSide - 1;
  }
};

// Squares of numbers by offset, sheared: a row of them, `stride` after the row before, begins one
// column earlier.
struct SquaresByOffset {
  BandSquares squares;
  const float* first_row;  // indexed by the window's columns
  int64_t stride;          // 0 where all rows are the same

  const float* square(int64_t row, int64_t key_column, int64_t* row_stride) const {
    *row_stride = stride - 1;
    return first_row + kTileSide * row * stride + squares.column(row, key_column) + kTileSide - 1;
  }
};

// Squares of which all rows are those numbers.
struct SameRows {
  const float* numbers;

  const float* square(int64_t, int64_t column, int64_t* row_stride) const {
    *row_stride = 0;
    return numbers + kTileSide * column;
  }
};

#endif

struct Scores : QueriesTerm {
  using QueriesTerm::QueriesTerm;

  // What the tables of keys and bias add to a row's scores left and right of their window.
  float score_left[kBlockRows], score_right[kBlockRows];
#if !RELPOS_TILES
  // The keys of the tile that some row of each panel sees, counted from the tile's first; and up to
  // which column the panel's scores by offset are there.
  PanelRuns seen_keys;
  int64_t offset_scores_end[PanelRuns::kMaxPanels];
#endif

  // ---- a block --------------------------------------------------------------------------------

  void begin_block(RowBlock& block, int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    read_block(block, b, h, first_row, num_rows);
    if (params.grid.num_axes) begin_grid(block);
    bound_keys(block);
    pack_head(block);
    if (plan.grid.sum_size_q) begin_query_axes(block);
    if (plan.score_window.present) {
      score_column(block, plan.score_window.low_column(), score_left);
      score_column(block, plan.score_window.high_column(), score_right);
      work.offset_scores.reset();
    }
  }

  // What the tables of keys and bias add to each row's scores at one column: to (rows).
  void score_column(const RowBlock& block, int64_t column, float* to) {
    const OffsetTable &keys = params.tables[kKeys], &bias = params.tables[kBias];
    float constant = 0;
    if (bias.present()) {
      read_table_row(bias, params.dtype, plan.score_window, block.h, column, 1, work.row_scratch);
      constant = work.row_scratch[0];
    }
    fill(to, block.num_rows, constant);
    if (!keys.present()) return;
    read_table_row(keys, params.dtype, plan.score_window, block.h, column, plan.padded_rel_dim,
                   work.row_scratch);
    add_dots(block.num_rows, plan.padded_rel_dim, work.q_rel, work.row_scratch, to);
  }

  // ---- a tile ---------------------------------------------------------------------------------

  // A strip's memory (its rows, kTileStride) as rows of the block.
  static float* rows_of(float* strip, const KeyTile& tile) {
    return strip - tile.first_row * kTileStride;
  }

  // Scores in work.s; those of row r lack row_shift[r], and the factor that is returned.
  float tile_scores(const RowBlock& block, const KeyTile& tile, float* row_shift) {
    float* scores = rows_of(work.s, tile);
    const Region region =
        plan.score_window.present ? region_of(plan.score_window, block, tile) : kBand;
    multiply_keys_and_band(block, tile, plan.score_window.present && region == kBand, scores);
    float tile_factor = plan.score_factor;
    if (tile_factor != 1 && has_other_terms()) {
      multiply_scores(tile, tile_factor, scores);
      tile_factor = 1;
    }
    fill(row_shift + tile.first_row, tile.num_rows(), 0);
    if (region != kBand)
      shift_rows(tile, region == kLeft ? score_left : score_right, tile_factor, scores, row_shift);
    if (plan.query_window.present) add_queries_term(block, tile, scores);
    if (params.grid.num_axes) add_grid_scores(block, tile, scores);
    if (plan.grid.sum_size_q) add_query_axes(block, tile, scores);
    if (params.softcap) cap(tile, scores);
    if (params.mask.data) add_mask(block, tile, scores);
    hide_unseen(block, tile, scores);
    return tile_factor;
  }

  // x * tile_factor, which is 1 on vectors.
  static vfloat times(vfloat x, float tile_factor) {
    return kTiles ? rounded_product(x, tile_factor) : x;
  }

  // Whether anything is added to scores that a matrix unit does not add.
  bool has_other_terms() const {
    return plan.query_window.present || params.grid.num_axes || params.softcap || params.mask.data;
  }

  static void multiply_scores(const KeyTile& tile, float factor, float* scores) {
    for (int64_t r = tile.first_row; r < tile.end_row; ++r)
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); ++n)
        scores[r * kTileStride + n] *= factor;
  }

#if RELPOS_TILES
  // scale * (q_i . k_j + q_rel_i . K[j-i]) + B[j-i], the latter two on a band: what they add is
  // what the sums of the product with the keys begin with.
  void multiply_keys_and_band(const RowBlock& block, const KeyTile& tile, bool on_band,
                              float* scores) {
    if (!on_band) return multiply_keys(tile, FromZero{}, scores);
    const int64_t row = tile.first_row, from = tile.vector_from();
    const BandSquares squares = {plan.score_window, tile.key(from), tile.first_position(block)};
    if (!params.tables[kKeys].present()) {
      const float* bias = window_table(kBias, block.h).bias;
      return multiply_keys(tile, SquaresByOffset{squares, bias, 0}, scores);
    }
    const int64_t num_rows = round_up(tile.num_rows(), kTileSide);
    work.offset_scores.reset();
    work.offset_scores.first_row = row;
    ensure_offset_scores(block, tile, squares.first_column(num_rows),
                         squares.end_column(tile.vector_to() - from));
    multiply_keys(tile, SquaresByOffset{squares, work.offset_scores.row(row), kBufferStride},
                  scores);
  }

  template <class Start>
  void multiply_keys(const KeyTile& tile, const Start& start, float* scores) {
    const int64_t first = tile.vector_from();
    gemm_packed(tile.num_rows(), tile.vector_to() - first, params.head_dim,
                work.q_panels + tile.first_row * packed_depth(params.head_dim),
                work.key_panels + tile.key(first) * packed_depth(params.head_dim),
                scores + tile.first_row * kTileStride + first, kTileStride, start,
                keeps_rest_products());
  }
  // Whether products of the rests of split numbers are part of scores. Half precision has exact
  // products in float32: without them its log-sum-exp would show it.
  bool keeps_rest_products() const { return params.dtype == Dtype::f16; }
#else
  void multiply_keys_and_band(const RowBlock& block, const KeyTile& tile, bool on_band,
                              float* scores) {
    find_seen_keys(block, tile);
    multiply_keys(block, tile, scores);
    if (on_band) add_band(block, tile, scores);
  }

  // Fill seen_keys.
  void find_seen_keys(const RowBlock& block, const KeyTile& tile) {
    for (int64_t r = 0; r < block.num_rows; r += kMR) {
      int64_t &from = seen_keys.from[r / kMR], &to = seen_keys.to[r / kMR];
      from = tile.to, to = tile.from;
      for (int64_t n = r; n < min(r + kMR, block.num_rows); ++n) {
        const int64_t row_from = tile.row_from(block, n), row_to = tile.row_to(block, n);
        if (row_from < row_to) from = min(from, row_from), to = max(to, row_to);
      }
      if (from >= to) from = to = 0;
    }
  }
#endif

  // Left or right of the window each row's constant (rows) becomes its row_shift, so that no score
  // is touched, unless it is too large or not finite, or scores will be capped.
  void shift_rows(const KeyTile& tile, const float* constants, float tile_factor, float* scores,
                  float* row_shift) {
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      const float constant = constants[r];
      if (!params.softcap && constant > -kMaxRowShift && constant < kMaxRowShift) {
        row_shift[r] = constant;
        continue;
      }
      float* x = scores + r * kTileStride;
      for (int64_t n = tile.from; n < tile.to; ++n) x[n] += divided(constant, tile_factor);
    }
  }

#if !RELPOS_TILES
  // scale * q_i . k_j
  void multiply_keys(const RowBlock& block, const KeyTile& tile, float* scores) {
    if (plan.few_queries) {
      int64_t stride;
      const float* keys = tile_keys(block, tile, &stride);
      for (int64_t r = 0; r < block.num_rows; ++r)
        for (int64_t n = tile.from; n < tile.to; ++n)
          scores[r * kTileStride + n] =
              dot(work.q + r * plan.padded_head_dim, keys + n * stride, plan.padded_head_dim);
      return;
    }
    gemm_packed(block.num_rows, tile.to, params.head_dim, work.q_panels,
                work.key_panels + tile.begin * params.head_dim, scores, kTileStride, &seen_keys);
  }

  // scale * q_rel_i . K[j-i] + B[j-i] on the window.
  void add_band(const RowBlock& block, const KeyTile& tile, float* scores) {
    const OffsetWindow& window = plan.score_window;
    const bool has_keys = params.tables[kKeys].present();
    if (has_keys && plan.few_queries && !plan.few_query_scores) {
      add_band_by_pair(block, tile, scores);
      return;
    }
    if (has_keys && !plan.few_queries) ensure_offset_scores(block, tile);
    const float* bias = has_keys ? nullptr : window_table(kBias, block.h).bias;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t from = round_down(seen_keys.from[r / kMR], kLanes);
      add_sheared(has_keys ? offset_scores(block, r) : bias, window, tile.key(from),
                  block.position + r, seen_keys.to[r / kMR] - from,
                  scores + r * kTileStride + from);
    }
  }

#endif

  // Row r's q_rel . K + B, by column.
  const float* offset_scores(const RowBlock& block, int64_t r) const {
    return plan.few_query_scores
               ? plan.few_query_scores + params.row_index(block.b, block.h, block.first_row + r) *
                                             plan.few_query_stride
               : work.offset_scores.row(r);
  }

  // For few queries without plan.few_query_scores: the table is read where it lies, a row for each
  // pair.
  void add_band_by_pair(const RowBlock& block, const KeyTile& tile, float* scores) {
    const OffsetWindow& window = plan.score_window;
    const float* bias =
        params.tables[kBias].present() ? window_table(kBias, block.h).bias : nullptr;
    for (int64_t r = 0; r < block.num_rows; ++r)
      for (int64_t n = tile.from; n < tile.to; ++n) {
        const int64_t column = window.pair_column(tile.key(n), block.position + r);
        scores[r * kTileStride + n] +=
            dot(work.q_rel + r * plan.padded_rel_dim,
                selected_row(kKeys, block.h, column, work.row_scratch), plan.padded_rel_dim) +
            (bias ? bias[column] : 0);
      }
  }

#if RELPOS_TILES
  // Compute what the offset buffer still lacks of the columns from..to-1 of q_rel . K + B.
  void ensure_offset_scores(const RowBlock& block, const KeyTile& tile, int64_t from, int64_t to) {
    OffsetBuffer& buffer = work.offset_scores;
    from = round_down(from, kOffsetUnit), to = round_up(to, kOffsetUnit);
    const int64_t missing = buffer.first_missing(from, to, tile.num_rows());
    if (missing >= to) return;
    const WindowTable& keys = window_table(kKeys, block.h);
    const bool has_bias = params.tables[kBias].present();
    const float* bias = has_bias ? window_table(kBias, block.h).bias : nullptr;
    const int64_t depth = params.tables[kKeys].row_dim;
    const packed* q_rel = work.q_rel_panels + tile.first_row * packed_depth(depth);
    const packed* panels = keys.panels + missing * packed_depth(depth);
    float* out = buffer.row(tile.first_row) + missing;
    if (bias)
      gemm_packed(tile.num_rows(), to - missing, depth, q_rel, panels, out, kBufferStride,
                  SameRows{bias + missing}, keeps_rest_products());
    else
      gemm_packed(tile.num_rows(), to - missing, depth, q_rel, panels, out, kBufferStride,
                  FromZero{}, keeps_rest_products());
    buffer.end = to;
  }
#else
  // Compute what the offset buffer still lacks of q_rel . K + B: of each panel of rows the columns
  // that it reads for this tile, each further row one column earlier.
  void ensure_offset_scores(const RowBlock& block, const KeyTile& tile) {
    const OffsetWindow& window = plan.score_window;
    OffsetBuffer& buffer = work.offset_scores;
    const int64_t first = round_down(tile.first_column(window, block), kNR);
    const int64_t end = round_up(tile.end_column(window, block), kNR);
    if (!buffer.started || buffer.end < first)
      for (int64_t& there : offset_scores_end) there = first;
    buffer.first_missing(first, end, block.num_rows);
    PanelRuns wanted;
    for (int64_t r = 0; r < block.num_rows; r += kMR) {
      int64_t &from = wanted.from[r / kMR], &to = wanted.to[r / kMR];
      int64_t& there = offset_scores_end[r / kMR];
      const int64_t keys_from = round_down(seen_keys.from[r / kMR], kLanes);
      const int64_t keys_to = round_up(seen_keys.to[r / kMR], kLanes);
      from = to = 0;
      if (keys_to == 0) continue;
      const int64_t position = block.position + r;
      const int64_t last_position = block.position + min(r + kMR, block.num_rows) - 1;
      from = round_down(window.vector_column(tile.key(keys_from), last_position), kNR);
      to = window.vector_column(tile.key(keys_to - kLanes), position) + kLanes;
      from = max(from, there) - first, to = round_up(to, kNR) - first;
      there = max(there, to + first);
    }
    const int64_t depth = params.tables[kKeys].row_dim;
    float* const out = buffer.row(0) + first;
    gemm_packed(block.num_rows, end - first, depth, work.q_rel_panels,
                window_table(kKeys, block.h).panels + first * depth, out, kBufferStride, &wanted);
    if (params.tables[kBias].present()) {
      const float* bias = window_table(kBias, block.h).bias + first;
      for (int64_t r = 0; r < block.num_rows; ++r) {
        const int64_t from = wanted.from[r / kMR], to = wanted.to[r / kMR];
        if (from < to) add_to(to - from, bias + from, out + r * kBufferStride + from);
      }
    }
    buffer.end = max(buffer.end, end);
  }
#endif

  // Scores x become c * tanh(x / c); backward keeps the derivative of that.
  void cap(const KeyTile& tile, float* scores) {
    const vfloat softcap = broadcast(params.softcap);
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      float* x = scores + r * kTileStride;
      float* slope =
          plan.backward ? rows_of(work.cap_slope, tile) + r * kTileStride : nullptr;
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        vfloat derivative;
        store(x + n, softcap * hyperbolic_tangent(load(x + n) / softcap, derivative));
        if (slope) store(slope + n, derivative);
      }
    }
  }

  // ---- masks ----------------------------------------------------------------------------------

  void add_mask(const RowBlock& block, const KeyTile& tile, float* scores) {
    for (int64_t r = tile.first_row; r < tile.end_row; ++r)
      add_mask_row(params.mask, block.b, block.h, block.first_row + r, tile.key(tile.from),
                   tile.to - tile.from, scores + r * kTileStride + tile.from, work.key_scratch);
  }

  // -inf for keys that a row does not see, within the whole vectors of those that it does; with a
  // matrix unit within those of the tile.
  void hide_unseen(const RowBlock& block, const KeyTile& tile, float* scores) {
    const Documents& documents = params.documents;
    if (tile.whole && tile.from % kKeyUnit == 0 && tile.to % kKeyUnit == 0 &&
        !(documents.ids && documents.interleaved) && !params.grid.is_local)
      return;
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      float* x = scores + r * kTileStride;
      const int64_t from = tile.row_from(block, r), to = tile.row_to(block, r);
      if (from >= to) {
        if (kTiles) fill(x + tile.vector_from(), tile.vector_to() - tile.vector_from(), -kInfinity);
        continue;
      }
      if (documents.ids && documents.interleaved) {
        const int32_t* ids = documents.ids + block.b * documents.batch_stride;
        const int32_t own =
            documents.query_ids[block.b * documents.query_batch_stride + block.first_row + r];
        for (int64_t n = from; n < to; ++n) x[n] = ids[tile.key(n)] == own ? x[n] : -kInfinity;
      }
      if (params.grid.is_local && r >= first_grid_row) hide_unseen_coords(r, x);
      const int64_t first = kTiles ? tile.vector_from() : round_down(from, kLanes);
      const int64_t end = kTiles ? tile.vector_to() : round_up(to, kLanes);
      for (int64_t n = first; n < from; ++n) x[n] = -kInfinity;
      for (int64_t n = to; n < end; ++n) x[n] = -kInfinity;
    }
  }

  // ---- dropout --------------------------------------------------------------------------------

  // Row r: x (tile) becomes 0 for the keys from..to-1 that dropout drops. A hash of the seed, the
  // row and the key alone decides, so that neither tiles nor threads matter, and backward drops the
  // same: SplitMix64 of seed and row gives two numbers, which with the key go through a 32-bit hash
  // of Wellons' hash-prospector.
  void drop(const RowBlock& block, const KeyTile& tile, int64_t r, int64_t from, int64_t to,
            float* x) {
    uint64_t z = params.seed + 0x9e3779b97f4a7c15u *
                                   (uint64_t)(1 + params.dropout_row_index(
                                                      block.b, block.h, block.first_row + r));
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const int64_t first_key = params.dropout_origin.first_key + tile.begin;
    const vuint start = vuint{} + (uint32_t)z, row_hash = vuint{} + (uint32_t)(z >> 32);
    for (int64_t n = from; n < to; n += kLanes) {
      vuint u = start + (lane_numbers() + (uint32_t)(first_key + n)) * 0x9e3779b9u;
      u = (u ^ u >> 16) * 0x21f0aaadu;
      u ^= row_hash;
      u = (u ^ u >> 15) * 0x735a2d97u;
      u ^= u >> 15;
      store(x + n, select((vint)(u < plan.drop_threshold), vfloat{}, load(x + n)));
    }
  }
};

}  // namespace
}  // namespace relpos
