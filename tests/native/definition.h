// What a call means, pair by pair in double precision, and how far floats may be from it.
//
//     x_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + grid_ij
//     s_ij = x_ij + mask_ij, or with a softcap c tanh(x_ij / c) + mask_ij
//     w_ij = exp(s_ij) / sum_j exp(s_ij)
//     o_i  = sum_j w_ij m_ij (v_j + V[j-i])         m_ij: 0 or 1 / kept, by dropout
//
//     dP_ij = m_ij dO_i . (v_j + V[j-i])
//     dS_ij = w_ij (dP_ij - sum_j w_ij dP_ij + dlse_i)
//     dx_ij = dS_ij, or with a softcap (1 - tanh(x_ij / c)^2) dS_ij
//
// On a grid K, Q, B and V are sums over its axes, each at the pair of coordinates along it, and
// grid_ij is the joint bias.
//
// Shapes as in csrc/params.h: (B, H, seqlen_q, seqlen_k) pairs, head_dim of q and k, value_dim of v
// and the output, rel_dim of q_rel. b, h, i, j, g are indices: batch, query head, query, key,
// key/value head.
//
// `weight_error` is the relative error with which w and dS are rounded before they are multiplied,
// and `product_error` that of any product of two numbers: of a kernel (csrc/kernel.h).
//
// The bounds are those of any summation: a sum of n rounded terms, in any order, is off by at most
// n * 2^-24 * (the sum of their absolute values). They follow the numbers from the scores to the
// gradients. Nothing is tuned.
#pragma once

#include "draw.h"

namespace fuzz {

constexpr double kUnit = 0x1p-24;

struct Number {
  double value = 0, error = 0;

  double magnitude() const { return std::fabs(value) + error; }
};

// Sums of terms, each with its error, and the absolute values that went in.
struct Sums {
  std::vector<double> value, error, size;

  void make(int64_t count) {
    value.assign((size_t)count, 0), error = value, size = value;
  }
  bool present() const { return !value.empty(); }

  void add(int64_t at, Number x) { add(at, x, nullptr, 1); }
  // += x * row
  void add(int64_t at, Number x, const double* row, int64_t width) {
    for (int64_t n = 0; n < width; ++n) {
      const double factor = row ? row[n] : 1;
      value[(size_t)(at + n)] += x.value * factor;
      error[(size_t)(at + n)] += x.error * std::fabs(factor);
      size[(size_t)(at + n)] += x.magnitude() * std::fabs(factor);
    }
  }
  // No more than `terms` roundings lie between any term and its sum.
  void add_rounding(double terms) {
    for (size_t n = 0; n < value.size(); ++n) error[n] += terms * kUnit * size[n];
  }
};

struct Expected {
  Sums output, lse, d_q, d_k, d_v, d_q_rel, d_tables[kTableKinds], d_mask, d_axis_tables,
      d_joint_bias;
};

// One query and one key.
struct Pair {
  bool seen = false;
  double score = 0, size = 0;        // size: the sum of its terms' absolute values
  Number slope = {1, 0};             // ds / dx of the formula
  double dropout = 1;                // m of the formula
  Number weight;                     // w
  double d_weight = 0, d_size = 0;   // dP, likewise
};

class Definition {
 public:
  Definition(const Case& drawn, double of_weight, double of_product)
      : c(drawn),
        params(drawn.params),
        pairs((size_t)params.seqlen_k),
        weight_error(of_weight),
        product_terms(of_product / kUnit) {
    tiles = (double)(params.seqlen_k / 256 + 1);
    blocks = (double)(params.seqlen_q / 64 + 1);
    locate_tokens([](const relpos::Axis& axis) { return axis.size_k; }, params.seqlen_k,
                  key_coords);
    locate_tokens([](const relpos::Axis& axis) { return axis.size_q; }, params.seqlen_q,
                  query_coords);
    make();
    for (b = 0; b < params.batch; ++b)
      for (h = 0; h < params.heads; ++h)
        for (i = 0; i < params.seqlen_q; ++i) add_row();
    add_rounding();
  }

  Expected expected;

 private:
  const Case& c;
  const Params& params;
  std::vector<Pair> pairs;                            // of the current row
  std::vector<Sizes> key_coords, query_coords;        // along each axis; empty before the grid
  int64_t b = 0, h = 0, i = 0, g = 0, row = 0, position = 0;
  double tiles = 1, blocks = 1, weight_error;
  double product_terms;  // the error of a product, as so many roundings
  Number lse;

