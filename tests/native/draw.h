// One call, drawn from a seed.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>

#include "arrays.h"

namespace fuzz {

using relpos::Call;
using relpos::kBias;
using relpos::kKeys;
using relpos::kKinds;
using relpos::kQueries;
using relpos::kValues;

constexpr const char* kKindNames[] = {"keys", "queries", "bias", "values"};

// Which gradients a call asks for.
enum Wanted { kQ, kK, kV, kQRel, kTables, kMask = kTables + kKinds, kAxisTables, kByQuery, kJoint,
              kWanted };

struct Case {
  uint64_t seed;
  Random random;
  Call call = {};
  Array q, k, v, q_rel, tables[kKinds], mask, axis_tables, by_query, joint, d_output, d_lse;
  std::vector<int32_t> numbers;  // of documents
  std::vector<int64_t> begin, end;
  bool wanted[kWanted] = {};
  int threads = 1;
  double magnitude = 1;
  std::vector<char> kept;  // of each pair (b, h, i, j), by dropout; empty without

  explicit Case(uint64_t n) : seed(n), random(n) {
    draw_sizes();
    if (random.chance(0.25)) draw_grid();
    draw_settings();
    draw_inputs();
    if (!call.grid.count && random.chance(0.9)) draw_tables();
    if (call.grid.count) draw_on_grid();
    if (random.chance(0.4)) draw_mask();
    if (starts_inside() && random.chance(0.3)) draw_documents();
    draw_gradients();
  }

  // ---- sizes ----------------------------------------------------------------------------------

  // Mostly small, often at the edge of a block, a tile, or a strip.
  int64_t draw_length() {
    const int64_t edges[] = {1, 4, 5, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 577};
    if (random.chance(0.06)) return 0;
    if (random.chance(0.25)) return edges[random.whole(0, 13)];
    return random.whole(1, random.chance(0.8) ? 80 : 700);
  }

  int64_t draw_width() {
    return random.chance(0.3) ? 8 * random.whole(1, 8) : random.whole(1, 70);
  }

  void draw_sizes() {
    call.queries = draw_length(), call.keys = draw_length();
    call.batch = random.chance(0.08) ? 0 : random.whole(1, 3);
    call.groups = random.whole(1, 3);
    call.heads = call.groups * random.whole(1, 3);
    call.width = draw_width();
    call.value_width = random.chance(0.02) ? 0 : draw_width();
    if (random.chance(0.03)) {
      call.queries = random.whole(1, 12), call.keys = random.whole(1, 12);
      call.width = random.whole(1, 1300), call.value_width = random.whole(1, 1300);
    }
    if (random.chance(0.15)) {  // several tiles, and strips that move
      call.queries = random.whole(1, 100), call.keys = random.whole(400, 900);
      call.batch = 1, call.heads = call.groups;
      call.width = random.whole(1, 12), call.value_width = random.whole(1, 12);
    }
    threads = (int)random.whole(1, 4);
    limit_work(true);
  }

  double work() const {
    return (double)call.batch * (double)call.heads * (double)call.queries * (double)call.keys *
           (double)(call.width + call.value_width);
  }

  // A kernel takes a thread for each million multiplications.
  bool worth_threads() const { return threads > 1 && work() / (call.causal ? 2 : 1) > 0x1p21; }

  void limit_work(bool lengths) {
    const double most = random.chance(0.3) ? 1.2e7 : 1.5e6;
    while (work() > most) {
      int64_t& longer = call.queries > call.keys ? call.queries : call.keys;
      if (call.batch > 1 && random.chance(0.5))
        call.batch -= 1;
      else if (call.heads > call.groups && random.chance(0.5))
        call.heads -= call.groups;
      else if (!lengths || random.chance(0.7))
        call.width = 1 + call.width / 2, call.value_width = (call.value_width + 1) / 2;
      else
        longer = longer * 3 / 4;
      if (!lengths && call.width <= 2) return;
    }
  }

