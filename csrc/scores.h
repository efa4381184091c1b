// The scores of a block of rows against a tile of keys, all terms and masks in them, and which
// weights dropout drops; shared by forward and backward.
//
//     x_ij = scale * (q_i . k_j + q_rel_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + grid_ij
//     s_ij = cap(x_ij) + mask_ij      cap(x) = c tanh(x / c) with a softcap of c, else x
//
//     scores, work.s   (rows, kTileStride): rows of the block, keys of the tile
//     offset_scores    (rows, kBufferStride): q_rel . K + B by column of the score window
//     row_shift        (rows): a constant of a row's scores in this tile that is not in them yet
//
// W = kLanes floats in a vector; NR = kNR columns in a panel.
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "gemm.h"
#include "integers.h"
#include "offset_buffer.h"
#include "offset_window.h"
#include "params.h"
#include "queries_term.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// A row's constant left or right of a window is kept apart from its scores up to this size. Beside
// a larger one (a mask made of biases), row_max - row_shift would have no digits for the scores.
constexpr float kMaxRowShift = 65536;

struct Scores : QueriesTerm {
  using QueriesTerm::QueriesTerm;

  // What the tables of keys and bias add to a row's scores left and right of their window.
  float score_left[kBlockRows], score_right[kBlockRows];

  // ---- a block --------------------------------------------------------------------------------

  void begin_block(RowBlock& block, int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    read_block(block, b, h, first_row, num_rows);
    if (params.grid.num_axes) begin_grid(block);
    bound_keys(block);
    pack_head(block);
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
    for (int64_t r = 0; r < block.num_rows; ++r)
      to[r] += dot(work.q_rel + r * plan.padded_rel_dim, work.row_scratch, plan.padded_rel_dim);
  }

  // ---- a tile ---------------------------------------------------------------------------------

  // Scores in work.s; those of row r lack row_shift[r].
  void tile_scores(const RowBlock& block, const KeyTile& tile, float* row_shift) {
    float* scores = work.s;
    multiply_keys(block, tile, scores);
    fill(row_shift, block.num_rows, 0);
    if (plan.score_window.present) {
      const Region region = region_of(plan.score_window, block, tile);
      if (region == kBand)
        add_band(block, tile, scores);
      else
        shift_rows(block, tile, region == kLeft ? score_left : score_right, scores, row_shift);
    }
    if (plan.query_window.present) add_queries_term(block, tile, scores);
    if (params.grid.num_axes) add_grid_scores(block, tile, scores);
    if (params.softcap) cap(block, tile, scores);
    if (params.mask.data) add_mask(block, tile, scores);
    hide_unseen(block, tile, scores);
  }

