// One call, drawn from a seed: its sizes, settings, and inputs, with shapes as in csrc/params.h.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>

#include "arrays.h"

namespace fuzz {

using relpos::Params;
using relpos::kBias;
using relpos::kKeys;
using relpos::kTableKinds;
using relpos::kQueries;
using relpos::kValues;

constexpr int64_t kManyQueries = 1000;
constexpr const char* kKindNames[] = {"keys", "queries", "bias", "values"};

// Which gradients a call asks for.
enum Wanted { kQ, kK, kV, kQRel, kTables, kMask = kTables + kTableKinds, kAxisTables, kJointBias,
              kWanted };

struct Case {
  uint64_t seed;
  Random random;
  Params params = {};
  Array q, k, v, q_rel, tables[kTableKinds], mask, axis_tables, joint_bias;
  Array d_output, d_lse;
  std::vector<int32_t> document_ids, query_document_ids;
  std::vector<int64_t> document_begin, document_end;
  std::vector<int64_t> ranges;  // (B or 1, seqlen_q, 2)
  std::vector<int64_t> axis_ranges;  // (B or 1, all coordinates of queries, 2)
  bool wanted[kWanted] = {};
  bool keeps_rounded_off = false;  // whether backward has what forward rounded off
  bool heads_inside[4] = {};  // of output, d_q, d_k and d_v: whether tokens come before heads
  int threads = 1;
  double magnitude = 1;
  std::vector<char> kept;  // of each pair (b, h, i, j), by dropout; empty without

  explicit Case(uint64_t n) : seed(n), random(n) {
    draw_sizes();
    if (random.chance(0.25)) draw_grid();
    draw_settings();
    draw_inputs();
    if (!params.grid.num_axes && random.chance(0.9)) draw_tables();
    if (params.grid.num_axes) draw_on_grid();
    if (random.chance(0.4)) draw_mask();
    if (!pooled() && random.chance(0.3)) draw_documents();
    if (random.chance(0.3)) draw_window();
    if (random.chance(0.25)) draw_key_ranges();
    if (params.grid.num_axes && random.chance(0.25)) draw_axis_ranges();
    draw_gradients();
    for (bool& inside : heads_inside) inside = random.chance(0.5);
    keeps_rounded_off = params.dtype != Dtype::f32 && random.chance(0.7);
  }

  // ---- sizes ----------------------------------------------------------------------------------

  // Mostly small, often at the edge of a block, a tile, or an offset buffer.
  int64_t draw_seqlen() {
    const int64_t edges[] = {1, 4, 5, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 577};
    if (random.chance(0.06)) return 0;
    if (random.chance(0.25)) return edges[random.whole(0, 13)];
    return random.whole(1, random.chance(0.8) ? 80 : 700);
  }

  int64_t draw_dim() {
    return random.chance(0.3) ? 8 * random.whole(1, 8) : random.whole(1, 70);
  }

  void draw_sizes() {
    params.seqlen_q = draw_seqlen(), params.seqlen_k = draw_seqlen();
    params.batch = random.chance(0.08) ? 0 : random.whole(1, 3);
    params.kv_heads = random.whole(1, 3);
    params.heads = params.kv_heads * random.whole(1, 3);
    params.head_dim = draw_dim();
    params.value_dim = random.chance(0.02) ? 0 : draw_dim();
    if (random.chance(0.03)) {
      params.seqlen_q = random.whole(1, 12), params.seqlen_k = random.whole(1, 12);
      params.head_dim = random.whole(1, 1300), params.value_dim = random.whole(1, 1300);
    }
    if (random.chance(0.15)) {  // several tiles, and offset buffers that move
      params.seqlen_q = random.whole(1, 100), params.seqlen_k = random.whole(400, 900);
      params.batch = 1, params.heads = params.kv_heads;
      params.head_dim = random.whole(1, 12), params.value_dim = random.whole(1, 12);
    }
    if (random.chance(0.2)) {  // steps of decoding: slices of keys, and heads that share them
      params.seqlen_q = random.whole(1, 9), params.seqlen_k = random.whole(1, 2600);
      params.heads = params.kv_heads * random.whole(1, 12);
    }
    threads = (int)random.whole(1, 4);
    limit_work(true);
  }

  double work() const {
    return (double)params.batch * (double)params.heads * (double)params.seqlen_q *
           (double)params.seqlen_k * (double)(params.head_dim + params.value_dim);
  }

