// The joint bias of a grid as a number for each pair.
//
// Its table has an entry for each combination of the axes' offsets. The keys of a run, which differ
// in their coordinate along the last axis alone, select neighbours. In small windows (7 x 7)
// such runs are shorter than a vector, and to add them is slow. Where many batch entries share the
// bias, the numbers of all pairs are therefore laid out once for a call, and each thread sums ds by
// pair while it works at a head, and then by entry.
//
//     by_pair   (seqlen_q, GridPlan::pair_stride), of one head; the bias of keys of the prefix is 0,
//               and what else is there of the prefix is not read
#pragma once

#include <stdint.h>

#include "gemm.h"
#include "grid_token.h"
#include "kernel.h"
#include "params.h"
#include "plan.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

// Calls visit(pair, entry, count) for each run of keys beside query i, which is on the grid: where
// its first number lies in by_pair and in the table, and how many there are.
template <class Visit>
void for_each_pair_run(const Plan& plan, int64_t i, const Visit& visit) {
  const Grid& grid = plan.params.grid;
  const int last = grid.num_axes - 1;
  const int64_t count = grid.axes[last].size_k;
  const int64_t first_entry =
      joint_bias_centre(grid) - GridToken::query(grid, i - grid.prefix).joint_bias_index();
  GridToken key = GridToken::key(grid, 0);
  for (int64_t j = grid.prefix; j < plan.params.seqlen_k; j += count, key.step(last - 1))
    visit(i * plan.grid.pair_stride + j, first_entry + key.joint_bias_index(), count);
}

// Lays out the bias of all heads by pair, each thread some of the queries.
struct FillJointBias {
  const Plan* plan;
  int64_t threads;

  static void run_thread(void* context, int64_t thread) {
    const FillJointBias& task = *(const FillJointBias*)context;
    const Plan& plan = *task.plan;
    const Grid& grid = plan.params.grid;
    for (int64_t h = 0; h < grid.joint_bias_heads; ++h) {
      const float* const table = grid.joint_bias + h * grid.joint_bias_size;
      float* const by_pair = plan.joint_bias_by_pair + h * plan.pairs_size();
      for (int64_t i = grid.prefix + thread; i < plan.params.seqlen_q; i += task.threads) {
        fill(by_pair + i * plan.grid.pair_stride, plan.grid.pair_stride, 0);
        for_each_pair_run(plan, i, [&](int64_t pair, int64_t entry, int64_t count) {
          for (int64_t n = 0; n < count; ++n) by_pair[pair + n] = table[entry + n];
        });
      }
    }
  }
};

inline void fill_joint_bias(const Plan& plan, const Host& host, int threads) {
  if (!plan.joint_bias_by_pair) return;
  FillJointBias task = {&plan, threads};
  on_threads(host, threads, FillJointBias::run_thread, &task);
}

// The adjoint, of one head: table (joint_bias_size) += the sums by_pair.
inline void add_pairs_to_joint_bias(const Plan& plan, const float* by_pair, float* table) {
  for (int64_t i = plan.params.grid.prefix; i < plan.params.seqlen_q; ++i)
    for_each_pair_run(plan, i, [&](int64_t pair, int64_t entry, int64_t count) {
      add_to(count, by_pair + pair, table + entry);
    });
}

}  // namespace
}  // namespace relpos