  // Rows of tokens, a plane of them, or a volume; the queries on it may be pooled.
  void draw_grid() {
    relpos::Grid& grid = call.grid;
    grid.count = random.chance(0.2) ? 1 : (int)random.whole(2, random.chance(0.2) ? 8 : 3);
    grid.prefix = random.chance(0.5) ? 0 : random.whole(1, 3);
    const bool other_queries = random.chance(0.3);
    const bool many = grid.count < 4 && random.chance(0.4);
    const int64_t tokens = many ? random.whole(257, 700) : random.whole(1, 120);
    const double side = std::pow((double)tokens, 1.0 / grid.count);
    call.keys = call.queries = 1;
    for (int n = 0; n < grid.count; ++n) {
      relpos::Axis& axis = grid.axes[n];
      axis.keys = 1 + (int64_t)(side * random.number(random.chance(0.2) ? 0 : 0.8, 1.2));
      axis.queries = other_queries ? random.whole(1, axis.keys + 1) : axis.keys;
      grid.width += axis.keys, grid.query_width += axis.queries;
      call.keys *= axis.keys, call.queries *= axis.queries;
    }
    call.keys += grid.prefix, call.queries += grid.prefix;
    limit_work(false);
  }

  bool pooled() const {
    const relpos::Axis* const axes = call.grid.axes;
    return std::any_of(axes, axes + call.grid.count,
                       [](const relpos::Axis& axis) { return axis.keys != axis.queries; });
  }

  bool starts_inside() const {
    return call.start >= 0 && call.start + call.queries <= call.keys && !pooled();
  }

  // ---- settings -------------------------------------------------------------------------------

  void draw_settings() {
    const Dtype dtypes[] = {Dtype::f32, Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::f16};
    call.dtype = dtypes[random.whole(0, 4)];
    const double magnitudes[] = {1, 1, 1, 4, 0.01};
    magnitude = magnitudes[random.whole(0, 4)];
    call.scale = (float)(1 / std::sqrt((double)call.width));
    if (random.chance(0.1)) call.scale = (float)random.number(-1, 1);
    call.start = call.keys - call.queries;
    if (!call.grid.count && random.chance(0.4))
      call.start = random.whole(-call.queries - 20, call.keys + 20);
    const int64_t far = random.chance(0.5) ? 1ll << 40 : -(1ll << 40);
    if (!call.grid.count && random.chance(0.01)) call.start = far;
    call.causal = !pooled() && random.chance(0.4);
    const double shares[] = {0.1, 0.5, 0.9};
    if (random.chance(0.2)) call.dropout = shares[random.whole(0, 2)];
    call.seed = random.engine();
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
    draw(q, {call.batch, call.heads, call.queries, call.width}, call.dtype);
    draw(k, {call.batch, call.groups, call.keys, call.width}, call.dtype);
    draw(v, {call.batch, call.groups, call.keys, call.value_width}, call.dtype);
    draw(d_output, {call.batch, call.heads, call.queries, call.value_width}, Dtype::f32);
    call.q = q.view(), call.k = k.view(), call.v = v.view(), call.d_output = d_output.view();
    if (random.chance(0.5)) {
      draw(d_lse, {call.batch, call.heads, call.queries}, Dtype::f32, false);
      call.d_lse = d_lse.view();
    }
  }

  void draw_tables() {
    if (random.chance(0.3)) {
      call.rel_width = draw_width();
      draw(q_rel, {call.batch, call.heads, call.queries, call.rel_width}, call.dtype);
      call.q_rel = q_rel.view();
    }
    const bool all = random.chance(0.3);
    for (int kind = 0; kind < kKinds; ++kind)
      if (all || random.chance(0.4)) draw_table(kind);
  }

  // Rows anywhere: among the offsets that pairs meet, around them all, or beyond.
  void draw_table(int kind) {
    const int64_t width = kind == kValues ? call.value_width
                          : kind == kBias ? 1
                          : kind == kKeys && q_rel.present() ? call.rel_width : call.width;
    relpos::Table& table = call.tables[kind];
    table.heads = random.chance(0.5) ? 1 : call.heads;
    const int64_t least = 1 - call.start - call.queries, most = call.keys - 1 - call.start;
    const int64_t offsets = std::max<int64_t>(most - least + 1, 1);
    table.count = random.chance(0.5) ? random.whole(1, 9) : random.whole(1, offsets + 20);
    table.first = random.whole(least - table.count - 5, least + offsets + 5);
    if (random.chance(0.4)) table.first = -random.whole(0, table.count);
    if (random.chance(0.3)) table.first = least, table.count = offsets;
    // It begins near the last offset of all, or ends near the first one.
    if (random.chance(0.1)) table.first = most - random.whole(-1, 3);
    if (random.chance(0.1)) table.first = least + random.whole(-1, 3) - table.count + 1;
    if (random.chance(0.02)) table.first = random.chance(0.5) ? 1ll << 40 : -(1ll << 40);
    table.width = width;
    table.zero = random.chance(0.4);
    draw(tables[kind], {table.heads, table.count, width}, call.dtype, false,
         kind == kBias ? share_hidden() : 0);
    table.rows = tables[kind].memory.data;
  }