  // A kernel takes a thread for each million multiplications.
  bool worth_threads() const { return threads > 1 && work() / (params.causal ? 2 : 1) > 0x1p21; }

  void limit_work(bool lengths) {
    const double limit = random.chance(0.3) ? 1.2e7 : 1.5e6;
    while (work() > limit) {
      int64_t& longer = params.seqlen_q > params.seqlen_k ? params.seqlen_q : params.seqlen_k;
      if (params.batch > 1 && random.chance(0.5))
        params.batch -= 1;
      else if (params.heads > params.kv_heads && random.chance(0.5))
        params.heads -= params.kv_heads;
      else if (!lengths || random.chance(0.7))
        params.head_dim = 1 + params.head_dim / 2, params.value_dim = (params.value_dim + 1) / 2;
      else
        longer = longer * 3 / 4;
      if (!lengths && params.head_dim <= 2) return;
    }
  }

  // Rows of tokens, a plane of them, or a volume; the queries on it may be pooled. Finer ones, which
  // multiply from axis to axis, are given up where they become too many.
  void draw_grid() {
    relpos::Grid& grid = params.grid;
    grid.num_axes = random.chance(0.2) ? 1 : (int)random.whole(2, random.chance(0.2) ? 8 : 3);
    grid.prefix = random.chance(0.5) ? 0 : random.whole(1, 3);
    const bool other_queries = random.chance(0.3);
    const bool many = grid.num_axes < 4 && random.chance(0.4);
    if (many && random.chance(0.3))  // threads that share a head
      params.batch = params.kv_heads = params.heads = 1, threads = 4;
    const int64_t tokens = many ? random.whole(257, 700) : random.whole(1, 120);
    const double side = std::pow((double)tokens, 1.0 / grid.num_axes);
    params.seqlen_k = params.seqlen_q = 1;
    for (int n = 0; n < grid.num_axes; ++n) {
      relpos::Axis& axis = grid.axes[n];
      const int64_t keys = 1 + (int64_t)(side * random.number(random.chance(0.2) ? 0 : 0.8, 1.2));
      const int64_t queries = other_queries ? draw_pooled(keys) : keys;
      axis.set_sizes(keys, params.seqlen_q * queries > kManyQueries ? keys : queries);
      if (axis.size_q != keys && random.chance(0.2)) axis.ratio = 0;  // as where sizes are symbols
      grid.sum_size_k += axis.size_k;
      params.seqlen_k *= axis.size_k, params.seqlen_q *= axis.size_q;
    }
    params.seqlen_k += grid.prefix, params.seqlen_q += grid.prefix;
    limit_work(false);
  }

  // Of queries along an axis with so many keys: most often one number divides the other.
  int64_t draw_pooled(int64_t keys) {
    if (random.chance(0.3)) return random.whole(1, keys + 1);
    const int64_t ratio = random.whole(1, 6);
    return random.chance(0.5) ? keys * ratio : std::max<int64_t>(keys / ratio, 1);
  }

  bool pooled() const {
    const relpos::Axis* const axes = params.grid.axes;
    return std::any_of(axes, axes + params.grid.num_axes,
                       [](const relpos::Axis& axis) { return axis.size_k != axis.size_q; });
  }

  bool starts_inside() const {
    return params.query_start >= 0 && params.query_start + params.seqlen_q <= params.seqlen_k &&
           !pooled();
  }

  // ---- settings -------------------------------------------------------------------------------

  void draw_settings() {
    const Dtype dtypes[] = {Dtype::f32, Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16};
    params.dtype = dtypes[random.whole(0, 4)];
    params.split_float32 = params.dtype == Dtype::f32 && random.whole(0, 2) == 0;
    const double magnitudes[] = {1, 1, 1, 4, 0.01};
    magnitude = magnitudes[random.whole(0, 4)];
    params.scale = (float)(1 / std::sqrt((double)params.head_dim));
    if (random.chance(0.1)) params.scale = (float)random.number(-1, 1);
    params.query_start = params.seqlen_k - params.seqlen_q;
    if (!params.grid.num_axes && random.chance(0.4))
      params.query_start = random.whole(-params.seqlen_q - 20, params.seqlen_k + 20);
    const int64_t far = random.chance(0.5) ? 1ll << 40 : -(1ll << 40);
    if (!params.grid.num_axes && random.chance(0.01)) params.query_start = far;
    params.causal = !pooled() && random.chance(0.4);
    const double shares[] = {0.1, 0.5, 0.9};
    if (random.chance(0.2)) params.dropout = shares[random.whole(0, 2)];
    params.seed = random.engine();
    params.dropout_origin = {params.heads, 0, params.seqlen_q, 0, 0};
    if (random.chance(0.3)) {
      const int64_t heads = random.whole(0, 3), queries = random.whole(0, 1000);
      params.dropout_origin = {params.heads + heads, heads, params.seqlen_q + queries, queries,
                               random.whole(0, 1000)};
    }
    const float caps[] = {0.3f, 2, 30, 1e20f};
    if (random.chance(0.2)) params.softcap = caps[random.whole(0, 3)];
  }