  // Left or right of the window each row's constant (rows) becomes its row_shift, so that no score
  // is touched, unless it is too large or not finite, or scores will be capped.
  void shift_rows(const RowBlock& block, const KeyTile& tile, const float* constants,
                  float* scores, float* row_shift) {
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const float constant = constants[r];
      if (!params.softcap && constant > -kMaxRowShift && constant < kMaxRowShift) {
        row_shift[r] = constant;
        continue;
      }
      float* x = scores + r * kTileStride;
      for (int64_t n = tile.from; n < tile.to; ++n) x[n] += constant;
    }
  }

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
    const int64_t first = round_down(tile.from, kNR);
    gemm_packed(block.num_rows, tile.to - first, params.head_dim, work.q_panels,
                work.key_panels + tile.key(first) * params.head_dim, scores + first, kTileStride);
  }

  // scale * q_rel_i . K[j-i] + B[j-i] on the window.
  void add_band(const RowBlock& block, const KeyTile& tile, float* scores) {
    const OffsetWindow& window = plan.score_window;
    const bool has_keys = params.tables[kKeys].present();
    if (has_keys && plan.few_queries && !plan.few_query_scores) {
      add_band_by_pair(block, tile, scores);
      return;
    }
    if (has_keys && !plan.few_queries)
      ensure_offset_scores(block, tile.first_column(window, block),
                           tile.end_column(window, block));
    const float* bias = has_keys ? nullptr : window_table(kBias, block.h).bias;
    for (int64_t r = 0; r < block.num_rows; ++r)
      add_sheared(has_keys ? offset_scores(block, r) : bias, window,
                  tile.key(tile.vector_from()), block.position + r,
                  tile.vector_to() - tile.vector_from(),
                  scores + r * kTileStride + tile.vector_from());
  }

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

  // Compute what the offset buffer still lacks of the columns from..to-1 of q_rel . K + B.
  void ensure_offset_scores(const RowBlock& block, int64_t from, int64_t to) {
    OffsetBuffer& buffer = work.offset_scores;
    from = round_down(from, kNR), to = round_up(to, kNR);
    const int64_t missing = buffer.first_missing(from, to, block.num_rows);
    if (missing >= to) return;
    const WindowTable& keys = window_table(kKeys, block.h);
    const bool has_bias = params.tables[kBias].present();
    const float* bias = has_bias ? window_table(kBias, block.h).bias : nullptr;
    const int64_t depth = params.tables[kKeys].row_dim;
    for (int64_t n = missing; n < to; n += kNR) {
      float* out = buffer.row(0) + n;
      gemm_packed(block.num_rows, kNR, depth, work.q_rel_panels, keys.panels + n * depth, out,
                  kBufferStride);
      if (!bias) continue;
      for (int64_t r = 0; r < block.num_rows; ++r)
        for (int64_t c = 0; c < kNR; c += kLanes)
          store(out + r * kBufferStride + c,
                load(out + r * kBufferStride + c) + load(bias + n + c));
    }
    buffer.end = to;
  }

  // Scores x become c * tanh(x / c); backward keeps the derivative of that.
  void cap(const RowBlock& block, const KeyTile& tile, float* scores) {
    const vfloat softcap = broadcast(params.softcap);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* x = scores + r * kTileStride;
      float* slope = plan.backward ? work.cap_slope + r * kTileStride : nullptr;
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        vfloat derivative;
        store(x + n, softcap * hyperbolic_tangent(load(x + n) / softcap, derivative));
        if (slope) store(slope + n, derivative);
      }
    }
  }

  // ---- masks ----------------------------------------------------------------------------------

  void add_mask(const RowBlock& block, const KeyTile& tile, float* scores) {
    const Mask& mask = params.mask;
    const int64_t step = mask.strides[3];
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* x = scores + r * kTileStride;
      // The row's number for the tile's first key.
      const int64_t at = block.b * mask.strides[0] + block.h * mask.strides[1] +
                         (block.first_row + r) * mask.strides[2] + tile.begin * step;
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
        const int64_t count = step ? tile.to - tile.from : 1;  // step is 0 or 1
        float* const row = work.key_scratch;
        convert_to_float(mask.data, mask.dtype, at + tile.from * step, count, 1, row);
        for (int64_t n = tile.from; n < tile.to; ++n) x[n] += row[(n - tile.from) * step];
      }
    }
  }

  // -inf for keys that a row does not see, within the whole vectors of those that it does.
  void hide_unseen(const RowBlock& block, const KeyTile& tile, float* scores) {
    const Documents& documents = params.documents;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* x = scores + r * kTileStride;
      const int64_t from = tile.row_from(block, r), to = tile.row_to(block, r);
      if (from >= to) continue;
      if (documents.ids && documents.interleaved) {
        const int32_t* ids = documents.ids + block.b * documents.batch_stride;
        const int32_t own = ids[block.position + r];
        for (int64_t n = from; n < to; ++n) x[n] = ids[tile.key(n)] == own ? x[n] : -kInfinity;
      }
      if (params.grid.has_window && r >= first_grid_row) hide_outside_window(r, x);
      for (int64_t n = round_down(from, kLanes); n < from; ++n) x[n] = -kInfinity;
      for (int64_t n = to; n < round_up(to, kLanes); ++n) x[n] = -kInfinity;
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
                                   (uint64_t)(1 + params.row_index(block.b, block.h,
                                                                   block.first_row + r));
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const vuint start = vuint{} + (uint32_t)z, row_hash = vuint{} + (uint32_t)(z >> 32);
    for (int64_t n = from; n < to; n += kLanes) {
      vuint u = start + (lane_numbers() + (uint32_t)tile.key(n)) * 0x9e3779b9u;
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
