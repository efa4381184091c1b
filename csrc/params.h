// What one call of the op hands to a kernel: plain data, the same for every instruction set.
//
//     B, H, H_kv           batch, query heads, key/value heads (H a multiple of H_kv)
//     seqlen_q, seqlen_k   queries, keys
//     head_dim             of q and k
//     value_dim            of v and of the output
//     rel_dim              of q_rel, which is dotted with the table of keys in place of q
//
// "(H or 1, ...)": one for each head, or one that all heads share.
#pragma once

#include <stdint.h>

namespace relpos {

enum class Dtype : int { f32, bf16, f16, boolean };

// A tensor (B, H, L, D), D contiguous, or (B, H, L); strides count elements, 0 along a broadcast
// axis.
template <class Data>
struct View {
  Data* data = nullptr;
  int64_t strides[3] = {0, 0, 0};

  bool present() const { return data != nullptr; }
  // Where that row begins, in elements.
  int64_t row_start(int64_t b, int64_t h, int64_t row) const {
    return b * strides[0] + h * strides[1] + row * strides[2];
  }
};
typedef View<const void> TensorView;
typedef View<void> ResultView;

// The tables of a call, by the term that they make (see relpos.Terms):
//
//     kKeys      scale * q_i . K[j-i]   (q_rel_i in place of q_i where there is one)
//     kQueries   scale * k_j . Q[j-i]
//     kBias      B[j-i]
//     kValues    v_j + V[j-i] in place of v_j
enum TableKind { kKeys, kQueries, kBias, kValues, kTableKinds };

// Row n belongs to the offset (key position - query position) first_offset + n; see
// relpos.OffsetTable.
struct OffsetTable {
  const void* rows = nullptr;  // (heads, num_rows, row_dim)
  int64_t heads = 0;           // H or 1
  int64_t num_rows = 0;
  int64_t row_dim = 0;         // 1 for a bias
  int64_t first_offset = 0;
  bool zero_beyond = false;    // beyond its ends: zeros, in place of the end row

  bool present() const { return rows != nullptr; }
  // Which of its `heads` belongs to a query head.
  int64_t head_index(int64_t head) const { return heads == 1 ? 0 : head; }
};

// Local attention: only pairs at the offsets -left..right take part. Negative: no limit there.
struct LocalWindow {
  int64_t left = -1, right = -1;

  bool limited() const { return left >= 0 || right >= 0; }
  // Cut the positions begin..end-1 to those that the query at `position` sees.
  void limit(int64_t position, int64_t& begin, int64_t& end) const {
    if (left >= 0 && begin < position - left) begin = position - left;
    if (right >= 0 && end > position + right + 1) end = position + right + 1;
  }
};

// The keys begin..end-1 that each query sees, in any order; empty where end <= begin. On an axis of
// a grid the same of coordinates.
struct KeyRanges {
  const int64_t* ranges = nullptr;  // (B or 1, seqlen_q, 2): begin, end
  int64_t batch_stride = 0;         // numbers of an entry, or 0 where all have the same

  void limit(int64_t b, int64_t i, int64_t& begin, int64_t& end) const {
    const int64_t* const range = ranges + b * batch_stride + 2 * i;
    if (begin < range[0]) begin = range[0];
    if (end > range[1]) end = range[1];
  }
};

constexpr int kMaxAxes = 8;  // _MAX_AXES in ops/native/entry.py

// One axis of a grid of tokens, and which tables it has. A token selects a run of a table's rows, one
// for each coordinate of the other side: queries from those of keys, bias and values, keys from that
// of queries. With u coordinates on its side and v on the other, the run of a token at x begins at
//
//     v = n u     n (u - 1 - x)                         there is a row for each offset
//     u = n v     (x mod n) (2 v - 1) + v - 1 - x / n   likewise: first the offsets of the tokens 0,
//                                                       n, 2 n, ..., then of 1, n + 1, ... and so on
//     else        x v                                   there is a row for each pair of coordinates
struct Axis {
  int64_t size_k = 1, size_q = 1;  // coordinates of keys, of queries
  int64_t ratio = 1;               // n; 0 where there is a row for each pair
  int64_t key_dim = 0;             // of the rows of its table of keys; 0: it has none
  bool has_q_rel = false;          // its table of keys is dotted with its part of q_rel, not q
  bool has_queries = false, has_bias = false, has_values = false;
  LocalWindow window;              // of coordinates, where size_k is size_q
  KeyRanges ranges;                // the coordinates of keys that each coord_q sees