  // ---- tensors --------------------------------------------------------------------------------

  double number() { return random.number(-magnitude, magnitude); }

  void draw(Array& array, const Sizes& sizes, Dtype dtype, bool strided = true, double hidden = 0) {
    array.dtype = dtype, array.sizes = sizes;
    array.strides = strided ? any_strides(random, sizes, true) : contiguous(sizes);
    array.fill(random, [&] { return random.chance(hidden) ? -kInfinity : number(); });
  }

  // What is added to scores may hide some pairs.
  double share_hidden() { return random.chance(0.2) ? random.number(0, 0.5) : 0; }

  void draw_inputs() {
    draw(q, {params.batch, params.heads, params.seqlen_q, params.head_dim}, params.dtype);
    draw(k, {params.batch, params.kv_heads, params.seqlen_k, params.head_dim}, params.dtype);
    draw(v, {params.batch, params.kv_heads, params.seqlen_k, params.value_dim}, params.dtype);
    draw(d_output, {params.batch, params.heads, params.seqlen_q, params.value_dim}, params.dtype);
    params.q = q.view(), params.k = k.view(), params.v = v.view();
    params.d_output = d_output.view();
    if (random.chance(0.5)) {
      draw(d_lse, {params.batch, params.heads, params.seqlen_q}, Dtype::f32, false);
      params.d_lse = d_lse.view();
    }
  }

  void draw_tables() {
    if (random.chance(0.3)) {
      params.rel_dim = draw_dim();
      draw(q_rel, {params.batch, params.heads, params.seqlen_q, params.rel_dim}, params.dtype);
      params.q_rel = q_rel.view();
    }
    const bool all = random.chance(0.3);
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (all || random.chance(0.4)) draw_table(kind);
  }

  // Rows anywhere: among the offsets that pairs have, around them all, or beyond.
  void draw_table(int kind) {
    const int64_t width = kind == kValues ? params.value_dim
                          : kind == kBias ? 1
                          : kind == kKeys && q_rel.present() ? params.rel_dim : params.head_dim;
    relpos::OffsetTable& table = params.tables[kind];
    table.heads = random.chance(0.5) ? 1 : params.heads;
    const int64_t first_offset = 1 - params.query_start - params.seqlen_q;
    const int64_t last_offset = params.seqlen_k - 1 - params.query_start;
    const int64_t offsets = std::max<int64_t>(last_offset - first_offset + 1, 1);
    table.num_rows = random.chance(0.5) ? random.whole(1, 9) : random.whole(1, offsets + 20);
    table.first_offset =
        random.whole(first_offset - table.num_rows - 5, first_offset + offsets + 5);
    if (random.chance(0.4)) table.first_offset = -random.whole(0, table.num_rows);
    if (random.chance(0.3)) table.first_offset = first_offset, table.num_rows = offsets;
    // It begins near the last offset of all, or ends near the first one.
    if (random.chance(0.1)) table.first_offset = last_offset - random.whole(-1, 3);
    if (random.chance(0.1))
      table.first_offset = first_offset + random.whole(-1, 3) - table.num_rows + 1;
    if (random.chance(0.02)) table.first_offset = random.chance(0.5) ? 1ll << 40 : -(1ll << 40);
    table.row_dim = width;
    table.zero_beyond = random.chance(0.4);
    draw(tables[kind], {table.heads, table.num_rows, width}, params.dtype, false,
         kind == kBias ? share_hidden() : 0);
    table.rows = tables[kind].memory.data;
  }