  void draw_on_grid() {
    relpos::Grid& grid = call.grid;
    draw_axes();
    if (random.chance(0.5)) {
      draw(by_query, {call.batch, call.heads, grid.query_width, call.keys}, Dtype::f32);
      grid.by_query = by_query.view();
    }
    if (!pooled() && random.chance(0.5)) {
      grid.joint_count = 1;
      for (int n = 0; n < grid.count; ++n) grid.joint_count *= 2 * grid.axes[n].keys - 1;
      grid.joint_heads = random.chance(0.5) ? 1 : call.heads;
      draw(joint, {grid.joint_heads, grid.joint_count}, Dtype::f32, false, share_hidden());
      grid.joint = (const float*)joint.memory.data;
    }
  }

  // Tables of some axes, some of whose keys meet an own part of q_rel.
  void draw_axes() {
    relpos::Grid& grid = call.grid;
    const double share = random.chance(0.15) ? 0 : 0.6;
    for (int n = 0; n < grid.count; ++n) {
      relpos::Axis& axis = grid.axes[n];
      axis.own_p = random.chance(share / 3);
      if (axis.own_p || random.chance(share))
        axis.key_width = axis.own_p ? random.whole(1, call.width + 3) : call.width;
      axis.bias = random.chance(share);
      axis.values = call.value_width > 0 && random.chance(share / 2);
      call.rel_width += axis.own_p ? axis.key_width : 0;
      grid.table_count +=
          axis.rows() * (axis.key_width + axis.bias + (axis.values ? call.value_width : 0));
    }
    if (call.rel_width) {
      draw(q_rel, {call.batch, call.heads, call.queries, call.rel_width}, call.dtype);
      call.q_rel = q_rel.view();
    }
    if (grid.table_count == 0) return;
    grid.table_heads = random.chance(0.5) ? 1 : call.heads;
    draw(axis_tables, {grid.table_heads, grid.table_count}, Dtype::f32, false);
    hide_by_bias(share_hidden() / grid.count);
    grid.tables = (const float*)axis_tables.memory.data;
  }

  void hide_by_bias(double share) {
    const relpos::Grid& grid = call.grid;
    for (int64_t h = 0, at = 0; h < grid.table_heads; ++h)
      for (int n = 0; n < grid.count; ++n) {
        const relpos::Axis& axis = grid.axes[n];
        at += axis.rows() * axis.key_width;
        for (int64_t row = 0; axis.bias && row < axis.rows(); ++row, ++at)
          if (random.chance(share)) axis_tables.set(at, -kInfinity);
        at += axis.values ? axis.rows() * call.value_width : 0;
      }
  }

  void draw_mask() {
    const Dtype dtypes[] = {Dtype::boolean, Dtype::f32, Dtype::bf16, Dtype::f16};
    mask.dtype = dtypes[random.whole(0, 3)];
    mask.sizes = {call.batch, call.heads, call.queries, call.keys};
    for (int64_t& size : mask.sizes)
      if (random.chance(0.5)) size = 1;
    const bool half = mask.dtype == Dtype::bf16 || mask.dtype == Dtype::f16;
    mask.strides = any_strides(random, mask.sizes, half);
    const double share = random.chance(0.1) ? 1 : random.number(0, 0.9);
    const bool boolean = mask.dtype == Dtype::boolean;
    // Some write a very low number in place of minus infinity.
    const double low = random.chance(0.7) ? -kInfinity : mask.dtype == Dtype::f16 ? -65504 : -3e38;
    mask.fill(random, [&] {
      const bool hidden = random.chance(share);
      return boolean ? !hidden : hidden ? low : number();
    });
    call.mask.data = mask.memory.data;
    call.mask.dtype = mask.dtype;
    for (size_t axis = 0; axis < 4; ++axis) call.mask.strides[axis] = mask.stride(axis);
  }

