// The products of backward of one block of rows, on a matrix unit.
//
//     work.s, work.ds    (kStripRows, kTileStride): scores of a strip, then p; dp, then ds
//     work.ds_rows, work.ds_pairs, work.p_pairs   these, rounded (weights.h)
//
// Scores, p, ds and dq are made strip by strip; the gradients of keys, values and tables are sums
// over all rows of the block.
#pragma once

#include <stdint.h>

#include "backward_sums.h"
#include "bf16.h"
#include "config.h"
#include "integers.h"
#include "offset_window.h"
#include "params.h"
#include "simd.h"
#include "tile.h"
#include "tile_products.h"
#include "weights.h"

namespace relpos {
namespace {

#if RELPOS_TILES

struct TileBackward : BackwardSums {
  // Of the tile: which keys each strip sees, and whether on the band of the scores, of the values.
  StripKeys score_strips, value_strips;
  // Sums of ds over the rows of the block left and right of the window of queries, by key.
  float ds_left_by_key[kTileKeys], ds_right_by_key[kTileKeys];
  bool has_ds_left_by_key, has_ds_right_by_key;

  TileBackward(const Plan& p, Workspace w) : BackwardSums(p, w) {
    packed* const all_rows[] = {work.ds_rows, work.p_rows};
    packed* const all_pairs[] = {work.ds_pairs, work.p_pairs, work.ds_sheared_pairs,
                                 work.p_sheared_pairs};
    for (packed* weights : all_rows)
      if (weights) clear_weights(weights, weights_size(kStripRows));
    for (packed* weights : all_pairs)
      if (weights) clear_weights(weights, weight_pairs_size(kBlockRows));
  }

  void run(int64_t b, int64_t h, int64_t first_row, int64_t num_rows) {
    RowBlock block;
    begin_block(block, b, h, first_row, num_rows);
    begin_score_gradients(block);
    begin_value_gradients(block);
    transpose_block(block);
    for (KeyTile tile = {}; next_tile(block, tile);) add_tile(block, tile);
    finish_value_gradients(block);
    finish_score_gradients(block);
  }

  // The factors of the sums over rows.
  void transpose_block(const RowBlock& block) {
    const int64_t num_rows = block.num_rows;
    transpose_rows(work.q_panels, num_rows, params.head_dim, kBlockRows, work.q_transposed);
    if (params.has_q_rel() && !params.grid.num_axes)
      transpose_rows(work.q_rel_panels, num_rows, params.rel_dim, kBlockRows,
                     work.q_rel_transposed);
    transpose_rows(work.d_output_panels, num_rows, params.value_dim, kBlockRows,
                   work.d_output_transposed);
  }

  bool wants_sheared_ds() const { return sums.tables[kKeys]; }
  bool wants_sheared_p() const { return sums.tables[kValues]; }

  void add_tile(const RowBlock& block, const KeyTile& tile) {
    has_ds_left_by_key = has_ds_right_by_key = false;
    for (int64_t row = 0, n = 0; row < kBlockRows; row += kStripRows, ++n) {
      KeyTile strip = tile;
      const bool seen = row < block.num_rows && cut_to_strip(block, row, kStripRows, strip);
      score_strips.from[n] = seen ? strip.vector_from() : 0;
      score_strips.to[n] = seen ? strip.vector_to() : 0;
      value_strips.from[n] = score_strips.from[n], value_strips.to[n] = score_strips.to[n];
      score_strips.on_band[n] = seen && plan.score_window.present &&
                                region_of(plan.score_window, block, strip) == kBand;
      value_strips.on_band[n] = seen && wants_sheared_p() &&
                                region_of(plan.value_window, block, strip) == kBand;
      if (seen)
        add_strip(block, strip, n);
      else
        clear_strip(row);
    }
    if (sums.v)
      multiply_pairs(tile, score_strips, work.p_pairs, work.d_output_transposed,
                     plan.padded_value_dim, sums.v + tile.begin * plan.padded_value_dim);
    if (sums.k)
      multiply_pairs(tile, score_strips, work.ds_pairs, work.q_transposed, plan.padded_head_dim,
                     sums.k + tile.begin * plan.padded_head_dim);
    if (wants_sheared_p())
      multiply_sheared_pairs(block, tile, value_strips, plan.value_window, work.p_sheared_pairs,
                             work.d_output_transposed, plan.padded_value_dim,
                             table_sums(kValues, block.h));
    if (wants_sheared_ds())
      multiply_sheared_pairs(block, tile, score_strips, plan.score_window, work.ds_sheared_pairs,
                             work.q_rel_transposed, plan.padded_rel_dim,
                             table_sums(kKeys, block.h));
    if (has_ds_left_by_key)
      add_far_queries(block, tile, plan.query_window.low_column(), ds_left_by_key);
    if (has_ds_right_by_key)
      add_far_queries(block, tile, plan.query_window.high_column(), ds_right_by_key);
  }

