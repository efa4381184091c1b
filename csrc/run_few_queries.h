// Forward of a whole call of few queries: slices of keys handed out to the threads, and the merging
// of what they give (few_query_plan.h).
#pragma once

#include <stdint.h>

#include "config.h"
#include "convert.h"
#include "elements.h"
#include "few_queries.h"
#include "few_query_plan.h"
#include "gemm.h"
#include "kernel.h"
#include "output_row.h"
#include "params.h"
#include "plan.h"
#include "simd.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

// Others go the way of all calls.
inline bool takes_few_queries(const Params& params) {
  return params.seqlen_q <= kFewQueries && !params.grid.num_axes &&
         !params.tables[kQueries].present() && params.dropout == 0;
}

template <class Element>
struct FewQueryTasks {
  const FewQueryPlan& plan;
  PartialResults partial;
  char* workspaces;         // of all threads
  int64_t workspace_bytes;
  int64_t* slices_done;     // (num_blocks)
  int64_t next_item;        // that nobody has taken

  static void run_thread(void* context, int64_t thread) {
    FewQueryTasks& tasks = *(FewQueryTasks*)context;
    const FewQueryPlan& plan = tasks.plan;
    Arena arena{tasks.workspaces + thread * tasks.workspace_bytes, 0};
    FewQueries<Element> queries(plan, FewQueryWorkspace(plan, arena));
    for (;;) {
      const int64_t number = __atomic_fetch_add(&tasks.next_item, 1, __ATOMIC_RELAXED);
      if (number >= plan.num_items()) return;
      const int64_t block = number % plan.num_blocks();
      const int64_t row = number * plan.rows_per_block();
      queries.run(plan.item(number / plan.num_blocks(), block),
                  tasks.partial.output + row * plan.padded_value_dim, tasks.partial.row_max + row,
                  tasks.partial.row_sum + row);
      // Whoever is the last one merges.
      if (__atomic_add_fetch(&tasks.slices_done[block], 1, __ATOMIC_ACQ_REL) == plan.num_slices)
        tasks.merge(block);
    }
  }

  // Where the row of a head block lies in a slice's results.
  int64_t partial_row(int64_t slice, int64_t block, int64_t r) const {
    return (slice * plan.num_blocks() + block) * plan.rows_per_block() + r;
  }

  void merge(int64_t block) const {
    const SliceItem item = plan.item(0, block);
    const int64_t seqlen_q = plan.params.seqlen_q;
    for (int64_t r = 0; r < item.num_heads * seqlen_q; ++r)
      merge_row(block, r, item.b, item.first_head + r / seqlen_q, r % seqlen_q);
  }

  // What the slices give of one row, relative to the largest score of all, in the first one's place.
  void merge_row(int64_t block, int64_t r, int64_t b, int64_t h, int64_t i) const {
    const Params& params = plan.params;
    const int64_t row = params.row_index(b, h, i);
    const int64_t dim = plan.padded_value_dim;
    float row_max = -kInfinity, row_sum = 0;
    for (int64_t slice = 0; slice < plan.num_slices; ++slice) {
      const int64_t from = partial_row(slice, block, r);
      if (partial.row_sum[from] != 0 && !(partial.row_max[from] <= row_max))
        row_max = partial.row_max[from];
    }
    float* const out = partial.output + partial_row(0, block, r) * dim;
    for (int64_t slice = 0; slice < plan.num_slices; ++slice) {
      const int64_t from = partial_row(slice, block, r);
      const bool empty = partial.row_sum[from] == 0;
      const float factor = empty ? 0 : exponential(partial.row_max[from] - row_max);
      row_sum += factor * partial.row_sum[from];
      if (slice == 0)
        for (int64_t n = 0; n < dim; ++n) out[n] = empty ? 0 : factor * out[n];
      else if (!empty)
        add_scaled(dim, factor, partial.output + from * dim, out);
    }
    const float factor = row_sum == 0 ? 0 : 1 / row_sum;
    for (int64_t n = 0; n < dim; ++n) out[n] *= factor;
    write_output_row(params, b, h, i, out);
    params.row_max[row] = row_sum == 0 ? -kInfinity : row_max;
    params.row_sum[row] = row_sum;
    params.lse[row] = row_sum == 0 ? -kInfinity : row_max + __builtin_logf(row_sum);
  }
};

template <class Element>
inline bool run_few_queries_of(const Params& params, const Host& host) {
  if (params.num_rows() == 0) return true;
  const FewQueryPlan plan(params);
  const int threads = threads_for(plan.multiplications(), host);
  Arena shared, own;
  PartialResults measured(plan, shared);
  FewQueryWorkspace measured_workspace(plan, own);
  const int64_t done_bytes = round_up(plan.num_blocks() * (int64_t)sizeof(int64_t), 64);
  HostMemory memory(host, shared.used + done_bytes + own.used * threads);
  if (!memory.data) return false;
  Arena arena{memory.data, 0};
  const PartialResults partial(plan, arena);
  int64_t* const slices_done = (int64_t*)(memory.data + shared.used);
  for (int64_t n = 0; n < plan.num_blocks(); ++n) slices_done[n] = 0;
  FewQueryTasks<Element> tasks = {plan,        partial, memory.data + shared.used + done_bytes,
                                  own.used, slices_done, 0};
  on_threads(host, threads, FewQueryTasks<Element>::run_thread, &tasks);
  return true;
}

inline bool run_few_queries(const Params& params, const Host& host) {
  switch (params.dtype) {
    case Dtype::bf16: return run_few_queries_of<Bf16>(params, host);
    case Dtype::f16: return run_few_queries_of<F16>(params, host);
    default: return run_few_queries_of<float>(params, host);
  }
}

}  // namespace
}  // namespace relpos
