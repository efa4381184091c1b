// For few queries, as in a step of decoding: the term of a table of keys that all heads share, in
// one walk over the table.
//
// A table as long as the keys would be read once for each head: three rows from memory for each
// pair, in place of two. Here each row is dotted with the queries of all heads while it is in
// cache. To the bit what Scores::add_band_by_pair adds.
//
//     plan.few_query_scores   (B * H * seqlen_q, few_query_stride): scale * q_rel_i . K + B by
//                             column of the score window
#pragma once

#include <stdint.h>

#include "block_inputs.h"
#include "config.h"
#include "gemm.h"
#include "integers.h"
#include "params.h"
#include "plan.h"
#include "simd.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

// Each thread some of the columns.
struct FillFewQueryScores {
  const Plan* plan;
  const WorkspacePool* pool;
  int64_t threads;

  static void run_thread(void* context, int64_t thread) {
    const FillFewQueryScores& task = *(const FillFewQueryScores*)context;
    const Plan& plan = *task.plan;
    BlockInputs inputs(plan, task.pool->workspace(plan, thread));
    const int64_t columns = plan.score_window.num_columns;
    const int64_t num_rows = plan.params.num_rows();
    const int64_t share = round_up(ceil_div(columns, task.threads), kLanes);
    for (int64_t row = 0; row < num_rows; row += kBlockRows)
      fill_rows(inputs, row, min(kBlockRows, num_rows - row), min(share * thread, columns),
                min(share * (thread + 1), columns));
  }

  // The rows first_row..first_row+count-1 of all (B, H, seqlen_q), at the columns from..to-1.
  static void fill_rows(BlockInputs& inputs, int64_t first_row, int64_t count, int64_t from,
                        int64_t to) {
    const Plan& plan = inputs.plan;
    const Params& params = plan.params;
    const int64_t dim = plan.padded_rel_dim, stride = plan.few_query_stride;
    float* const q_rel = inputs.work.q_rel;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = first_row + r, batch_head = row / params.seqlen_q;
      inputs.read_rows(params.has_q_rel() ? params.q_rel : params.q, params.dtype,
                       batch_head / params.heads, batch_head % params.heads,
                       row % params.seqlen_q, 1,
                       params.has_q_rel() ? params.rel_dim : params.head_dim, dim, params.scale,
                       q_rel + r * dim);
    }
    float* const scores = plan.few_query_scores + first_row * stride;
    for (int64_t column = from; column < to; column += kLanes) {
      const float* rows[kLanes];
      for (int n = 0; n < kLanes; ++n)
        rows[n] = inputs.selected_row(kKeys, 0, min(column + n, to - 1),
                                      inputs.work.few_query_rows + n * dim);
      for (int64_t r = 0; r < count; ++r)
        store(scores + r * stride + column, dot_rows(rows, q_rel + r * dim, dim));
    }
    if (!params.tables[kBias].present()) return;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t head = (first_row + r) / params.seqlen_q % params.heads;
      const float* bias = inputs.window_table(kBias, head).bias;
      for (int64_t column = from; column < to; ++column)
        scores[r * stride + column] += bias[column];
    }
  }
};

inline void fill_few_query_scores(const Plan& plan, const WorkspacePool& pool, const Host& host,
                                  int threads) {
  if (!plan.few_query_scores) return;
  FillFewQueryScores task = {&plan, &pool, threads};
  on_threads(host, threads, FillFewQueryScores::run_thread, &task);
}

}  // namespace
}  // namespace relpos