  void clear_strip(int64_t first_row) {
    clear_pairs(first_row, work.ds_pairs);
    clear_pairs(first_row, work.p_pairs);
    if (wants_sheared_ds()) clear_pairs(first_row, work.ds_sheared_pairs);
    if (wants_sheared_p()) clear_pairs(first_row, work.p_sheared_pairs);
  }

  void add_strip(const RowBlock& block, const KeyTile& tile, int64_t number) {
    float row_shift[kBlockRows];
    const float factor = tile_scores(block, tile, row_shift);
    const Region value_region = multiply_values(block, tile);
    if (!softmax_and_round(block, tile, row_shift, factor, value_region, number)) {
      for (int64_t r = tile.first_row; r < tile.end_row; ++r)
        softmax_backward(block, tile, r, row_shift[r], factor, value_region);
      const int64_t from = tile.vector_from(), count = tile.vector_to() - from;
      for (int64_t r = tile.num_rows(); r < kStripRows; ++r) {
        fill(work.s + r * kTileStride + from, count, 0);
        fill(work.ds + r * kTileStride + from, count, 0);
      }
      if (sums.mask) accumulate_mask(block, tile);
      if (params.softcap) multiply_cap_slope(tile);
      round_weights(work.s, tile, value_strips.on_band[number] ? work.p_rows : nullptr,
                    work.p_pairs);
      round_weights(work.ds, tile, work.ds_rows, work.ds_pairs);
      if (wants_sheared_p() && !value_strips.on_band[number])
        add_row_sums(tile, work.s, value_region == kLeft ? p_left : p_right);
      if (wants_far_ds(number)) add_row_sums(tile, work.ds, far_ds(block, tile));
    }
    accumulate_value_gradients(tile, value_strips.on_band[number]);
    accumulate_score_gradients(block, tile, score_strips.on_band[number]);
  }

  // ---- the softmax ----------------------------------------------------------------------------

  // Whether a strip's ds is summed left or right of the window of scores.
  bool wants_far_ds(int64_t number) const {
    return plan.score_window.present && wants_offset_ds() && !score_strips.on_band[number];
  }
  float* far_ds(const RowBlock& block, const KeyTile& tile) {
    return region_of(plan.score_window, block, tile) == kLeft ? ds_left : ds_right;
  }

  // p = exp(factor * s - base) * inverse_sum; ds = p * (dp - delta).
  struct RowNumbers {
    float base = 0, inverse_sum = 0, delta = 0;
  };