  // Runs of tokens, after which may come padding; or each token's document anyhow.
  void draw_documents() {
    const int64_t rows = random.chance(0.5) ? 1 : call.batch, keys = call.keys;
    const bool mixed = random.chance(0.4), padded = random.chance(0.5);
    call.documents.mixed = mixed;
    for (int64_t b = 0; b < rows; ++b) {
      int32_t number = 0;
      for (int64_t j = 0; j < keys; ++j) {
        number += random.chance(0.05);
        int32_t own = mixed ? (int32_t)random.whole(0, 3) : number;
        if (padded && (mixed ? random.chance(0.2) : j > keys * 3 / 4)) own = -1;
        numbers.push_back(own);
      }
      bound_documents(b * keys);
    }
    numbers.shrink_to_fit(), begin.shrink_to_fit(), end.shrink_to_fit();
    call.documents.numbers = numbers.data();
    call.documents.begin = begin.data(), call.documents.end = end.data();
    call.documents.stride = rows == 1 ? 0 : keys;
  }

  void bound_documents(int64_t first) {
    for (int64_t j = 0; j < call.keys; ++j) {
      const int32_t own = numbers[(size_t)(first + j)];
      int64_t from = 0, to = 0;
      for (int64_t n = call.keys; n-- > 0 && own >= 0;)
        if (numbers[(size_t)(first + n)] == own) from = n, to = std::max(to, n + 1);
      begin.push_back(from), end.push_back(to);
    }
  }

  void draw_gradients() {
    const bool all = random.chance(0.7);
    for (bool& one : wanted) one = all || random.chance(0.5);
    const Array* const inputs[] = {&q, &k, &v, &q_rel, &tables[0], &tables[1], &tables[2],
                                   &tables[3], &mask, &axis_tables, &by_query, &joint};
    for (int n = 0; n < kWanted; ++n) wanted[n] = wanted[n] && inputs[n]->present();
    if (mask.dtype == Dtype::boolean) wanted[kMask] = false;
  }

  // ---- in words -------------------------------------------------------------------------------

  std::string words() const {
    const char* const dtypes[] = {"f32", "bf16", "f16", "bool"};
    std::ostringstream to;
    to << "seed " << seed << ": b=" << call.batch << " h=" << call.heads << " g=" << call.groups
       << " i=" << call.queries << " j=" << call.keys << " d=" << call.width
       << " dv=" << call.value_width << " " << dtypes[(int)call.dtype] << " start=" << call.start
       << " scale=" << call.scale << " magnitude=" << magnitude << " threads=" << threads;
    if (call.causal) to << " causal";
    if (call.dropout > 0) to << " dropout=" << call.dropout;
    if (q_rel.present()) to << " q_rel=" << call.rel_width;
    for (int kind = 0; kind < kKinds; ++kind) {
      const relpos::Table& table = call.tables[kind];
      if (tables[kind].present())
        to << " " << kKindNames[kind] << "(h=" << table.heads << " " << table.first << ".."
           << table.first + table.count - 1 << (table.zero ? " zero)" : " clamp)");
    }
    if (mask.present()) to << " mask(" << dtypes[(int)mask.dtype] << words(mask.sizes) << ")";
    if (!numbers.empty())
      to << " documents(" << (call.documents.mixed ? "mixed" : "runs")
         << (call.documents.stride ? " of each entry)" : ")");
    if (call.grid.count) {
      to << " grid(";
      for (int n = 0; n < call.grid.count; ++n) {
        const relpos::Axis& axis = call.grid.axes[n];
        to << axis.queries << "x" << axis.keys << (axis.key_width ? " keys" : "")
           << (axis.own_p ? " own" : "") << (axis.bias ? " bias" : "")
           << (axis.values ? " values, " : ", ");
      }
      to << "prefix=" << call.grid.prefix << " h=" << call.grid.table_heads
         << (by_query.present() ? " by_query" : "") << (joint.present() ? " joint)" : ")");
    }
    if (d_lse.present()) to << " d_lse";
    to << " strides: q" << words(q.strides) << " k" << words(k.strides) << " v" << words(v.strides);
    return to.str();
  }

  static std::string words(const Sizes& sizes) {
    std::string all;
    for (const int64_t size : sizes) all += " " + std::to_string(size);
    return all;
  }
};

}  // namespace fuzz