  void draw_on_grid() {
    relpos::Grid& grid = params.grid;
    draw_axes();
    if (!pooled() && random.chance(0.5)) {
      grid.joint_bias_size = 1;
      for (int n = 0; n < grid.num_axes; ++n) grid.joint_bias_size *= 2 * grid.axes[n].size_k - 1;
      grid.joint_bias_heads = random.chance(0.5) ? 1 : params.heads;
      draw(joint_bias, {grid.joint_bias_heads, grid.joint_bias_size}, Dtype::f32, false,
           share_hidden());
      grid.joint_bias = (const float*)joint_bias.memory.data;
    }
  }

  // Tables of some axes, some of which are dotted with their own part of q_rel.
  void draw_axes() {
    relpos::Grid& grid = params.grid;
    const double share = random.chance(0.15) ? 0 : 0.6;
    for (int n = 0; n < grid.num_axes; ++n) {
      relpos::Axis& axis = grid.axes[n];
      axis.has_q_rel = random.chance(share / 3);
      if (axis.has_q_rel || random.chance(share))
        axis.key_dim = axis.has_q_rel ? random.whole(1, params.head_dim + 3) : params.head_dim;
      axis.has_queries = random.chance(share);
      axis.has_bias = random.chance(share);
      axis.has_values = params.value_dim > 0 && random.chance(share / 2);
      params.rel_dim += axis.has_q_rel ? axis.key_dim : 0;
      grid.axis_table_size +=
          axis.table_rows() *
          (axis.key_dim + (axis.has_queries ? params.head_dim : 0) + axis.has_bias +
           (axis.has_values ? params.value_dim : 0));
    }
    if (params.rel_dim) {
      draw(q_rel, {params.batch, params.heads, params.seqlen_q, params.rel_dim}, params.dtype);
      params.q_rel = q_rel.view();
    }
    if (grid.axis_table_size == 0) return;
    grid.axis_table_heads = random.chance(0.5) ? 1 : params.heads;
    draw(axis_tables, {grid.axis_table_heads, grid.axis_table_size}, Dtype::f32, false);
    hide_by_bias(share_hidden() / grid.num_axes);
    grid.axis_tables = (const float*)axis_tables.memory.data;
  }

  void hide_by_bias(double share) {
    const relpos::Grid& grid = params.grid;
    for (int64_t h = 0, at = 0; h < grid.axis_table_heads; ++h)
      for (int n = 0; n < grid.num_axes; ++n) {
        const relpos::Axis& axis = grid.axes[n];
        at += axis.table_rows() * (axis.key_dim + (axis.has_queries ? params.head_dim : 0));
        for (int64_t row = 0; axis.has_bias && row < axis.table_rows(); ++row, ++at)
          if (random.chance(share)) axis_tables.set(at, -kInfinity);
        at += axis.has_values ? axis.table_rows() * params.value_dim : 0;
      }
  }

  void draw_mask() {
    const Dtype dtypes[] = {Dtype::boolean, Dtype::f32, Dtype::bf16, Dtype::f16};
    mask.dtype = dtypes[random.whole(0, 3)];
    mask.sizes = {params.batch, params.heads, params.seqlen_q, params.seqlen_k};
    for (int64_t& size : mask.sizes)
      if (random.chance(0.5)) size = 1;
    const bool half = mask.dtype == Dtype::bf16 || mask.dtype == Dtype::f16;
    mask.strides = any_strides(random, mask.sizes, half);
    const double share = random.chance(0.1) ? 1 : random.number(0, 0.9);
    const bool boolean = mask.dtype == Dtype::boolean;
    // Some write a very low number in place of minus infinity.
    const double lows[] = {-3e38, -1e12, -1e10, -1e9, -1e4};
    const double low = random.chance(0.6)         ? -kInfinity
                       : mask.dtype == Dtype::f16 ? -65504
                                                  : lows[random.whole(0, 4)];
    mask.fill(random, [&] {
      const bool hidden = random.chance(share);
      return boolean ? !hidden : hidden ? low : number();
    });
    params.mask.data = mask.memory.data;
    params.mask.dtype = mask.dtype;
    for (size_t axis = 0; axis < 4; ++axis) params.mask.strides[axis] = mask.stride(axis);
  }

