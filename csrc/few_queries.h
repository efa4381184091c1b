// Forward of few queries, as in a step of decoding: one item of work, a slice of keys for the heads
// that share them (few_query_plan.h).
//
// Time is that of reading the keys and values from memory, once, so nothing is packed or copied:
// scores are dot products with rows as they lie, and rows of values are added up, weighted. The
// scores of a slice are all there before their softmax.
//
//     work.s    (rows, kSliceStride): scores, then p = exp(s - row_max), by key of the slice
//     Element   of the tensors and tables: float, Bf16 or F16
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "few_query_plan.h"
#include "few_query_products.h"
#include "gemm.h"
#include "integers.h"
#include "mask.h"
#include "params.h"
#include "simd.h"
#include "tile.h"

namespace relpos {
namespace {

// Which keys of a slice select which rows of a table, for one query: those before `from` its left
// end, those from `to` on its right end; between them key n selects row n - first.
struct TableSpan {
  int64_t first, from, to;

  TableSpan(const OffsetTable& table, int64_t position, const SliceItem& slice)
      : first(position + table.first_offset - slice.first_key),
        from(clamp(first, 0, slice.num_keys)),
        to(clamp(first + table.num_rows, 0, slice.num_keys)) {}
};

template <class Element>
struct FewQueries {
  const FewQueryPlan& plan;
  const Params& params;
  FewQueryWorkspace work;
  SliceItem slice = {};
  int64_t num_rows = 0;
  // Row r sees keys of key_from[r]..key_to[r]-1 of the slice alone.
  int64_t key_from[kBlockRows], key_to[kBlockRows];

  FewQueries(const FewQueryPlan& p, FewQueryWorkspace w) : plan(p), params(p.params), work(w) {}

  // output (rows, padded_value_dim), row_max and row_sum (rows): as in PartialResults.
  void run(const SliceItem& item, float* output, float* row_max, float* row_sum) {
    slice = item, num_rows = item.num_heads * params.seqlen_q;
    if (!limit_keys()) return fill(row_sum, num_rows, 0);
    read_queries(params.q, params.head_dim, plan.padded_head_dim, work.q);
    if (params.has_q_rel())
      read_queries(params.q_rel, params.rel_dim, plan.padded_rel_dim, work.q_rel);
    each_kv_head([&](int64_t kv_head, int64_t n, int64_t count) {
      multiply_by_rows(rows_of_heads(work.q, plan.padded_head_dim, n, count),
                       slice_rows(params.k, kv_head, params.head_dim),
                       rows_of_heads(work.s, kSliceStride, n, count), work.rows);
    });
    if (params.tables[kKeys].present()) add_keys_table();
    if (params.tables[kBias].present()) add_bias_table();
    for (int64_t r = 0; r < num_rows; ++r) {
      float* x = work.s + r * kSliceStride;
      if (params.softcap) cap(x);
      if (params.mask.data)
        add_mask_row(params.mask, slice.b, head(r), query(r), slice.first_key, slice.num_keys, x,
                     work.numbers);
      hide_unseen(r, x);
      softmax(x, row_max[r], row_sum[r]);
    }
    fill(output, num_rows * plan.padded_value_dim, 0);
    each_kv_head([&](int64_t kv_head, int64_t n, int64_t count) {
      add_weighted_rows(rows_of_heads(work.s, kSliceStride, n, count),
                        slice_rows(params.v, kv_head, params.value_dim),
                        rows_of_heads(output, plan.padded_value_dim, n, count), work.rows);
    });
    if (params.tables[kValues].present()) add_values_table(output);
  }

  // ---- rows -----------------------------------------------------------------------------------

  int64_t head(int64_t r) const { return slice.first_head + r / params.seqlen_q; }
  int64_t query(int64_t r) const { return r % params.seqlen_q; }
  int64_t position(int64_t i) const { return params.query_start + i; }
  int64_t vector_keys() const { return round_up(slice.num_keys, kLanes); }

  // Of `count` heads, from the block's head n on.
  FloatRows rows_of_heads(float* data, int64_t stride, int64_t n, int64_t count) const {
    return {data + n * params.seqlen_q * stride, stride, count * params.seqlen_q};
  }
  // Query i of `count` heads, from the block's head n on.
  FloatRows rows_of_query(float* data, int64_t stride, int64_t n, int64_t i, int64_t count) const {
    return {data + (n * params.seqlen_q + i) * stride, params.seqlen_q * stride, count};
  }

