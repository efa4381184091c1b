// The memory of a call, its threads, and the tables that all of them read.
//
//     | shared tables | workspace of thread 0 | workspace of thread 1 | ...
#pragma once

#include <stdint.h>

#include "config.h"
#include "integers.h"
#include "kernel.h"
#include "params.h"
#include "plan.h"
#include "workspace.h"

namespace relpos {
namespace {

// A thread is used for each so many multiplications.
constexpr double kMultiplicationsPerThread = 1 << 20;

inline int threads_for(double multiplications, const Host& host) {
  const double useful = multiplications / kMultiplicationsPerThread;
  return useful < 2 ? 1 : useful < host.threads ? (int)useful : host.threads;
}

inline int useful_threads(const Params& params, const Host& host) {
  int64_t first_key = 0, end_key = params.seqlen_k;  // that a query in the middle sees
  const int64_t middle = params.seqlen_k / 2;
  if (params.causal) end_key = min(end_key, middle + 1);
  params.window.limit(middle, first_key, end_key);
  const double multiplications =
      (double)params.batch * (double)params.heads * (double)params.seqlen_q *
      (double)(end_key - first_key) * (double)(params.head_dim + params.value_dim);
  return threads_for(multiplications, host);
}

// Calls body(context, thread) for thread = 0..threads-1, each in a thread of its own; a single one
// in this thread.
inline void on_threads(const Host& host, int threads, void (*body)(void*, int64_t), void* context) {
  if (threads == 1)
    body(context, 0);
  else
    host.parallel(threads, body, context);
}

// Memory of the host, given back at the end.
struct HostMemory {
  const Host& host;
  char* data = nullptr;  // (bytes), 64 at least; null if there is none

  HostMemory(const Host& h, int64_t bytes)
      : host(h), data((char*)h.allocate((uint64_t)max(bytes, 64))) {}
  ~HostMemory() { host.release(data); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
};

// How much memory a plan needs, and, once bound, who has which part of it.
struct WorkspacePool {
  int64_t shared_bytes, workspace_bytes, total_bytes;
  char* memory = nullptr;  // (total_bytes)

  WorkspacePool(Plan& plan, int threads) {
    Arena shared, own;
    plan.lay_out_shared_tables(shared);
    Workspace measured(plan, own);
    shared_bytes = shared.used;
    workspace_bytes = own.used;
    total_bytes = shared_bytes + workspace_bytes * threads;
  }

  // Put the shared tables of the plan, and all workspaces, at `at` (total_bytes).
  void bind(Plan& plan, char* at) {
    memory = at;
    Arena arena{at, 0};
    plan.lay_out_shared_tables(arena);
  }

  Workspace workspace(const Plan& plan, int64_t thread) const {
    Arena arena{memory + shared_bytes + workspace_bytes * thread, 0};
    return Workspace(plan, arena);
  }
};

// Fills one of the tables that all heads share, each thread some panels of it.
struct FillTable {
  const Plan* plan;
  const WorkspacePool* pool;
  int kind;
  int64_t threads;

  static void run_thread(void* context, int64_t thread) {
    const FillTable& task = *(const FillTable*)context;
    const Plan& plan = *task.plan;
    const OffsetWindow& window = plan.window(task.kind);
    const Workspace workspace = task.pool->workspace(plan, thread);
    for (int64_t panel = thread; panel < window.num_panels(); panel += task.threads)
      plan.tables[task.kind].fill_panel(plan.params.tables[task.kind], plan.params.dtype, window,
                                        panel, plan.padded_row_dim(task.kind), plan.score_factor,
                                        workspace.row_scratch);
  }
};

// The same for the tables of a grid's axes.
struct FillAxisTables {
  const Plan* plan;
  int64_t threads;

  static void run_thread(void* context, int64_t thread) {
    const FillAxisTables& task = *(const FillAxisTables*)context;
    const Plan& plan = *task.plan;
    plan.axis_tables.fill_rows(plan.params, plan.grid, plan.backward, thread, task.threads);
  }
};

inline void fill_shared_tables(Plan& plan, const WorkspacePool& pool, const Host& host,
                               int threads) {
  for (int kind = 0; kind < kTableKinds; ++kind) {
    WindowTable& table = plan.tables[kind];
    if (!table.rows && !table.panels && !table.bias) continue;
    table.head = 0;
    FillTable task = {&plan, &pool, kind, threads};
    on_threads(host, threads, FillTable::run_thread, &task);
  }
  if (plan.params.grid.axis_table_heads != 1) return;
  plan.axis_tables.head = 0;
  FillAxisTables task = {&plan, threads};
  on_threads(host, threads, FillAxisTables::run_thread, &task);
}

}  // namespace
}  // namespace relpos