  // Runs of tokens, after which may come padding; or each token's document anyhow. The queries are
  // some of the keys' tokens, or have documents of their own.
  void draw_documents() {
    const int64_t rows = random.chance(0.5) ? 1 : params.batch, keys = params.seqlen_k;
    const bool interleaved = random.chance(0.4), padded = random.chance(0.5);
    params.documents.interleaved = interleaved;
    for (int64_t b = 0; b < rows; ++b) {
      int32_t number = 0;
      for (int64_t j = 0; j < keys; ++j) {
        number += random.chance(0.05);
        int32_t own = interleaved ? (int32_t)random.whole(0, 3) : number;
        if (padded && (interleaved ? random.chance(0.2) : j > keys * 3 / 4)) own = -1;
        document_ids.push_back(own);
      }
    }
    const bool own = !starts_inside() || random.chance(0.3);
    for (int64_t b = 0; b < rows; ++b)
      for (int64_t i = 0; i < params.seqlen_q; ++i) {
        const int64_t any = keys ? random.whole(0, keys - 1) : 0;
        const int64_t position = own ? any : params.query_start + i;
        int32_t id = own && (keys == 0 || random.chance(0.1))
                         ? -1
                         : document_ids[(size_t)(b * keys + position)];
        query_document_ids.push_back(id);
        bound_document(b * keys, id);
      }
    document_ids.shrink_to_fit(), query_document_ids.shrink_to_fit();
    document_begin.shrink_to_fit(), document_end.shrink_to_fit();
    params.documents.ids = document_ids.data();
    params.documents.query_ids = query_document_ids.data();
    params.documents.key_begin = document_begin.data();
    params.documents.key_end = document_end.data();
    params.documents.batch_stride = rows == 1 ? 0 : keys;
    params.documents.query_batch_stride = rows == 1 ? 0 : params.seqlen_q;
  }

  relpos::LocalWindow any_window(int64_t size) {
    const int64_t longest = random.chance(0.6) ? std::max<int64_t>(size / 4, 1) : size + 3;
    relpos::LocalWindow window;
    if (random.chance(0.8)) window.left = random.whole(0, longest);
    if (random.chance(0.8)) window.right = random.whole(0, longest);
    if (random.chance(0.01)) window.left = 1ll << 40;
    return window;
  }

  // Of a line of tokens, or of some axes of a grid.
  void draw_window() {
    relpos::Grid& grid = params.grid;
    if (grid.num_axes == 0) params.window = any_window(params.seqlen_k);
    for (int n = 0; n < grid.num_axes && !pooled(); ++n)
      if (random.chance(0.7)) grid.axes[n].window = any_window(grid.axes[n].size_k);
    for (int n = 0; n < grid.num_axes; ++n)
      grid.is_local = grid.is_local || grid.axes[n].window.limited();
  }

  // Ranges that follow each other, or any, some of them empty or beyond the keys.
  void draw_key_ranges() {
    const int64_t rows = random.chance(0.5) ? 1 : params.batch, keys = params.seqlen_k;
    const bool sorted = random.chance(0.5);
    const int64_t size = random.whole(1, keys + 1);
    for (int64_t b = 0; b < rows; ++b)
      for (int64_t i = 0; i < params.seqlen_q; ++i) {
        const int64_t first = sorted ? i * keys / std::max<int64_t>(params.seqlen_q, 1) - size / 2
                                     : random.whole(-3, keys + 3);
        ranges.push_back(first);
        ranges.push_back(sorted ? first + size : random.whole(first - 2, first + size));
      }
    ranges.shrink_to_fit();
    params.key_ranges = {ranges.data(), rows == 1 ? 0 : 2 * params.seqlen_q};
  }

  // Of each axis in turn; now and then empty or far beyond the coordinates.
  void draw_axis_ranges() {
    relpos::Grid& grid = params.grid;
    const int64_t rows = random.chance(0.5) ? 1 : params.batch;
    const bool near = random.chance(0.5);
    for (int64_t b = 0; b < rows; ++b)
      for (int n = 0; n < grid.num_axes; ++n) {
        const relpos::Axis& axis = grid.axes[n];
        const int64_t size = random.whole(1, axis.size_k);
        for (int64_t at = 0; at < axis.size_q; ++at) {
          int64_t first = random.whole(-2, axis.size_k);
          int64_t end = first + random.whole(-1, axis.size_k + 2);
          if (near) first = at * axis.size_k / axis.size_q - size / 2, end = first + size;
          if (random.chance(0.01)) first = INT64_MIN;
          if (random.chance(0.01)) end = INT64_MAX;
          axis_ranges.push_back(first), axis_ranges.push_back(end);
        }
      }
    axis_ranges.shrink_to_fit();
    int64_t sum_size_q = 0, before = 0;
    for (int n = 0; n < grid.num_axes; ++n) sum_size_q += grid.axes[n].size_q;
    for (int n = 0; n < grid.num_axes; before += grid.axes[n++].size_q)
      grid.axes[n].ranges = {axis_ranges.data() + 2 * before, rows == 1 ? 0 : 2 * sum_size_q};
    grid.is_local = true;
  }