  // ---- sizes ----------------------------------------------------------------------------------

  template <class Size>
  void locate_tokens(Size size, int64_t count, std::vector<Sizes>& all) {
    all.resize((size_t)count);
    for (int64_t n = params.grid.prefix; params.grid.num_axes && n < count; ++n) {
      int64_t rest = n - params.grid.prefix;
      for (int axis = params.grid.num_axes; axis-- > 0; rest /= size(params.grid.axes[axis]))
        all[(size_t)n].insert(all[(size_t)n].begin(), rest % size(params.grid.axes[axis]));
    }
  }

  void make() {
    Expected& to = expected;
    const int64_t rows = params.batch * params.heads * params.seqlen_q;
    to.output.make(rows * params.value_dim), to.lse.make(rows);
    const auto make_wanted = [&](Sums& sums, int wanted, const Sizes& sizes) {
      if (c.wanted[wanted]) sums.make(product(sizes));
    };
    make_wanted(to.d_q, kQ, c.q.sizes);
    make_wanted(to.d_k, kK, c.k.sizes);
    make_wanted(to.d_v, kV, c.v.sizes);
    make_wanted(to.d_q_rel, kQRel, c.q_rel.sizes);
    make_wanted(to.d_mask, kMask, c.mask.sizes);
    for (int kind = 0; kind < kTableKinds; ++kind)
      make_wanted(to.d_tables[kind], kTables + kind, c.tables[kind].sizes);
    make_wanted(to.d_axis_tables, kAxisTables, c.axis_tables.sizes);
    make_wanted(to.d_joint_bias, kJointBias, c.joint_bias.sizes);
  }

  // How many roundings may happen to a term on its way into a sum: the numbers that are added up,
  // in runs (of keys, rows of a block, columns of a table) whose sums are added up again.
  void add_rounding() {
    Expected& to = expected;
    const double keys = (double)params.seqlen_k, rows = (double)params.seqlen_q + 64;
    const double heads = (double)(params.batch * params.heads);
    const double repeat = (double)params.heads_per_kv_head();
    const double to_q = (4 + 2 * params.grid.num_axes) * keys + 256 + product_terms;
    to.d_q.add_rounding(to_q), to.d_q_rel.add_rounding(to_q);
    to.d_k.add_rounding(repeat * blocks * 256 + product_terms);
    to.d_v.add_rounding(repeat * rows + 64 + product_terms);
    for (int kind = 0; kind < kTableKinds; ++kind)
      to.d_tables[kind].add_rounding((kind == kQueries ? heads * blocks * (keys + 128) + 256
                                                       : 2 * heads * rows + 2 * keys + 256) +
                                     product_terms);
    const double mask_size = (double)product(c.mask.sizes);
    to.d_mask.add_rounding(c.mask.present() ? heads * rows * keys / mask_size + 64 : 0);
    to.d_axis_tables.add_rounding(2 * heads * (rows + keys) + 256);
    to.d_joint_bias.add_rounding(heads * rows + 64);
  }

  // ---- scores ---------------------------------------------------------------------------------

  static double dot(const double* x, const double* y, int64_t width, double* size) {
    double sum = 0;
    for (int64_t n = 0; n < width; ++n) sum += x[n] * y[n], *size += std::fabs(x[n] * y[n]);
    return sum;
  }

  // The row of key j in k and v.
  int64_t key_row(int64_t j) const { return (b * params.kv_heads + g) * params.seqlen_k + j; }

  // The row of a table that offset j - i selects, counted through all heads; -1 for none.
  int64_t table_row(int kind, int64_t j) const {
    const relpos::OffsetTable& table = params.tables[kind];
    const int64_t at = j - position - table.first_offset, last = table.num_rows - 1;
    if (!c.tables[kind].present() || (table.zero_beyond && (at < 0 || at > last))) return -1;
    return (table.heads == 1 ? 0 : h) * table.num_rows + std::min(std::max<int64_t>(at, 0), last);
  }
  const double* table(int kind, int64_t j) const {
    const int64_t at = table_row(kind, j);
    return at < 0 ? nullptr : c.tables[kind].row(at);
  }

  int64_t mask_at(int64_t j) const {
    const Sizes& sizes = c.mask.sizes;
    const int64_t index[] = {b, h, i, j};
    int64_t at = 0;
    for (size_t n = 0; n < 4; ++n) at = at * sizes[n] + (sizes[n] == 1 ? 0 : index[n]);
    return at;
  }