  void set_sizes(int64_t keys, int64_t queries) {
    size_k = keys, size_q = queries;
    const int64_t finer = keys > queries ? keys : queries, coarser = keys + queries - finer;
    ratio = coarser && finer % coarser == 0 ? finer / coarser : 0;
  }
  int64_t table_rows() const {
    return ratio ? 2 * (size_k > size_q ? size_k : size_q) - ratio : size_q * size_k;
  }
  int64_t first_table_row(int64_t coord_q) const { return first_row(coord_q, size_q, size_k); }
  int64_t first_row_of_queries(int64_t coord_k) const { return first_row(coord_k, size_k, size_q); }
  // Tokens of a line along this axis whose runs overlap are so many apart.
  int64_t step_of_queries() const { return size_q > size_k && ratio ? ratio : 1; }
  int64_t step_of_keys() const { return size_k > size_q && ratio ? ratio : 1; }
  // Of a token at x, of `own` coordinates, among rows for `other` ones.
  int64_t first_row(int64_t x, int64_t own, int64_t other) const {
    if (ratio == 0) return x * other;
    if (own <= other) return ratio * (own - 1 - x);
    return x % ratio * (2 * other - 1) + other - 1 - x / ratio;
  }
};

// A grid of tokens in row-major order, after `prefix` tokens that are on none. Its terms are in
// float32.
struct Grid {
  int num_axes = 0;  // 0: the tokens are a line
  Axis axes[kMaxAxes];
  int64_t prefix = 0;
  bool is_local = false;  // whether any axis has a window or ranges
  int64_t sum_size_k = 0;  // over the axes
  // (axis_table_heads, axis_table_size): for each axis in turn its rows of keys (table_rows,
  // key_dim), of queries (table_rows, head_dim), of bias (table_rows), of values (table_rows,
  // value_dim).
  const float* axis_tables = nullptr;
  int64_t axis_table_heads = 0;  // H or 1
  int64_t axis_table_size = 0;
  // (joint_bias_heads, joint_bias_size): a bias for each combination of the axes' offsets.
  const float* joint_bias = nullptr;
  int64_t joint_bias_heads = 0;  // H or 1
  int64_t joint_bias_size = 0;