  // visit(kv_head, n, count): the block's heads n..n+count-1 share that key/value head.
  template <class Visit>
  void each_kv_head(const Visit& visit) const {
    const int64_t group = params.heads_per_kv_head();
    for (int64_t n = 0, count; n < slice.num_heads; n += count) {
      count = min(slice.num_heads - n, group);
      visit((slice.first_head + n) / group, n, count);
    }
  }

  RowsInPlace<Element> slice_rows(const TensorView& x, int64_t kv_head, int64_t dim) const {
    return {x.data, x.row_start(slice.b, kv_head, slice.first_key), x.strides[2], slice.num_keys,
            dim};
  }
  // Of a head's table, those from `row` on.
  RowsInPlace<Element> table_rows(const OffsetTable& table, int64_t of_head, int64_t row,
                                  int64_t count) const {
    return {table.rows, (table.head_index(of_head) * table.num_rows + row) * table.row_dim,
            table.row_dim, count, table.row_dim};
  }

  void read_queries(const TensorView& x, int64_t dim, int64_t padded_dim, float* to) const {
    for (int64_t r = 0; r < num_rows; ++r, to += padded_dim) {
      convert_to_float(x.data, params.dtype, x.row_start(slice.b, head(r), query(r)), dim,
                       params.scale, to);
      fill(to + dim, padded_dim - dim, 0);
    }
  }

  // ---- which keys -----------------------------------------------------------------------------

  // Cut the slice to the keys that some row sees; false if there are none.
  bool limit_keys() {
    int64_t from = slice.num_keys, to = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      int64_t begin, end;
      bound_visible_keys(params, slice.b, query(r), begin, end);
      key_from[r] = clamp(begin - slice.first_key, 0, slice.num_keys);
      key_to[r] = clamp(end - slice.first_key, 0, slice.num_keys);
      if (key_from[r] >= key_to[r]) continue;
      from = min(from, key_from[r]), to = max(to, key_to[r]);
    }
    if (from >= to) return false;
    for (int64_t r = 0; r < num_rows; ++r) {
      key_from[r] = clamp(key_from[r] - from, 0, to - from);
      key_to[r] = clamp(key_to[r] - from, 0, to - from);
    }
    slice.first_key += from, slice.num_keys = to - from;
    return true;
  }

  // -inf for the keys that a row does not see, and for the rest of the last vector.
  void hide_unseen(int64_t r, float* x) const {
    const Documents& documents = params.documents;
    if (documents.ids && documents.interleaved) {
      const int32_t* ids = documents.ids + slice.b * documents.batch_stride;
      const int32_t own =
          documents.query_ids[slice.b * documents.query_batch_stride + query(r)];
      for (int64_t n = key_from[r]; n < key_to[r]; ++n)
        x[n] = ids[slice.first_key + n] == own ? x[n] : -kInfinity;
    }
    fill(x, key_from[r], -kInfinity);
    fill(x + key_to[r], vector_keys() - key_to[r], -kInfinity);
  }

  // ---- scores ---------------------------------------------------------------------------------

  // visit(n, i, count): for each query i, `count` heads from the block's head n on that read the
  // same rows of a table.
  template <class Visit>
  void each_table_reader(const OffsetTable& table, const Visit& visit) const {
    const int64_t together = table.heads == 1 ? slice.num_heads : 1;
    for (int64_t i = 0; i < params.seqlen_q; ++i)
      for (int64_t n = 0; n < slice.num_heads; n += together) visit(n, i, together);
  }

  // visit(row, from, to): the keys from..to-1 that select one end of a table, which is that row.
  template <class Visit>
  void each_end(const OffsetTable& table, const TableSpan& span, const Visit& visit) const {
    if (table.zero_beyond) return;
    if (span.from > 0) visit(0, 0, span.from);
    if (span.to < slice.num_keys) visit(table.num_rows - 1, span.to, slice.num_keys);
  }

  // += q_rel . K[j-i]
  void add_keys_table() {
    const OffsetTable& table = params.tables[kKeys];
    const int64_t together = table.heads == 1 ? slice.num_heads : 1;
    for (int64_t n = 0; n < slice.num_heads; n += together) add_band(table, n, together);
    each_table_reader(table, [&](int64_t n, int64_t i, int64_t count) {
      const TableSpan span(table, position(i), slice);
      const FloatRows q_rel = rows_of_query(work.q_rel, plan.padded_rel_dim, n, i, count);
      const FloatRows scores = rows_of_query(work.s, kSliceStride, n, i, count);
      each_end(table, span, [&](int64_t row, int64_t from, int64_t to) {
        table_rows(table, slice.first_head + n, row, 1).copy(0, 1, work.rows);
        for (int64_t r = 0; r < count; ++r)
          add_constant(scores.row(r) + from, to - from,
                       dot(q_rel.row(r), work.rows, plan.padded_rel_dim));
      });
    });
  }