  bool visible(int64_t j) const {
    if (params.causal && j > position) return false;
    if (!c.document_ids.empty()) {
      const relpos::Documents& documents = params.documents;
      const int32_t own = c.query_document_ids[(size_t)(b * documents.query_batch_stride + i)];
      if (own < 0 || c.document_ids[(size_t)(b * documents.batch_stride + j)] != own) return false;
    }
    if (!in_window(params.window, j - position)) return false;
    if (!c.ranges.empty()) {
      const int64_t* range = c.ranges.data() + b * params.key_ranges.batch_stride + 2 * i;
      if (j < range[0] || j >= range[1]) return false;
    }
    const Sizes &key = key_coords[(size_t)j], &query = query_coords[(size_t)i];
    for (size_t n = 0; n < std::min(key.size(), query.size()); ++n) {
      const relpos::Axis& axis = params.grid.axes[n];
      if (!in_window(axis.window, key[n] - query[n])) return false;
      if (!axis.ranges.ranges) continue;
      const int64_t* range = axis.ranges.ranges + b * axis.ranges.batch_stride + 2 * query[n];
      if (key[n] < range[0] || key[n] >= range[1]) return false;
    }
    if (!c.mask.present()) return true;
    const double mask = c.mask.numbers[(size_t)mask_at(j)];
    return c.mask.dtype == Dtype::boolean ? mask != 0 : mask != -kInfinity;
  }

  static bool in_window(const relpos::LocalWindow& window, int64_t offset) {
    return (window.left < 0 || -window.left <= offset) &&
           (window.right < 0 || offset <= window.right);
  }

  const double* q_rel() const { return c.q_rel.present() ? c.q_rel.row(row) : c.q.row(row); }
  int64_t q_rel_dim() const { return c.q_rel.present() ? params.rel_dim : params.head_dim; }

  static void add(Pair& pair, double term) { pair.score += term, pair.size += std::fabs(term); }

  void score(Pair& pair, int64_t j) const {
    const double* k = c.k.row(key_row(j));
    double size = 0, sum = dot(c.q.row(row), k, params.head_dim, &size);
    if (const double* keys = table(kKeys, j)) sum += dot(q_rel(), keys, q_rel_dim(), &size);
    if (const double* queries = table(kQueries, j)) sum += dot(k, queries, params.head_dim, &size);
    each_axis(j, [&](const AxisRows& rows) {
      if (rows.width) sum += dot(axis_q(rows), axis_row(rows.keys), rows.width, &size);
      if (rows.queries >= 0) sum += dot(k, axis_row(rows.queries), params.head_dim, &size);
    });
    pair.score = params.scale * sum, pair.size = std::fabs(params.scale) * size;
    if (const double* bias = table(kBias, j)) add(pair, *bias);
    each_axis(j, [&](const AxisRows& rows) {
      if (rows.bias >= 0) add(pair, *axis_row(rows.bias));
    });
    if (joint_bias_at(j) >= 0) add(pair, c.joint_bias.numbers[(size_t)joint_bias_at(j)]);
    if (params.softcap > 0) cap(pair);
    if (c.mask.present() && c.mask.dtype != Dtype::boolean)
      add(pair, c.mask.numbers[(size_t)mask_at(j)]);
  }

  // tanh is off by a few units, and its slope by what its argument is, at most twice.
  void cap(Pair& pair) const {
    const double softcap = params.softcap, x = pair.score / softcap, t = std::tanh(x);
    if (!std::isfinite(pair.score)) pair.size = 0;  // of a bias that was to hide the pair
    const double wrong = score_terms() * kUnit * pair.size / softcap;
    pair.slope = {1 - t * t, 2 * wrong + 16 * kUnit};
    pair.score = softcap * t, pair.size += std::fabs(pair.score);
  }

  // Roundings on the way to a score.
  double score_terms() const {
    return (double)((2 + 2 * params.grid.num_axes) * (params.head_dim + 2) + params.rel_dim) + 12 +
           product_terms;
  }

  // ---- coordinates on a grid ------------------------------------------------------------------

  // The rows that a pair selects along one axis: where they begin in the tables, -1 for none, and
  // where the axis's part of q_rel begins.
  struct AxisRows {
    int64_t width, keys, queries, bias, values, q_rel;
    bool has_q_rel;
  };