  // What softmax_backward and round_weights do, for two rows at once, where nothing stands between
  // them; false where something does.
  bool softmax_and_round(const RowBlock& block, const KeyTile& tile, const float* row_shift,
                         float factor, Region value_region, int64_t number) {
    if (plan.drop_threshold || params.softcap || sums.mask || plan.grid.has_values)
      return false;
    RowNumbers rows[kStripRows];
    for (int64_t r = tile.first_row; r < tile.end_row; ++r) {
      const int64_t row = params.row_index(block.b, block.h, block.first_row + r);
      if (params.row_max[row] == -kInfinity) continue;
      // There delta can be had without the rounding of the output, which is more than that of
      // split weights.
      if (kParts == 2 && is_single_tile(block, tile, r)) return false;
      if (is_far_base(params.row_max[row]) || is_far_base(params.row_max[row] - row_shift[r]))
        return false;
      RowNumbers& to = rows[r - tile.first_row];
      to.base = params.row_max[row] - row_shift[r];
      to.inverse_sum = 1 / params.row_sum[row];
      to.delta = delta[r];
      if (value_region != kBand) to.delta -= value_region == kLeft ? dp_left[r] : dp_right[r];
    }
    packed* const p_rows = value_strips.on_band[number] ? work.p_rows : nullptr;
    float* const p_sums = wants_sheared_p() && !p_rows
                              ? (value_region == kLeft ? p_left : p_right)
                              : nullptr;
    float* const ds_sums = wants_far_ds(number) ? far_ds(block, tile) : nullptr;
    const bool all_seen =
        tile.whole && tile.from == tile.vector_from() && tile.to == tile.vector_to();
    const bool keeps_ds = plan.query_window.present || params.grid.num_axes || sums.tables[kBias];
    for (int64_t r = 0; r < kStripRows; r += 2) {
      if (r >= tile.num_rows()) {
        clear_two_rows(tile.first_row, r, p_rows);
        continue;
      }
      clear_around(weight_row(work.ds_rows, r), tile);
      clear_around(weight_row(work.ds_rows, r + 1), tile);
      const int64_t from = tile.vector_from(), to = tile.vector_to();
      clear_pairs_around(weight_pairs(work.ds_pairs, tile.first_row + r), from, to);
      clear_pairs_around(weight_pairs(work.p_pairs, tile.first_row + r), from, to);
      if (p_rows) clear_around(weight_row(p_rows, r), tile);
      if (p_rows) clear_around(weight_row(p_rows, r + 1), tile);
      const RowNumbers &x = rows[r], &y = rows[r + 1];
      vfloat pair_sums[4] = {};
      if (r + 1 == tile.num_rows()) hide_row(tile, r + 1);
      if (keeps_ds || p_rows)
        weights_of_two_rows<true, true>(tile, r, factor, x, y, p_rows, pair_sums);
      else if (all_seen && r + 1 < tile.num_rows())
        weights_of_two_rows<false, false>(tile, r, factor, x, y, p_rows, pair_sums);
      else
        weights_of_two_rows<false, true>(tile, r, factor, x, y, p_rows, pair_sums);
      for (int64_t n = 0; n < 2 && tile.first_row + r + n < tile.end_row; ++n) {
        if (p_sums) p_sums[tile.first_row + r + n] += horizontal_sum(pair_sums[n]);
        if (ds_sums) ds_sums[tile.first_row + r + n] += horizontal_sum(pair_sums[2 + n]);
      }
    }
    return true;
  }

  // Row r of a strip, which is none of the block's, sees nothing.
  void hide_row(const KeyTile& tile, int64_t r) {
    const int64_t from = tile.vector_from(), count = tile.vector_to() - from;
    fill(work.s + r * kTileStride + from, count, -kInfinity);
    fill(work.ds + r * kTileStride + from, count, 0);
  }

  // The rows r and r + 1 of a strip: zeros.
  void clear_two_rows(int64_t first_row, int64_t r, packed* p_rows) {
    for (int64_t n = r; n < r + 2; ++n) {
      clear_row(weight_row(work.ds_rows, n));
      if (p_rows) clear_row(weight_row(p_rows, n));
    }
    clear_pairs_around(weight_pairs(work.ds_pairs, first_row + r), 0, 0);
    clear_pairs_around(weight_pairs(work.p_pairs, first_row + r), 0, 0);
  }

  // Keeps: ds as floats, and rows of p where there are any. May be hidden: where p is 0, dp may be
  // anything.
  template <bool Keeps, bool MayBeHidden>
  void weights_of_two_rows(const KeyTile& tile, int64_t r, float factor, const RowNumbers& x,
                           const RowNumbers& y, packed* p_rows, vfloat (&row_sums)[4]) {
    const float* const s = work.s + r * kTileStride;
    float* const ds = work.ds + r * kTileStride;
    packed* const p_pairs = weight_pairs(work.p_pairs, tile.first_row + r);
    packed* const ds_pairs = weight_pairs(work.ds_pairs, tile.first_row + r);
    packed* const ds_x_row = weight_row(work.ds_rows, r);
    packed* const ds_y_row = weight_row(work.ds_rows, r + 1);
    const RowExponential<false> exponential_x(x.base, factor), exponential_y(y.base, factor);
    const vfloat inverse_x = broadcast(x.inverse_sum), inverse_y = broadcast(y.inverse_sum);
    const vfloat delta_x = broadcast(x.delta), delta_y = broadcast(y.delta);
    for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
      const vfloat p_x = exponential_x(load(s + n)) * inverse_x;
      const vfloat p_y = exponential_y(load(s + kTileStride + n)) * inverse_y;
      vfloat ds_x = p_x * (load(ds + n) - delta_x);
      vfloat ds_y = p_y * (load(ds + kTileStride + n) - delta_y);
      if (MayBeHidden) {
        ds_x = select(p_x == 0, vfloat{}, ds_x);
        ds_y = select(p_y == 0, vfloat{}, ds_y);
      }
      const Parts p_parts(p_x, p_y), ds_parts(ds_x, ds_y);
      store_weight_pairs(p_pairs + 2 * n, p_parts);
      store_weight_pairs(ds_pairs + 2 * n, ds_parts);
      store_first_row(ds_x_row + n, ds_parts);
      store_second_row(ds_y_row + n, ds_parts);
      row_sums[0] += p_x, row_sums[1] += p_y, row_sums[2] += ds_x, row_sums[3] += ds_y;
      if (!Keeps) continue;
      store(ds + n, ds_x);
      store(ds + kTileStride + n, ds_y);
      if (!p_rows) continue;
      store_first_row(weight_row(p_rows, r) + n, p_parts);
      store_second_row(weight_row(p_rows, r + 1) + n, p_parts);
    }
  }

