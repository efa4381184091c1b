// What one call of the op hands to a kernel: plain data, the same for every instruction set.
#pragma once

#include <stdint.h>

namespace relpos {

enum class Dtype : int { f32, bf16, f16, boolean };

// A tensor whose last axis is contiguous; strides count elements, 0 along a broadcast axis.
struct View {
  const void* data = nullptr;
  int64_t strides[3] = {0, 0, 0};

  bool present() const { return data != nullptr; }
};

// A table of `count` rows for the offsets `first, first + 1, ...` (see relpos.OffsetTable).
struct Table {
  const void* rows = nullptr;
  int64_t heads = 0;  // 1 where all heads share it
  int64_t count = 0;
  int64_t width = 0;  // 1 for a bias
  int64_t first = 0;
  bool zero = false;  // beyond its ends: nothing, in place of the end row

  bool present() const { return rows != nullptr; }
};

enum Kind { kKeys, kQueries, kBias, kValues, kKinds };

constexpr int kMostAxes = 8;

// One axis of a grid of tokens. Its tables have a row for each offset that places can meet, from
// 1 - keys on; or, where the queries have other places than the keys, one for each pair of places.
struct Axis {
  int64_t keys = 1, queries = 1;  // places
  int64_t key_width = 0;          // of the rows that meet a query; 0 without
  bool own_p = false;             // they meet a part of q_rel in place of q
  bool bias = false, values = false;

  int64_t rows() const { return keys == queries ? 2 * keys - 1 : queries * keys; }
  // The row of the keys' place 0 for a place of the queries; the other places follow.
  int64_t start(int64_t place) const { return keys == queries ? keys - 1 - place : place * keys; }
};

// A grid of tokens, and its terms, in float32.
struct Grid {
  int count = 0;  // of axes; 0: the tokens are a line
  Axis axes[kMostAxes];
  int64_t prefix = 0;
  int64_t width = 0;        // places of the keys, all axes together
  int64_t query_width = 0;  // places of the queries
  // (heads or 1, table_count): of each axis in turn the rows of keys, of bias and of values.
  const float* tables = nullptr;
  int64_t table_heads = 0;
  int64_t table_count = 0;
  View by_query;            // (b, h, query_width, j): what keys say to places of the queries
  const float* joint = nullptr;  // (heads or 1, joint_count)
  int64_t joint_heads = 0;
  int64_t joint_count = 0;
};

struct Mask {
  const void* data = nullptr;
  Dtype dtype = Dtype::boolean;
  int64_t strides[4] = {0, 0, 0, 0};
};

// The keys that each query may meet by its document: begin..end-1, and there, where documents are
// mixed, those of the same number.
struct Documents {
  const int32_t* numbers = nullptr;  // (b or 1, j), below 0 for none
  const int64_t* begin = nullptr;    // (b or 1, j)
  const int64_t* end = nullptr;
  int64_t stride = 0;
  bool mixed = false;
};

struct Gradients {
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  void* q_rel = nullptr;
  void* tables[kKinds] = {};
  float* mask = nullptr;  // of the mask's own sizes, zeros
  int64_t mask_strides[4] = {0, 0, 0, 0};
  // Of the grid:
  float* grid_tables = nullptr;  // (heads or 1, table_count)
  float* by_query = nullptr;     // (b, h, query_width, j), zeros
  float* joint = nullptr;        // (heads or 1, joint_count), zeros
};

struct Call {
  int64_t batch, heads, groups, queries, keys, width, value_width;
  int64_t rel_width;  // of q_rel, with a grid those of its axes side by side; 0 without
  Dtype dtype;  // of q, k, v, q_rel, the tables, and all that belongs to them
  View q, k, v, q_rel;
  Table tables[kKinds];  // none with a grid
  Mask mask;
  Grid grid;
  Documents documents;
  bool causal;
  float scale;
  int64_t start;    // position of query 0
  uint64_t seed;
  double dropout;

  // Written by forward, read by backward, all in float32. A row's softmax is its largest score and
  // the sum of exp(score - that): the log-sum-exp alone would round each weight by its own ulp.
  float* output = nullptr;  // (b, h, i, dv)
  float* most = nullptr;    // (b, h, i), -inf where a row has no key
  float* total = nullptr;   // (b, h, i)

  float* lse = nullptr;     // (b, h, i); for the caller alone

  // Backward, in float32; the last may be absent.
  View d_output;            // (b, h, i, dv)
  View d_lse;               // (b, h, i)
  Gradients gradients;

  int64_t repeat() const { return heads / groups; }
  // Whether q_rel meets tables of keys in place of q. (An empty tensor has no data.)
  bool own_p() const { return rel_width > 0; }
};

// What a kernel needs of its host.
struct Host {
  int threads;
  // Calls body(context, n) for n = 0..count-1, on at most `threads` threads.
  void (*parallel)(int64_t count, void (*body)(void* context, int64_t n), void* context);
  // 64-byte aligned memory; null if there is none. `release` takes null too.
  void* (*allocate)(uint64_t bytes);
  void (*release)(void* memory);
};

struct Kernel {
  const char* name;
  // Both return false if there is no memory.
  bool (*forward)(const Call&, const Host&);
  bool (*backward)(const Call&, const Host&);
};

const Kernel* portable_kernel();
const Kernel* avx2_kernel();    // null where it was not compiled
const Kernel* avx512_kernel();  // likewise

}  // namespace relpos