  const double* axis_row(int64_t at) const { return c.axis_tables.numbers.data() + at; }
  const double* axis_q(const AxisRows& rows) const {
    return rows.has_q_rel ? c.q_rel.row(row) + rows.q_rel : c.q.row(row);
  }

  // The row for coordinate x of `size` on a table's own side and y of `other` on the other.
  static int64_t axis_row(int64_t ratio, int64_t x, int64_t size, int64_t y, int64_t other) {
    if (ratio == 0) return x * other + y;
    if (size <= other) return y - ratio * x + ratio * (size - 1);
    // Of a coordinate `rest` after one that coincides with one of the other side.
    const int64_t rest = x % ratio, run = 2 * other - 1;
    return rest * run + (y - (x - rest) / ratio) + other - 1;
  }

  template <class Visit>
  void each_axis(int64_t j, Visit visit) const {
    const Sizes &key = key_coords[(size_t)j], &query = query_coords[(size_t)i];
    if (!c.axis_tables.present() || key.empty() || query.empty()) return;
    int64_t at = (params.grid.axis_table_heads == 1 ? 0 : h) * params.grid.axis_table_size;
    int64_t q_rel = 0;
    for (size_t n = 0; n < key.size(); ++n) {
      const relpos::Axis& axis = params.grid.axes[n];
      const int64_t number = axis_row(axis.ratio, query[n], axis.size_q, key[n], axis.size_k);
      AxisRows rows = {axis.key_dim, at + number * axis.key_dim, -1, -1, -1, q_rel,
                       axis.has_q_rel};
      at += axis.table_rows() * axis.key_dim;
      if (axis.has_queries) {
        const int64_t mirrored = axis_row(axis.ratio, key[n], axis.size_k, query[n], axis.size_q);
        rows.queries = at + mirrored * params.head_dim;
        at += axis.table_rows() * params.head_dim;
      }
      if (axis.has_bias) rows.bias = at + number, at += axis.table_rows();
      if (axis.has_values) {
        rows.values = at + number * params.value_dim;
        at += axis.table_rows() * params.value_dim;
      }
      visit(rows);
      q_rel += axis.has_q_rel ? axis.key_dim : 0;
    }
  }

  int64_t joint_bias_at(int64_t j) const {
    const Sizes &key = key_coords[(size_t)j], &query = query_coords[(size_t)i];
    if (!c.joint_bias.present() || key.empty() || query.empty()) return -1;
    int64_t at = params.grid.joint_bias_heads == 1 ? 0 : h;
    for (size_t axis = 0; axis < key.size(); ++axis)
      at = at * (2 * params.grid.axes[axis].size_k - 1) + key[axis] - query[axis] +
           params.grid.axes[axis].size_k - 1;
    return at;
  }

  // ---- one row --------------------------------------------------------------------------------

  void add_row() {
    g = h / params.heads_per_kv_head(), row = (b * params.heads + h) * params.seqlen_q + i;
    position = params.query_start + i;
    for (int64_t j = 0; j < params.seqlen_k; ++j) {
      Pair& pair = pairs[(size_t)j] = Pair();
      pair.seen = visible(j);
      if (!c.kept.empty())
        pair.dropout = c.kept[(size_t)(row * params.seqlen_k + j)] / kept_share();
      if (pair.seen) score(pair, j);
      pair.seen = pair.seen && pair.score != -kInfinity;
    }
    softmax();
    average();
    if (std::isfinite(lse.value)) differentiate();
  }

  double kept_share() const {
    return 1 - (double)(uint32_t)(params.dropout * 4294967296.0) / 4294967296.0;
  }

  // The weights. An exponential is off by 4 units at most, and has the error of its argument:
  // that of the score, and of the largest score so far, which each tile may replace.
  void softmax() {
    double row_max = -kInfinity, row_sum = 0, wrong = 0;
    for (const Pair& pair : pairs)
      if (pair.seen) row_max = std::max(row_max, pair.score);
    for (const Pair& pair : pairs)
      if (pair.seen) row_sum += std::exp(pair.score - row_max);
    lse = {row_sum > 0 ? row_max + std::log(row_sum) : -kInfinity, 0};
    for (Pair& pair : pairs) {
      if (!pair.seen) continue;
      const double slack =
          (score_terms() + tiles) * pair.size + (tiles + 4) * (std::fabs(row_max) + 5);
      pair.weight = exponential(pair.score - lse.value, kUnit * slack);
      wrong += pair.weight.error;
    }
    wrong += ((double)params.seqlen_k + 2 * tiles + 8) * kUnit;
    for (Pair& pair : pairs) {
      if (!pair.seen) continue;
      Number& weight = pair.weight;
      weight.error = wrong < 1 ? (weight.error + weight.value * wrong) / (1 - wrong) : kInfinity;
    }
    if (row_sum > 0) lse.error = wrong < 0.5 ? 2 * wrong : kInfinity;
    if (row_sum > 0) lse.error += 4 * kUnit * (std::fabs(row_max) + std::fabs(lse.value) + 1);
    expected.lse.add(row, lse);
  }