  // dO . (v_j + V[j-i]) in work.ds, as Backward::multiply_values.
  Region multiply_values(const RowBlock& block, const KeyTile& tile) {
    const OffsetWindow& window = plan.value_window;
    const Region region = window.present ? region_of(window, block, tile) : kBand;
    const int64_t row = tile.first_row, from = tile.vector_from(), dim = params.value_dim;
    if (window.present && region == kBand) {
      const int64_t num_rows = round_up(tile.num_rows(), kTileSide);
      const BandSquares squares = {window, tile.key(from), tile.first_position(block)};
      const int64_t first = round_down(squares.first_column(num_rows), kOffsetUnit);
      const int64_t end = squares.end_column(tile.vector_to() - from);
      gemm_packed(num_rows, end - first, dim, d_output_rows(tile),
                  window_table(kValues, block.h).panels + first * packed_depth(dim),
                  work.offset_dp.data, kBufferStride, FromZero{}, false);
      multiply_values(tile, SquaresByOffset{squares, work.offset_dp.data - first, kBufferStride});
    } else {
      multiply_values(tile, FromZero{});
    }
    if (plan.grid.has_values)
      for (int64_t r = max(first_grid_row, row); r < tile.end_row; ++r)
        add_by_coord(work.axis_dp + r * params.grid.sum_size_k,
                     rows_of(work.ds, tile) + r * kTileStride);
    return region;
  }

  const packed* d_output_rows(const KeyTile& tile) const {
    return work.d_output_panels + tile.first_row * packed_depth(params.value_dim);
  }

  template <class Start>
  void multiply_values(const KeyTile& tile, const Start& start) {
    const int64_t from = tile.vector_from(), dim = params.value_dim;
    gemm_packed(tile.num_rows(), tile.vector_to() - from, dim, d_output_rows(tile),
                work.value_panels + tile.key(from) * packed_depth(dim), work.ds + from,
                kTileStride, start, false);
  }

  // ---- v and the table of values --------------------------------------------------------------

  void accumulate_value_gradients(const KeyTile& tile, bool on_band) {
    if (plan.grid.has_values && sums.axis_tables)
      for (int64_t r = max(first_grid_row, tile.first_row); r < tile.end_row; ++r)
        accumulate_by_coord(rows_of(work.s, tile) + r * kTileStride,
                            work.axis_p + r * params.grid.sum_size_k);
    if (!wants_sheared_p()) return;
    if (on_band)
      shear_pairs(work.p_rows, tile, work.p_sheared_pairs);
    else
      clear_pairs(tile.first_row, work.p_sheared_pairs);
  }

  // sums (rows) += those of the rows of a strip.
  static void add_row_sums(const KeyTile& tile, float* strip, float* row_sums) {
    const int64_t from = tile.vector_from();
    for (int64_t r = tile.first_row; r < tile.end_row; ++r)
      row_sums[r] +=
          sum_of(rows_of(strip, tile) + r * kTileStride + from, tile.vector_to() - from);
  }

  void finish_value_gradients(const RowBlock& block) {
    if (sums.tables[kValues]) {
      add_far_rows(block, kValues, plan.value_window.low_column(), p_left, work.d_output, 1);
      add_far_rows(block, kValues, plan.value_window.high_column(), p_right, work.d_output, 1);
    }
    if (!sums.axis_tables) return;
    for (int axis = 0; axis < params.grid.num_axes; ++axis)
      if (params.grid.axes[axis].has_values) finish_axis_values(block, axis);
  }

  // The sums of a table's column += factor * weights (rows) times x (rows, padded_row_dim).
  void add_far_rows(const RowBlock& block, int kind, int64_t column, const float* weights,
                    const float* x, float factor) {
    const int64_t dim = plan.padded_row_dim(kind);
    float* const row = work.row_scratch;
    fill(row, dim, 0);
    for (int64_t r = 0; r < block.num_rows; ++r)
      if (weights[r] != 0) add_scaled(dim, weights[r] * factor, x + r * dim, row);
    add_to_column(row, dim, column, table_sums(kind, block.h));
  }

