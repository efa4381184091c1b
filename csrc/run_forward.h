// Forward of a whole call: the blocks of rows of all heads, handed out to the threads.
//
// A task is a head, or where heads are few one of `splits` of its blocks of rows. Each thread takes
// the next task that nobody has taken; tasks write to different rows.
#pragma once

#include <stdint.h>

#include "few_query_scores.h"
#include "forward.h"
#include "grid_queries.h"
#include "integers.h"
#include "joint_bias.h"
#include "kernel.h"
#include "params.h"
#include "plan.h"
#include "run_few_queries.h"
#include "tile.h"
#include "tile_forward.h"
#include "tiles.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

// So many tasks for each thread even out what they take, if heads alone do not.
constexpr int64_t kForwardTasksPerThread = 4;

#if RELPOS_TILES
typedef TileForward ForwardPass;
#else
typedef Forward ForwardPass;
#endif

struct ForwardTasks {
  const Plan* plan;
  const WorkspacePool* pool;
  HeadBlocks blocks;
  int64_t splits;     // of a head
  int64_t next_task;  // that nobody has taken

  static void run_thread(void* context, int64_t thread) {
    ForwardTasks& tasks = *(ForwardTasks*)context;
    const Params& params = tasks.plan->params;
    const TileSession session;
    ForwardPass forward(*tasks.plan, tasks.pool->workspace(*tasks.plan, thread));
    const int64_t num_tasks = params.batch * params.heads * tasks.splits;
    for (;;) {
      const int64_t task = __atomic_fetch_add(&tasks.next_task, 1, __ATOMIC_RELAXED);
      if (task >= num_tasks) return;
      const int64_t batch_head = task / tasks.splits, split = task % tasks.splits;
      // From the last block on, which sees the most keys where causal.
      for (int64_t n = tasks.blocks.num_blocks - 1 - split; n >= 0; n -= tasks.splits)
        forward.run(batch_head / params.heads, batch_head % params.heads,
                    tasks.blocks.first_row(n), tasks.blocks.num_rows(n));
    }
  }
};

inline bool run_forward(const Params& params, const Host& host) {
#if !RELPOS_TILES
  if (takes_few_queries(params)) return run_few_queries(params, host);
#endif
  const int threads = useful_threads(params, host);
  Plan plan(params, false, threads);
  WorkspacePool pool(plan, threads);
  HostMemory memory(host, pool.total_bytes);
  if (!memory.data) return false;
  pool.bind(plan, memory.data);
  fill_shared_tables(plan, pool, host, threads);
  fill_joint_bias(plan, host, threads);
  fill_few_query_scores(plan, pool, host, threads);
  fill_query_axes(plan, pool, host, threads);
  const HeadBlocks blocks(params.seqlen_q);
  const int64_t batch_heads = params.batch * params.heads;
  int64_t splits = 1;
  if (batch_heads % threads != 0)
    splits = clamp(ceil_div(kForwardTasksPerThread * threads, batch_heads), 1,
                   max(blocks.num_blocks, 1));
  ForwardTasks tasks = {&plan, &pool, blocks, splits, 0};
  on_threads(host, threads, ForwardTasks::run_thread, &tasks);
  return true;
}

}  // namespace
}  // namespace relpos
