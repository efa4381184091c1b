// How a call of few queries is cut up, and its memory.
//
// Its keys are cut into slices, so that all threads have work however few the heads are. An item of
// work is a slice and a head block: query heads that share a key/value head, with all their
// queries, read its keys together. Where all heads share the table of keys, a block has heads of
// several key/value heads, which read the table's rows together.
//
// The cuts follow from the call alone, and partial results are merged in the order of the keys: the
// numbers do not depend on the threads, nor on how many there are.
//
//     row          a query of an item: query i of the block's head n is row n * seqlen_q + i
//     head block   whole heads, of at most kBlockRows = 64 rows: some that share a key/value head,
//                  or all those of some key/value heads
//     slice        at most kSliceKeys = 1024 keys
#pragma once

#include <stdint.h>

#include "config.h"
#include "few_query_products.h"
#include "integers.h"
#include "params.h"
#include "plan.h"
#include "tile.h"

namespace relpos {
namespace {

constexpr int64_t kSliceKeys = 1024;
// Between rows of scores: as kTileStride is.
constexpr int64_t kSliceStride = kSliceKeys + 16;

// One item of work.
struct SliceItem {
  int64_t b;
  int64_t first_head, num_heads;  // query heads
  int64_t first_key, num_keys;
};

struct FewQueryPlan {
  const Params& params;
  int64_t padded_head_dim, padded_value_dim, padded_rel_dim;
  int64_t heads_per_block, heads_per_run, blocks_per_run;  // of heads that may be in one block
  int64_t first_key = 0, end_key = 0;  // no query sees others
  int64_t slice_keys, num_slices;

  explicit FewQueryPlan(const Params& p) : params(p) {
    padded_head_dim = round_up(p.head_dim, kLanes);
    padded_value_dim = round_up(p.value_dim, kLanes);
    padded_rel_dim = p.has_q_rel() ? round_up(p.rel_dim, kLanes) : padded_head_dim;
    cut_heads();
    bound_keys();
    const int64_t num_keys = end_key - first_key;
    num_slices = max(ceil_div(num_keys, kSliceKeys), 1);
    slice_keys = round_up(ceil_div(num_keys, num_slices), kLanes);
  }

  void cut_heads() {
    const int64_t group = params.heads_per_kv_head(), most = kBlockRows / params.seqlen_q;
    const bool shared = params.tables[kKeys].heads == 1 && 2 * group <= most;
    heads_per_run = shared ? params.heads : group;
    const int64_t unit = shared ? group : 1, units = heads_per_run / unit;
    heads_per_block = unit * ceil_div(units, ceil_div(units, most / unit));
    blocks_per_run = ceil_div(heads_per_run, heads_per_block);
  }

  void bound_keys() {
    bool any = false;
    for (int64_t b = 0; b < params.batch; ++b)
      for (int64_t i = 0; i < params.seqlen_q; ++i) {
        int64_t begin, end;
        bound_visible_keys(params, b, i, begin, end);
        if (begin >= end) continue;
        first_key = any ? min(first_key, begin) : begin;
        end_key = any ? max(end_key, end) : end;
        any = true;
      }
  }

  int64_t rows_per_block() const { return heads_per_block * params.seqlen_q; }
  int64_t runs() const { return params.heads / heads_per_run; }  // of a batch entry
  int64_t num_blocks() const { return params.batch * runs() * blocks_per_run; }
  int64_t num_items() const { return num_slices * num_blocks(); }
  double multiplications() const {
    return (double)params.num_rows() * (double)(end_key - first_key) *
           (double)(params.head_dim + params.value_dim);
  }

  SliceItem item(int64_t slice, int64_t block) const {
    const int64_t run = block / blocks_per_run, in_run = block % blocks_per_run * heads_per_block;
    SliceItem item;
    item.b = run / runs();
    item.first_head = run % runs() * heads_per_run + in_run;
    item.num_heads = min(heads_per_block, heads_per_run - in_run);
    item.first_key = first_key + slice * slice_keys;
    item.num_keys = min(slice_keys, end_key - item.first_key);
    return item;
  }
};

// One thread's memory.
struct FewQueryWorkspace {
  float* q;        // (rows_per_block, padded_head_dim), times scale
  float* q_rel;    // (rows_per_block, padded_rel_dim), likewise; q itself where there is none
  float* s;        // (rows_per_block, kSliceStride): scores, then p
  float* rows;     // (kValueChunk, the widest): rows as floats
  float* numbers;  // (kSliceKeys): a number for each key

  FewQueryWorkspace(const FewQueryPlan& plan, Arena& arena) {
    static_assert(kValueChunk >= kLanes && kValueChunk >= kNR, "room for either product's rows");
    const int64_t rows_per_block = plan.rows_per_block();
    q = arena.take(rows_per_block * plan.padded_head_dim);
    q_rel = plan.params.has_q_rel() ? arena.take(rows_per_block * plan.padded_rel_dim) : q;
    s = arena.take(rows_per_block * kSliceStride);
    rows = arena.take(kValueChunk * max(max(plan.padded_head_dim, plan.padded_value_dim),
                                        plan.padded_rel_dim));
    numbers = arena.take(kSliceKeys);
  }
};

// What the slices of a head block give, each for itself.
struct PartialResults {
  float* output;   // (num_items, rows_per_block, padded_value_dim): sums of p * v
  float* row_max;  // (num_items, rows_per_block)
  float* row_sum;  // (num_items, rows_per_block); 0 where a row sees no key of the slice

  PartialResults(const FewQueryPlan& plan, Arena& arena) {
    const int64_t rows = plan.num_items() * plan.rows_per_block();
    output = arena.take(rows * plan.padded_value_dim);
    row_max = arena.take(rows);
    row_sum = arena.take(rows);
  }
};

}  // namespace
}  // namespace relpos