  // panels (columns / 16, dim, 16) at a column += row (dim).
  static void add_to_column(const float* row, int64_t dim, int64_t column, float* panels) {
    float* const to = panels + column / kTileSide * kTileSide * dim + column % kTileSide;
    for (int64_t k = 0; k < dim; ++k) to[k * kTileSide] += row[k];
  }

  // ---- q, k and the tables of scores ----------------------------------------------------------

  void accumulate_score_gradients(const RowBlock& block, const KeyTile& tile, bool on_band) {
    const int64_t dim = plan.padded_head_dim;
    if (params.gradients.q.present())
      multiply_rows(tile, work.ds_rows, work.key_pairs, dim, work.edge_pairs,
                    rows_of_c(work.dq + tile.first_row * dim, dim));
    if (plan.score_window.present && wants_offset_ds()) accumulate_offset_ds(block, tile, on_band);
    if (plan.query_window.present) accumulate_queries_term(block, tile);
    if (params.grid.num_axes) accumulate_grid(block, tile);
  }

  void accumulate_offset_ds(const RowBlock& block, const KeyTile& tile, bool on_band) {
    if (!on_band) {
      if (wants_sheared_ds()) clear_pairs(tile.first_row, work.ds_sheared_pairs);
      return;
    }
    if (params.tables[kKeys].present() && wants_dq_rel()) {
      const int64_t dim = plan.padded_rel_dim;
      multiply_sheared_rows(block, tile, plan.score_window, work.ds_rows,
                            window_table(kKeys, block.h).rows, dim,
                            rows_of_c(work.dq_rel + tile.first_row * dim, dim));
    }
    if (wants_sheared_ds()) shear_pairs(work.ds_rows, tile, work.ds_sheared_pairs);
    if (float* to = table_sums(kBias, block.h))
      for (int64_t r = tile.first_row; r < tile.end_row; ++r)
        accumulate_sheared(rows_of(work.ds, tile) + r * kTileStride + tile.vector_from(),
                           plan.score_window, tile.key(tile.vector_from()), block.position + r,
                           tile.vector_to() - tile.vector_from(), to);
  }

  void finish_score_gradients(const RowBlock& block) {
    if (plan.score_window.present && wants_offset_ds()) {
      add_far_scores(block, plan.score_window.low_column(), ds_left);
      add_far_scores(block, plan.score_window.high_column(), ds_right);
    }
    for (int axis = 0; axis < params.grid.num_axes; ++axis) finish_axis_scores(block, axis);
    if (params.gradients.q.present())
      write_dq(block, work.dq, plan.padded_head_dim, params.head_dim, params.gradients.q);
    if (params.gradients.q_rel.present())
      write_dq(block, work.dq_rel, plan.padded_rel_dim, params.rel_dim, params.gradients.q_rel);
  }

  // What is left or right of the window of the tables of keys and bias: ds (rows) at that column.
  void add_far_scores(const RowBlock& block, int64_t column, const float* ds) {
    const int64_t dim = plan.padded_rel_dim;
    if (params.tables[kKeys].present() && wants_dq_rel()) {
      read_table_row(params.tables[kKeys], params.dtype, plan.score_window, block.h, column, dim,
                     work.row_scratch);
      for (int64_t r = 0; r < block.num_rows; ++r)
        if (ds[r] != 0) add_scaled(dim, ds[r], work.row_scratch, work.dq_rel + r * dim);
    }
    if (sums.tables[kKeys])
      add_far_rows(block, kKeys, column, ds, work.q_rel, 1 / plan.score_factor);
    if (float* to = table_sums(kBias, block.h))
      for (int64_t r = 0; r < block.num_rows; ++r) to[column] += ds[r];
  }

  // ---- the table of queries -------------------------------------------------------------------

  void accumulate_queries_term(const RowBlock& block, const KeyTile& tile) {
    if (!sums.k && !sums.tables[kQueries]) return;
    Region region;
    for (int64_t at = first_chunk(tile); at < tile.to;) {
      const KeyTile chunk = next_chunk(block, tile, at, region);
      if (region == kBand)
        accumulate_queries_term_on_band(block, chunk, tile.from);
      else if (region == kLeft)
        add_ds_by_key(chunk, ds_left_by_key, has_ds_left_by_key);
      else
        add_ds_by_key(chunk, ds_right_by_key, has_ds_right_by_key);
      at = chunk.to;
    }
  }