  int64_t axis_table_head(int64_t head) const { return axis_table_heads == 1 ? 0 : head; }
  int64_t joint_bias_head(int64_t head) const { return joint_bias_heads == 1 ? 0 : head; }
};

// (B, H, seqlen_q, seqlen_k), broadcast along axes of stride 0: true where a pair takes part, or a
// number that is added to its score.
struct Mask {
  const void* data = nullptr;
  Dtype dtype = Dtype::boolean;
  int64_t strides[4] = {0, 0, 0, 0};
};

// Packed documents. The keys of a query's document lie in key_begin..key_end-1; where documents
// are interleaved, others lie there too, and ids are compared.
struct Documents {
  const int32_t* ids = nullptr;        // (B or 1, seqlen_k), negative for keys of no document
  const int32_t* query_ids = nullptr;  // (B or 1, seqlen_q), negative for queries without a key
  const int64_t* key_begin = nullptr;  // (B or 1, seqlen_q)
  const int64_t* key_end = nullptr;    // (B or 1, seqlen_q)
  int64_t batch_stride = 0;            // seqlen_k, or 0 where all batch entries have the same
  int64_t query_batch_stride = 0;      // seqlen_q, or 0 likewise
  bool interleaved = false;
};

// Where a call's heads, queries and keys lie in a larger one of which it is a part, so that dropout
// draws for each pair what it would draw there.
struct DropoutOrigin {
  int64_t heads, first_head;    // query heads of the larger call
  int64_t queries, first_query;
  int64_t first_key;
};

// Where backward writes; null where a gradient is not wanted. Shapes are those of the inputs, and
// what has no strides is contiguous.
struct Gradients {
  ResultView q;      // (B, H, seqlen_q, head_dim)
  ResultView k;      // (B, H_kv, seqlen_k, head_dim)
  ResultView v;      // (B, H_kv, seqlen_k, value_dim)
  ResultView q_rel;  // (B, H, seqlen_q, rel_dim)
  void* tables[kTableKinds] = {};      // each (H or 1, num_rows, row_dim)
  float* mask = nullptr;               // of the mask's own sizes; zeros before the call
  int64_t mask_strides[4] = {0, 0, 0, 0};  // of that gradient, 0 along axes of size 1
  float* axis_tables = nullptr;  // (H or 1, axis_table_size)
  float* joint_bias = nullptr;   // (H or 1, joint_bias_size); zeros before the call
};

struct Params {
  int64_t batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, value_dim;
  int64_t rel_dim;  // 0 without q_rel; on a grid the parts of its axes lie side by side
  Dtype dtype;      // of q, k, v, q_rel, the tables, the output, and the gradients of these
  bool split_float32 = false;  // whether products may be of floats split into bfloat16 numbers
  TensorView q;      // (B, H, seqlen_q, head_dim)
  TensorView k;      // (B, H_kv, seqlen_k, head_dim)
  TensorView v;      // (B, H_kv, seqlen_k, value_dim)
  TensorView q_rel;  // (B, H, seqlen_q, rel_dim)
  OffsetTable tables[kTableKinds];  // none on a grid
  Mask mask;
  Grid grid;
  Documents documents;
  KeyRanges key_ranges;
  LocalWindow window;  // of a line of tokens; those of a grid belong to its axes
  bool causal;
  float scale;
  float softcap = 0;    // c of c * tanh(score / c), before the mask; 0: none
  int64_t query_start;  // position of query 0; key j has position j
  uint64_t seed;        // of dropout
  double dropout;       // probability that a weight is dropped
  DropoutOrigin dropout_origin;

  // Whether rows have other keys too. Backward then goes by row_max, row_sum and output alone, which
  // are those over all keys.
  bool has_other_keys = false;

  // Written by forward, read by backward. Of the softmax of a row both numbers are kept, in float32:
  // of the log-sum-exp alone, the rounding would be an error of each weight exp(s - lse).
  ResultView output;         // (B, H, seqlen_q, value_dim), of the dtype above
  ResultView rounded_off;    // likewise: what rounding took off (output_row.h); may be absent
  float* row_max = nullptr;  // (B, H, seqlen_q), -inf where a row has no key
  float* row_sum = nullptr;  // (B, H, seqlen_q), of exp(score - row_max)

  float* lse = nullptr;      // (B, H, seqlen_q), log-sum-exp; for the caller alone

  // Read by backward; d_lse, in float32, may be absent.
  TensorView d_output;       // (B, H, seqlen_q, value_dim), of the dtype above
  TensorView d_lse;          // (B, H, seqlen_q)
  Gradients gradients;

  int64_t heads_per_kv_head() const { return heads / kv_heads; }
  // By its size: an empty tensor has no data.
  bool has_q_rel() const { return rel_dim > 0; }
  // The rows of row_max, row_sum and lse, and the number of a query's row among them.
  int64_t num_rows() const { return batch * heads * seqlen_q; }
  int64_t row_index(int64_t b, int64_t h, int64_t i) const {
    return (b * heads + h) * seqlen_q + i;
  }
  // That of a query's row in the larger call.
  int64_t dropout_row_index(int64_t b, int64_t h, int64_t i) const {
    const DropoutOrigin& origin = dropout_origin;
    return (b * origin.heads + origin.first_head + h) * origin.queries + origin.first_query + i;
  }
};

}  // namespace relpos
