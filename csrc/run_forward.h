// Forward of a whole call: the blocks of rows of all heads, handed out to the threads.
//
// A task is a head, or where heads are few one of `splits` of its blocks of rows. Each thread takes
// the next task that nobody has taken; tasks write to different rows.
#pragma once

#include <stdint.h>

#include "forward.h"
#include "integers.h"
#include "kernel.h"
#include "params.h"
#include "plan.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

struct ForwardTasks {
  const Plan* plan;
  const WorkspacePool* pool;
  RowBlocks rows;
  int64_t splits;     // of a head
  int64_t next_task;  // that nobody has taken

  static void work(void* context, int64_t thread) {
    ForwardTasks& tasks = *(ForwardTasks*)context;
    const Params& params = tasks.plan->params;
    Forward forward(*tasks.plan, tasks.pool->workspace(*tasks.plan, thread));
    const int64_t num_tasks = params.batch * params.heads * tasks.splits;
    for (;;) {
      const int64_t task = __atomic_fetch_add(&tasks.next_task, 1, __ATOMIC_RELAXED);
      if (task >= num_tasks) return;
      const int64_t head = task / tasks.splits, split = task % tasks.splits;
      for (int64_t n = tasks.rows.num_blocks - 1 - split; n >= 0; n -= tasks.splits)
        forward.run(head / params.heads, head % params.heads, tasks.rows.first_row(n),
                    tasks.rows.num_rows(n));
    }
  }
};

inline bool run_forward(const Params& params, const Host& host) {
  Plan plan(params, false);
  const int threads = useful_threads(params, host);
  WorkspacePool pool(plan, threads);
  HostMemory memory(host, pool.total_bytes);
  if (!memory.data) return false;
  pool.bind(plan, memory.data);
  fill_shared_tables(plan, pool, host, threads);
  const RowBlocks rows(params.seqlen_q);
  const int64_t heads = params.batch * params.heads;
  int64_t splits = threads == 1 || heads == 0 ? 1 : ceil_div(4 * threads, heads);
  if (heads % threads == 0) splits = 1;
  ForwardTasks tasks = {&plan, &pool, rows, clamp(splits, 1, max(rows.num_blocks, 1)), 0};
  on_threads(host, threads, ForwardTasks::work, &tasks);
  return true;
}

}  // namespace
}  // namespace relpos