  void add_ds_by_key(const KeyTile& chunk, float* by_key, bool& has_any) {
    if (!has_any) fill(by_key, kTileKeys, 0);
    has_any = true;
    add_column_sums(chunk.num_rows(), round_up(chunk.to, kLanes) - chunk.from,
                    work.ds + chunk.from, kTileStride, by_key + chunk.from);
  }

  // by_key (kTileKeys): sums of ds over rows for which all keys select one row of the table.
  void add_far_queries(const RowBlock& block, const KeyTile& tile, int64_t column,
                       float* by_key) {
    const int64_t dim = plan.padded_head_dim;
    for (int64_t n = 0; n < kTileKeys; ++n) by_key[n] *= plan.query_factor;
    float* const row = work.row_scratch;
    read_table_row(params.tables[kQueries], params.dtype, plan.query_window, block.h, column, dim,
                   row);
    if (sums.k)
      for (int64_t n = tile.vector_from(); n < tile.vector_to(); n += kLanes) {
        float* const panel = sums.k + tile.key(n) * dim;
        for (int64_t k = 0; k < dim; ++k)
          store(panel + k * kLanes, load(panel + k * kLanes) + row[k] * load(by_key + n));
      }
    if (!sums.tables[kQueries]) return;
    int64_t stride;
    const float* keys = tile_keys(block, tile, &stride);
    fill(row, dim, 0);
    for (int64_t n = tile.from; n < tile.to; ++n)
      add_scaled(dim, by_key[n], keys + n * stride, row);
    add_to_column(row, dim, column, table_sums(kQueries, block.h));
  }

  // No row sees the tile's keys before `first_seen`.
  void accumulate_queries_term_on_band(const RowBlock& block, const KeyTile& chunk,
                                       int64_t first_seen) {
    const int64_t dim = plan.padded_head_dim;
    const int64_t first_column = round_down(first_chunk_column(block, chunk), kTileDepth);
    const int64_t columns =
        round_up(end_chunk_column(block, chunk) - first_column, kTileDepth);
    const int64_t count = min(kKeyChunk, round_up(chunk.to, kLanes) - chunk.from);
    for (int64_t n = 0; n < kKeyChunk; ++n) fill(work.chunk_ds + n * kBufferStride, columns, 0);
    accumulate_sheared_by_key(plan.query_factor, work.chunk_ds, first_column,
                              plan.query_window, chunk.key(chunk.from), count,
                              chunk.first_position(block), chunk.num_rows(),
                              work.ds + chunk.from, kTileStride);
    for (int64_t n = 0; n < kKeyChunk; n += 2)
      for (int64_t c = 0; c < columns; c += kLanes) {
        const float* x = work.chunk_ds + n * kBufferStride + c;
        const Parts of(load(x), load(x + kBufferStride));
        for (int64_t part = 0; part < kParts; ++part) {
          const vpairs joined = of.parts[part];
          packed* const row = work.chunk_rows + (n * kParts + part) * kBufferStride + c;
          store_half(row, first_half(joined));
          store_half(row + kParts * kBufferStride, second_half(joined));
          store_pairs(work.chunk_pairs + (n * kParts + 2 * part) * kBufferStride + 2 * c,
                      pair_up(joined));
        }
      }
    if (sums.k) {
      multiply(2, tiles_of(dim), columns / kTileDepth, rows_of_a(work.chunk_rows, kBufferStride),
               pairs_of_b(window_table(kQueries, block.h).rows + first_column * kParts * dim, dim),
               rows_of_c(work.chunk_sums, dim), FromZero{});
      const int64_t first_key = chunk.key(chunk.from);
      add_chunk_to_dk(first_key, min(kKeyChunk, plan.num_key_panels() * kNR - first_key));
    }
    if (float* to = table_sums(kQueries, block.h)) {
      copy_key_rows(block, chunk, first_seen);
      transpose_rows(work.chunk_panels, kKeyChunk, params.head_dim, kKeyChunk,
                     work.chunk_transposed);
      multiply(tiles_of(dim), columns / kTileSide, 1,
               rows_of_a(work.chunk_transposed, kKeyChunk),
               pairs_of_b(work.chunk_pairs, kBufferStride),
               panels_of_c(to + first_column * dim, dim), FromC{});
    }
  }
};

#endif

}  // namespace
}  // namespace relpos