  // The keys from the first to the last of a query's document, among those from `first` on.
  void bound_document(int64_t first, int32_t own) {
    int64_t from = 0, to = 0;
    for (int64_t n = params.seqlen_k; n-- > 0 && own >= 0;)
      if (document_ids[(size_t)(first + n)] == own) from = n, to = std::max(to, n + 1);
    document_begin.push_back(from), document_end.push_back(to);
  }

  void draw_gradients() {
    const bool all = random.chance(0.7);
    for (bool& one : wanted) one = all || random.chance(0.5);
    const Array* const inputs[] = {&q, &k, &v, &q_rel, &tables[0], &tables[1], &tables[2],
                                   &tables[3], &mask, &axis_tables, &joint_bias};
    for (int n = 0; n < kWanted; ++n) wanted[n] = wanted[n] && inputs[n]->present();
    if (mask.dtype == Dtype::boolean) wanted[kMask] = false;
  }

  // ---- in words -------------------------------------------------------------------------------

  std::string words() const {
    const char* const dtypes[] = {"f32", "bf16", "f16", "bool"};
    std::ostringstream to;
    to << "seed " << seed << ": batch=" << params.batch << " heads=" << params.heads
       << " kv_heads=" << params.kv_heads << " seqlen_q=" << params.seqlen_q
       << " seqlen_k=" << params.seqlen_k << " head_dim=" << params.head_dim
       << " value_dim=" << params.value_dim << " " << dtypes[(int)params.dtype]
       << (params.split_float32 ? " split" : "")
       << " query_start=" << params.query_start << " scale=" << params.scale
       << " magnitude=" << magnitude << " threads=" << threads;
    if (params.causal) to << " causal";
    if (params.dropout > 0) to << " dropout=" << params.dropout;
    if (q_rel.present()) to << " q_rel=" << params.rel_dim;
    for (int kind = 0; kind < kTableKinds; ++kind) {
      const relpos::OffsetTable& table = params.tables[kind];
      if (tables[kind].present())
        to << " " << kKindNames[kind] << "(h=" << table.heads << " " << table.first_offset << ".."
           << table.first_offset + table.num_rows - 1 << (table.zero_beyond ? " zero)" : " clamp)");
    }
    if (mask.present()) to << " mask(" << dtypes[(int)mask.dtype] << words(mask.sizes) << ")";
    if (!document_ids.empty())
      to << " documents(" << (params.documents.interleaved ? "interleaved" : "runs")
         << (params.documents.batch_stride ? " of each entry)" : ")");
    if (!ranges.empty())
      to << " key_ranges(" << (params.key_ranges.batch_stride ? "of each entry)" : "shared)");
    if (!axis_ranges.empty())
      to << " axis_ranges("
         << (params.grid.axes[0].ranges.batch_stride ? "of each entry)" : "shared)");
    if (params.window.limited()) to << " window" << words(params.window);
    if (params.softcap > 0) to << " softcap=" << params.softcap;
    if (params.grid.num_axes) {
      to << " grid(";
      for (int n = 0; n < params.grid.num_axes; ++n) {
        const relpos::Axis& axis = params.grid.axes[n];
        to << axis.size_q << "x" << axis.size_k << (axis.key_dim ? " keys" : "")
           << (axis.has_q_rel ? " q_rel" : "") << (axis.has_queries ? " queries" : "")
           << (axis.has_bias ? " bias" : "") << (axis.has_values ? " values" : "")
           << (axis.window.limited() ? " window" + words(axis.window) : "") << ", ";
      }
      to << "prefix=" << params.grid.prefix << " h=" << params.grid.axis_table_heads
         << (joint_bias.present() ? " joint_bias)" : ")");
    }
    if (d_lse.present()) to << " d_lse";
    to << " strides: q" << words(q.strides) << " k" << words(k.strides) << " v" << words(v.strides);
    return to.str();
  }

  static std::string words(const relpos::LocalWindow& window) {
    return "(" + std::to_string(window.left) + ", " + std::to_string(window.right) + ")";
  }

  static std::string words(const Sizes& sizes) {
    std::string all;
    for (const int64_t size : sizes) all += " " + std::to_string(size);
    return all;
  }
};

}  // namespace fuzz