  // exp(x) of an x that is off by `slack`; what is below the smallest normal float may be lost.
  static Number exponential(double x, double slack) {
    const double value = std::exp(x);
    return {value, std::exp(x + slack) - value + 2e-38};
  }

  // With the error of rounding it.
  Number rounded(Number x) const {
    return {x.value, x.error + weight_error * x.magnitude()};
  }

  Number kept_weight(const Pair& pair) const {
    return rounded({pair.weight.value * pair.dropout, pair.weight.error * pair.dropout});
  }

  void average() {
    const int64_t width = params.value_dim;
    const double terms = (2 + 2 * params.grid.num_axes) * (double)params.seqlen_k + 2 * tiles + 32 +
                         product_terms;
    Sums sums;
    sums.make(width);
    for (int64_t j = 0; j < params.seqlen_k; ++j) {
      const Pair& pair = pairs[(size_t)j];
      if (!pair.seen) continue;
      const Number weight = kept_weight(pair);
      sums.add(0, weight, c.v.row(key_row(j)), width);
      if (const double* values = table(kValues, j)) sums.add(0, weight, values, width);
      each_axis(j, [&](const AxisRows& rows) {
        if (rows.values >= 0) sums.add(0, weight, axis_row(rows.values), width);
      });
    }
    sums.add_rounding(terms);
    copy(sums, expected.output, row * width);
  }

  static void copy(const Sums& from, Sums& to, int64_t at) {
    std::copy(from.value.begin(), from.value.end(), to.value.begin() + at);
    std::copy(from.error.begin(), from.error.end(), to.error.begin() + at);
    std::copy(from.size.begin(), from.size.end(), to.size.begin() + at);
  }

  // ---- gradients ------------------------------------------------------------------------------

  void differentiate_weight(Pair& pair, int64_t j) const {
    const double* d_output = c.d_output.row(row);
    const int64_t width = params.value_dim;
    double size = 0;
    double sum = dot(d_output, c.v.row(key_row(j)), width, &size);
    if (const double* values = table(kValues, j)) sum += dot(d_output, values, width, &size);
    each_axis(j, [&](const AxisRows& rows) {
      if (rows.values >= 0) sum += dot(d_output, axis_row(rows.values), width, &size);
    });
    pair.d_weight = sum * pair.dropout, pair.d_size = size * pair.dropout;
  }

  // dS needs the mean of dP, from the pairs or from the output as it was written: in both ways the
  // same terms.
  void differentiate() {
    const double terms =
        (double)((1 + params.grid.num_axes) * (params.value_dim + 2)) + 16 + product_terms;
    Sums mean;
    mean.make(1);
    for (int64_t j = 0; j < params.seqlen_k; ++j) {
      Pair& pair = pairs[(size_t)j];
      if (!pair.seen) continue;
      differentiate_weight(pair, j);
      mean.value[0] += pair.weight.value * pair.d_weight;
      mean.error[0] += rounded(pair.weight).error * pair.d_size;
      mean.size[0] += pair.weight.magnitude() * pair.d_size;
    }
    for (int64_t n = 0; n < params.value_dim; ++n) {
      const size_t at = (size_t)(row * params.value_dim + n);
      const Number output = {expected.output.value[at], expected.output.error[at]};
      const double unit = rounding(params.dtype);
      const double lost = c.keeps_rounded_off ? unit * unit : unit;
      mean.error[0] += std::fabs(c.d_output.numbers[at]) *
                       (lost * output.magnitude() + smallest(params.dtype));
    }
    if (c.d_lse.present()) mean.add(0, {-c.d_lse.numbers[(size_t)row], 0});
    mean.add_rounding(2 * (double)params.seqlen_k + 2 * tiles + terms + 32);
    for (int64_t j = 0; j < params.seqlen_k; ++j) {
      const Pair& pair = pairs[(size_t)j];
      if (!pair.seen) continue;
      const double difference = pair.d_weight - mean.value[0];
      const double wrong = terms * kUnit * (pair.d_size + mean.size[0]) + mean.error[0];
      const Number d_score = {pair.weight.value * difference,
                              pair.weight.error * (std::fabs(difference) + wrong) +
                                  pair.weight.value * wrong};
      to_values(j, kept_weight(pair));
      if (c.wanted[kMask]) expected.d_mask.add(mask_at(j), d_score);
      const Number d_x = {d_score.value * pair.slope.value,
                          d_score.error * pair.slope.magnitude() +
                              std::fabs(d_score.value) * pair.slope.error};
      to_vectors(j, rounded({d_x.value * params.scale, d_x.error * std::fabs(params.scale)}));
      to_scalars(j, d_x);
    }
  }