  // On the table's rows, which all queries of `count` heads read together, from the block's head n
  // on.
  void add_band(const OffsetTable& table, int64_t n, int64_t count) {
    const int64_t first_key = TableSpan(table, position(0), slice).first;
    const int64_t from = max(1 - first_key - params.seqlen_q, 0);
    const int64_t to = min(slice.num_keys - first_key, table.num_rows);
    if (from >= to) return;
    Shear shear;
    shear.num_keys = slice.num_keys;
    for (int64_t r = 0; r < count * params.seqlen_q; ++r)
      shear.first_key[r] = first_key + from + query(r);
    add_sheared_products(rows_of_heads(work.q_rel, plan.padded_rel_dim, n, count),
                         table_rows(table, slice.first_head + n, from, to - from),
                         rows_of_heads(work.s, kSliceStride, n, count), shear, work.rows);
  }

  // += B[j-i]
  void add_bias_table() {
    const OffsetTable& table = params.tables[kBias];
    each_table_reader(table, [&](int64_t n, int64_t i, int64_t count) {
      const TableSpan span(table, position(i), slice);
      const int64_t first_row = table.head_index(slice.first_head + n) * table.num_rows;
      const FloatRows scores = rows_of_query(work.s, kSliceStride, n, i, count);
      if (span.from < span.to) {
        convert_to_float(table.rows, params.dtype, first_row + span.from - span.first,
                         span.to - span.from, 1, work.numbers);
        for (int64_t r = 0; r < count; ++r)
          add_to(span.to - span.from, work.numbers, scores.row(r) + span.from);
      }
      each_end(table, span, [&](int64_t row, int64_t from, int64_t to) {
        convert_to_float(table.rows, params.dtype, first_row + row, 1, 1, work.numbers);
        for (int64_t r = 0; r < count; ++r)
          add_constant(scores.row(r) + from, to - from, work.numbers[0]);
      });
    });
  }

  static void add_constant(float* x, int64_t count, float constant) {
    for (int64_t n = 0; n < count; ++n) x[n] += constant;
  }

  // Scores x become c * tanh(x / c).
  void cap(float* x) const {
    const vfloat softcap = broadcast(params.softcap);
    vfloat derivative;
    for (int64_t n = 0; n < vector_keys(); n += kLanes)
      store(x + n, softcap * hyperbolic_tangent(load(x + n) / softcap, derivative));
  }

  // ---- weights --------------------------------------------------------------------------------

  // A row's scores become p; 0 for the keys that it does not see.
  void softmax(float* x, float& row_max, float& row_sum) const {
    vfloat lane_max = broadcast(-kInfinity);
    for (int64_t n = 0; n < vector_keys(); n += kLanes) lane_max = maximum(load(x + n), lane_max);
    row_max = horizontal_max(lane_max), row_sum = 0;
    if (!(row_max > -kInfinity)) {
      // The row has no key here, unless there are NaN, which the maximum does not show.
      if (!any_nan(x, vector_keys())) return fill(x, vector_keys(), 0);
      row_max = __builtin_nanf("");
    }
    const vfloat base = broadcast(row_max);
    vfloat sum = {};
    for (int64_t n = 0; n < vector_keys(); n += kLanes) {
      const vfloat p = exponential(load(x + n) - base);
      sum += p;
      store(x + n, p);
    }
    row_sum = horizontal_sum(sum);
  }

  // output += p V[j-i]
  void add_values_table(float* output) {
    const OffsetTable& table = params.tables[kValues];
    each_table_reader(table, [&](int64_t n, int64_t i, int64_t count) {
      const TableSpan span(table, position(i), slice);
      const int64_t of_head = slice.first_head + n;
      const FloatRows p = rows_of_query(work.s, kSliceStride, n, i, count);
      const FloatRows out = rows_of_query(output, plan.padded_value_dim, n, i, count);
      if (span.from < span.to)
        add_weighted_rows({p.data + span.from, p.stride, count},
                          table_rows(table, of_head, span.from - span.first, span.to - span.from),
                          out, work.rows);
      each_end(table, span, [&](int64_t row, int64_t from, int64_t to) {
        table_rows(table, of_head, row, 1).copy(0, 1, work.rows);
        for (int64_t r = 0; r < count; ++r) {
          float sum = 0;
          for (int64_t key = from; key < to; ++key) sum += p.row(r)[key];
          if (sum != 0) add_scaled(plan.padded_value_dim, sum, work.rows, out.row(r));
        }
      });
    });
  }
};

}  // namespace
}  // namespace relpos