  void to_values(int64_t j, Number weight) {
    const int64_t width = params.value_dim, at = table_row(kValues, j);
    const double* d_output = c.d_output.row(row);
    Expected& to = expected;
    if (c.wanted[kV])
      to.d_v.add(key_row(j) * width, weight, d_output, width);
    if (c.wanted[kTables + kValues] && at >= 0)
      to.d_tables[kValues].add(at * width, weight, d_output, width);
    if (!c.wanted[kAxisTables]) return;
    each_axis(j, [&](const AxisRows& rows) {
      if (rows.values >= 0) to.d_axis_tables.add(rows.values, weight, d_output, width);
    });
  }

  void to_vectors(int64_t j, Number d_score) {
    Expected& to = expected;
    const int64_t width = params.head_dim, key = key_row(j);
    const int64_t at_keys = table_row(kKeys, j), at_queries = table_row(kQueries, j);
    if (c.wanted[kQ]) to.d_q.add(row * width, d_score, c.k.row(key), width);
    if (c.wanted[kK]) to.d_k.add(key * width, d_score, c.q.row(row), width);
    if (at_keys >= 0) {
      Sums& dq = c.q_rel.present() ? to.d_q_rel : to.d_q;
      const double* keys = c.tables[kKeys].row(at_keys);
      if (c.wanted[c.q_rel.present() ? kQRel : kQ])
        dq.add(row * q_rel_dim(), d_score, keys, q_rel_dim());
      if (c.wanted[kTables + kKeys])
        to.d_tables[kKeys].add(at_keys * q_rel_dim(), d_score, q_rel(), q_rel_dim());
    }
    each_axis(j, [&](const AxisRows& rows) {
      if (rows.queries >= 0 && c.wanted[kK])
        to.d_k.add(key * width, d_score, axis_row(rows.queries), width);
      if (rows.queries >= 0 && c.wanted[kAxisTables])
        to.d_axis_tables.add(rows.queries, d_score, c.k.row(key), width);
      if (rows.width == 0) return;
      Sums& dq = rows.has_q_rel ? to.d_q_rel : to.d_q;
      const int64_t first = rows.has_q_rel ? row * params.rel_dim + rows.q_rel : row * width;
      if (c.wanted[rows.has_q_rel ? kQRel : kQ])
        dq.add(first, d_score, axis_row(rows.keys), rows.width);
      if (c.wanted[kAxisTables])
        to.d_axis_tables.add(rows.keys, d_score, axis_q(rows), rows.width);
    });
    if (at_queries < 0) return;
    if (c.wanted[kK]) to.d_k.add(key * width, d_score, c.tables[kQueries].row(at_queries), width);
    if (c.wanted[kTables + kQueries])
      to.d_tables[kQueries].add(at_queries * width, d_score, c.k.row(key), width);
  }

  void to_scalars(int64_t j, Number d_score) {
    Expected& to = expected;
    if (c.wanted[kTables + kBias] && table_row(kBias, j) >= 0)
      to.d_tables[kBias].add(table_row(kBias, j), d_score);
    if (c.wanted[kAxisTables])
      each_axis(j, [&](const AxisRows& rows) {
        if (rows.bias >= 0) to.d_axis_tables.add(rows.bias, d_score);
      });
    if (c.wanted[kJointBias] && joint_bias_at(j) >= 0)
      to.d_joint_bias.add(joint_bias_at(j), d_score);
  }
};

}  // namespace fuzz
