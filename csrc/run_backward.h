// Backward of a whole call: who adds which gradients, and how the parts are added up.
//
//     unit        what adds to one gradient of keys and values: a key/value head, or where these
//                 are few one of `splits` of its blocks of rows
//     partition   a run of units with its own sums of the tables' gradients, the work of one thread
//
// Both depend on the sizes and the number of threads alone, and they are added up in their order,
// so that the bits are the same each time.
//
// To a number of a mask's gradient several units may add, or several rows of one. Then each
// partition has a sum of its own for it; where these would be too large, a partition has whole
// heads, or, if the mask is the same for all heads, there is one partition.
//
//     memory of sums: | sums of partition 0 | 1 | ... | dk, dv of unit 0 | 1 | ...
//
// (the latter where splits > 1; else each thread has such sums for the unit that it works at, if they
// are not the caller's tensors).
#pragma once

#include <stdint.h>

#include "backward.h"
#include "config.h"
#include "convert.h"
#include "few_query_scores.h"
#include "gemm.h"
#include "grid_plan.h"
#include "grid_queries.h"
#include "integers.h"
#include "joint_bias.h"
#include "kernel.h"
#include "offset_window.h"
#include "params.h"
#include "plan.h"
#include "score_gradients.h"
#include "simd.h"
#include "tile.h"
#include "tile_backward.h"
#include "tiles.h"
#include "workspace_pool.h"

namespace relpos {
namespace {

// So many partitions for each thread even out what they take, unless the sums of all would need
// more memory than this.
constexpr int64_t kPartitionsPerThread = 4;
constexpr int64_t kMaxBytesOfManySums = 16 << 20;
// Threads have sums of their own for a mask's gradient, unless all need more memory than this.
#ifdef RELPOS_MAX_BYTES_OF_MASK_SUMS  // of tests, whose calls are small
constexpr int64_t kMaxBytesOfMaskSums = RELPOS_MAX_BYTES_OF_MASK_SUMS;
#else
constexpr int64_t kMaxBytesOfMaskSums = 64 << 20;
#endif
// Key/value heads fewer than those partitions are split, into so many units for each thread.
constexpr int64_t kSplitUnitsPerThread = 2;

#if RELPOS_TILES
typedef TileBackward BackwardPass;
#else
typedef Backward BackwardPass;
#endif

// Where the mask's gradient is summed: in place, by each partition, in place by partitions of whole
// heads, or in place by one partition.
enum class MaskSums { in_place, of_partitions, of_whole_heads, of_one_partition };

// The numbers of the mask's gradient.
inline int64_t mask_gradient_size(const Params& params) {
  const int64_t* strides = params.gradients.mask_strides;
  return (strides[0] ? params.batch : 1) * (strides[1] ? params.heads : 1) *
         (strides[2] ? params.seqlen_q : 1) * (strides[3] ? params.seqlen_k : 1);
}

inline MaskSums choose_mask_sums(const Params& params, int threads) {
  const int64_t* strides = params.gradients.mask_strides;
  const bool same_for_batch = strides[0] == 0 && params.batch > 1;
  const bool same_for_heads = strides[1] == 0 && params.heads > 1;
  const bool same_for_rows = strides[2] == 0 && params.seqlen_q > 1;
  if (!params.gradients.mask || !(same_for_batch || same_for_heads || same_for_rows))
    return MaskSums::in_place;
  if (threads == 1) return MaskSums::of_one_partition;
  const int64_t bytes = mask_gradient_size(params) * (int64_t)sizeof(float);
  if (bytes * threads <= kMaxBytesOfMaskSums) return MaskSums::of_partitions;
  return same_for_heads ? MaskSums::of_one_partition : MaskSums::of_whole_heads;
}

struct BackwardTasks {
  const Plan& plan;
  const Params& params;
  const MaskSums mask_sums;
  HeadBlocks blocks;
  int64_t splits = 1;  // of a key/value head
  int64_t num_units = 0, num_unit_sums = 0, num_partitions = 0;
  int64_t partition_bytes = 0, unit_bytes = 0;
  const WorkspacePool* pool = nullptr;
  char* sums_memory = nullptr;  // (total_bytes), as above
  int64_t next_partition = 0;   // that nobody has taken

  BackwardTasks(const Plan& p, MaskSums sums)
      : plan(p), params(p.params), mask_sums(sums), blocks(p.params.seqlen_q) {}

  // Cut the work for some threads.
  void divide(int threads) {
    const int64_t batch_kv_heads = params.batch * params.kv_heads;
    const int64_t wanted_partitions = kPartitionsPerThread * threads;
    if (threads > 1 && batch_kv_heads % threads != 0 && batch_kv_heads < wanted_partitions)
      splits = clamp(ceil_div(kSplitUnitsPerThread * threads, batch_kv_heads), 1,
                     max(params.heads_per_kv_head() * blocks.num_blocks, 1));
    num_units = batch_kv_heads * splits;
    GradientSums measured;
    Arena unit, all_heads;
    lay_out_unit(measured, unit);
    lay_out_partition(measured, all_heads, params.heads);
    const bool small = all_heads.used * wanted_partitions < kMaxBytesOfManySums;
    num_partitions = small ? wanted_partitions : threads;
    if (mask_sums == MaskSums::of_one_partition) num_partitions = 1;
    num_partitions = min(num_partitions, num_units / units_kept_together());
    int64_t max_heads = 0;
    for (int64_t n = 0; n < num_partitions; ++n)
      max_heads = max(max_heads, end_head(n) - first_head(n));
    Arena widest;
    lay_out_partition(measured, widest, max_heads);
    partition_bytes = widest.used;
    num_unit_sums = splits > 1 ? num_units : threads;
    unit_bytes = unit.used;
  }
  int64_t total_bytes() const {
    return num_partitions * partition_bytes + num_unit_sums * unit_bytes;
  }

  // ---- units and partitions -------------------------------------------------------------------

  // Those of a partition: first_unit(partition)..first_unit(partition + 1)-1.
  int64_t first_unit(int64_t partition) const {
    return num_units / units_kept_together() * partition / num_partitions * units_kept_together();
  }
  // So many, from the first on, are always in one partition.
  int64_t units_kept_together() const {
    return mask_sums == MaskSums::of_whole_heads ? max(params.batch * splits, 1) : 1;
  }
  // Units are in the order of key/value heads, then of batch entries, so that a partition has few
  // heads.
  int64_t kv_head_of(int64_t unit) const { return unit / splits / params.batch; }
  int64_t batch_of(int64_t unit) const { return unit / splits % params.batch; }
  // The query heads of a partition: first_head..end_head-1.
  int64_t first_head(int64_t partition) const {
    return kv_head_of(first_unit(partition)) * params.heads_per_kv_head();
  }
  int64_t end_head(int64_t partition) const {
    return (kv_head_of(first_unit(partition + 1) - 1) + 1) * params.heads_per_kv_head();
  }
  bool has_head(int64_t partition, int64_t head) const {
    return head >= first_head(partition) && head < end_head(partition);
  }

  // The sums of a partition of so many heads: of those gradients that are wanted.
  void lay_out_partition(GradientSums& sums, Arena& arena, int64_t heads) const {
    const Gradients& gradients = params.gradients;
    for (int kind = 0; kind < kTableKinds; ++kind) {
      const int64_t table_heads = params.tables[kind].heads == 1 ? 1 : heads;
      sums.tables[kind] =
          arena.take_if(gradients.tables[kind], table_heads * plan.table_sums_size(kind));
    }
    const int64_t axis_table_heads = params.grid.axis_table_heads == 1 ? 1 : heads;
    sums.axis_tables =
        arena.take_if(gradients.axis_tables, axis_table_heads * plan.grid.padded_size);
    const int64_t joint_bias_heads = params.grid.joint_bias_heads == 1 ? 1 : heads;
    sums.joint_bias =
        arena.take_if(gradients.joint_bias, joint_bias_heads * params.grid.joint_bias_size);
    sums.mask = gradients.mask;
    if (mask_sums == MaskSums::of_partitions) sums.mask = arena.take(mask_gradient_size(params));
  }
  void lay_out_unit(GradientSums& sums, Arena& arena) const {
    const Gradients& gradients = params.gradients;
    sums.k = arena.take_if(gradients.k.present() && !in_place(gradients.k, params.head_dim),
                           num_key_rows() * plan.padded_head_dim);
    sums.v = arena.take_if(gradients.v.present() && !in_place(gradients.v, params.value_dim),
                           num_key_rows() * plan.padded_value_dim);
  }
  // Of the sums for keys: whole panels of a matrix unit.
  int64_t num_key_rows() const {
    return kTiles ? plan.num_key_panels() * kNR : params.seqlen_k;
  }
  // Whether a unit adds to the caller's dk or dv itself, whose rows are of `dim`.
  bool in_place(const ResultView& gradient, int64_t dim) const {
    return splits == 1 && params.dtype == Dtype::f32 && dim % kLanes == 0 && !kTiles &&
           (gradient.strides[2] == dim || params.seqlen_k == 1);
  }

  GradientSums sums_of_partition(int64_t partition) const {
    GradientSums sums;
    Arena arena{sums_memory + partition * partition_bytes, 0};
    lay_out_partition(sums, arena, end_head(partition) - first_head(partition));
    sums.first_head = first_head(partition);
    return sums;
  }
  // dk and dv of a unit: where heads are not split of the one that thread `n` works at.
  GradientSums sums_of_unit(int64_t n) const {
    GradientSums sums;
    Arena arena{sums_memory + num_partitions * partition_bytes + n * unit_bytes, 0};
    lay_out_unit(sums, arena);
    return sums;
  }

  // ---- the work of a thread -------------------------------------------------------------------

  static void run_thread(void* context, int64_t thread) {
    BackwardTasks& tasks = *(BackwardTasks*)context;
    const TileSession session;
    BackwardPass backward(tasks.plan, tasks.pool->workspace(tasks.plan, thread));
    for (;;) {
      const int64_t partition = __atomic_fetch_add(&tasks.next_partition, 1, __ATOMIC_RELAXED);
      if (partition >= tasks.num_partitions) return;
      tasks.run_partition(backward, partition, thread);
    }
  }

  void run_partition(BackwardPass& backward, int64_t partition, int64_t thread) const {
    set_zero(sums_memory + partition * partition_bytes, partition_bytes);
    backward.sums = sums_of_partition(partition);
    for (int64_t unit = first_unit(partition); unit < first_unit(partition + 1); ++unit) {
      const GradientSums of_unit = sums_of_unit(splits > 1 ? unit : thread);
      backward.sums.k = of_unit.k, backward.sums.v = of_unit.v;
      const int64_t b = batch_of(unit), kv_head = kv_head_of(unit);
      begin_unit(backward.sums, b, kv_head);
      const int64_t num_blocks = params.heads_per_kv_head() * blocks.num_blocks;
      for (int64_t n = num_blocks - 1 - unit % splits; n >= 0; n -= splits) {
        const int64_t block = n % blocks.num_blocks;
        const int64_t h = kv_head * params.heads_per_kv_head() + n / blocks.num_blocks;
        backward.run(b, h, blocks.first_row(block), blocks.num_rows(block));
        if (block < splits) backward.finish_head(b, h);
      }
      if (splits == 1) write_unit(backward.sums, b, kv_head);
    }
    backward.finish_pairs();
  }

  static void set_zero(void* at, int64_t bytes) {
    if (at) __builtin_memset(at, 0, (uint64_t)bytes);
  }

  // Zeros in the unit's dk and dv, where they lie.
  void begin_unit(GradientSums& sums, int64_t b, int64_t kv_head) const {
    const ResultView &dk = params.gradients.k, &dv = params.gradients.v;
    if (dk.present() && in_place(dk, params.head_dim))
      sums.k = (float*)dk.data + dk.row_start(b, kv_head, 0);
    if (dv.present() && in_place(dv, params.value_dim))
      sums.v = (float*)dv.data + dv.row_start(b, kv_head, 0);
    set_zero(sums.k, num_key_rows() * plan.padded_head_dim * (int64_t)sizeof(float));
    set_zero(sums.v, num_key_rows() * plan.padded_value_dim * (int64_t)sizeof(float));
  }

  // ---- sums to the caller's gradients ---------------------------------------------------------

  void write_unit(const GradientSums& sums, int64_t b, int64_t kv_head) const {
    const ResultView &dk = params.gradients.k, &dv = params.gradients.v;
    if (sums.k && !in_place(dk, params.head_dim))
      write_key_rows(sums.k, plan.padded_head_dim, params.head_dim, plan.score_factor, dk, b,
                     kv_head);
    if (sums.v && !in_place(dv, params.value_dim))
      write_key_rows(sums.v, plan.padded_value_dim, params.value_dim, 1, dv, b, kv_head);
  }

#if RELPOS_TILES
  // factor * from (seqlen_k / 16, padded_dim, 16) to a head's rows of `dim` of dk or dv.
  void write_key_rows(const float* from, int64_t padded_dim, int64_t dim, float factor,
                      const ResultView& to, int64_t b, int64_t kv_head) const {
    float rows[kLanes][kLanes];
    for (int64_t j = 0; j < params.seqlen_k; j += kLanes)
      for (int64_t k = 0; k < dim; k += kLanes) {
        vfloat square[kLanes];
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n)
          square[n] = load(from + j * padded_dim + (k + n) * kLanes) * factor;
        transpose(square);
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n) store(rows[n], square[n]);
        for (int64_t n = 0; n < min(kLanes, params.seqlen_k - j); ++n)
          convert_from_float(rows[n], min(kLanes, dim - k), to.data, params.dtype,
                             to.row_start(b, kv_head, j + n) + k);
      }
  }
  // Element k of a column's sums, which lie in panels (columns / 16, padded_dim, 16), as do those
  // of the bias, whose dim is 1.
  static float sum_of_column(const float* from, int64_t padded_dim, int64_t column, int64_t k) {
    return from[column / kTileSide * kTileSide * padded_dim + k * kTileSide + column % kTileSide];
  }
#else
  // from (seqlen_k, padded_dim) to a head's rows of `dim` of dk or dv.
  void write_key_rows(const float* from, int64_t padded_dim, int64_t dim, float,
                      const ResultView& to, int64_t b, int64_t kv_head) const {
    for (int64_t j = 0; j < params.seqlen_k; ++j)
      convert_from_float(from + j * padded_dim, dim, to.data, params.dtype,
                         to.row_start(b, kv_head, j));
  }
  static float sum_of_column(const float* from, int64_t padded_dim, int64_t column, int64_t k) {
    return from[column * padded_dim + k];
  }
#endif

  // Add up the splits of key/value head `n`, counted as units are.
  static void add_splits(void* context, int64_t n) {
    const BackwardTasks& tasks = *(const BackwardTasks*)context;
    const Plan& plan = tasks.plan;
    const int64_t num_rows = tasks.num_key_rows(), unit = n * tasks.splits;
    const GradientSums first = tasks.sums_of_unit(unit);
    for (int64_t split = 1; split < tasks.splits; ++split) {
      const GradientSums other = tasks.sums_of_unit(unit + split);
      if (first.k) add_to(num_rows * plan.padded_head_dim, other.k, first.k);
      if (first.v) add_to(num_rows * plan.padded_value_dim, other.v, first.v);
    }
    tasks.write_unit(first, tasks.batch_of(unit), tasks.kv_head_of(unit));
  }

  // The gradient of one head's table: the partitions' columns, each added to the row that it
  // selects, of which those at its ends have many. scratch: see scratch_bytes.
  void write_table(int kind, int64_t head, double* scratch) const {
    const OffsetTable& table = params.tables[kind];
    const OffsetWindow& window = plan.window(kind);
    const int64_t padded_dim = plan.padded_row_dim(kind);
    for (int64_t n = 0; n < table.num_rows * padded_dim; ++n) scratch[n] = 0;
    for (int64_t partition = 0; partition < num_partitions; ++partition) {
      if (table.heads > 1 && !has_head(partition, head)) continue;
      const GradientSums sums = sums_of_partition(partition);
      const float* from = sums.tables[kind] + table.head_index(head - sums.first_head) *
                                                  plan.table_sums_size(kind);
      for (int64_t column = 0; column < window.num_columns; ++column) {
        const int64_t row = table_row(table, window, column);
        if (row < 0) continue;
        for (int64_t k = 0; k < padded_dim; ++k)
          scratch[row * padded_dim + k] += sum_of_column(from, padded_dim, column, k);
        if (kind == kBias) scratch[row] += from[plan.table_columns(kind) + column];
      }
    }
    const bool scaled = kind == kKeys || kind == kQueries;
    const double factor = scaled ? plan.score_factor : 1;
    float* const rounded = (float*)(scratch + table.num_rows * padded_dim);
    for (int64_t row = 0; row < table.num_rows; ++row) {
      for (int64_t k = 0; k < table.row_dim; ++k)
        rounded[k] = (float)(scratch[row * padded_dim + k] * factor);
      convert_from_float(rounded, table.row_dim, params.gradients.tables[kind], params.dtype,
                         (head * table.num_rows + row) * table.row_dim);
    }
  }

  // The gradients of one head's tables of a grid's axes.
  void write_axis_tables(int64_t head) const {
    const Grid& grid = params.grid;
    float* const to = params.gradients.axis_tables + head * grid.axis_table_size;
    fill(to, grid.axis_table_size, 0);
    for (int64_t partition = 0; partition < num_partitions; ++partition) {
      if (grid.axis_table_heads > 1 && !has_head(partition, head)) continue;
      const GradientSums sums = sums_of_partition(partition);
      const float* from = sums.axis_tables + grid.axis_table_head(head - sums.first_head) *
                                                 plan.grid.padded_size;
      for_each_axis_table(params, plan.grid, [&](const AxisPlan& axis, int kind) {
        const int64_t dim = axis.row_dim[kind], padded_dim = axis.padded_row_dim[kind];
        for (int64_t n = 0; n < axis.table_rows; ++n)
          for (int64_t k = 0; k < dim; ++k)
            to[axis.given[kind] + n * dim + k] += from[axis.padded[kind] + n * padded_dim + k];
      });
    }
  }

  void write_joint_bias() const {
    const Grid& grid = params.grid;
    for (int64_t partition = 0; partition < num_partitions; ++partition) {
      const GradientSums sums = sums_of_partition(partition);
      const bool shared = grid.joint_bias_heads == 1;
      const int64_t first = shared ? 0 : sums.first_head;
      const int64_t heads = shared ? 1 : end_head(partition) - sums.first_head;
      float* to = params.gradients.joint_bias + first * grid.joint_bias_size;
      for (int64_t n = 0; n < heads * grid.joint_bias_size; ++n) to[n] += sums.joint_bias[n];
    }
  }

  void write_mask() const {
    for (int64_t partition = 0; partition < num_partitions; ++partition)
      add_to(mask_gradient_size(params), sums_of_partition(partition).mask, params.gradients.mask);
  }

  // All gradients that partitions have summed; one after another, in this thread. scratch: see
  // scratch_bytes.
  void write_partitions(double* scratch) const {
    const Gradients& gradients = params.gradients;
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (gradients.tables[kind])
        for (int64_t h = 0; h < params.tables[kind].heads; ++h) write_table(kind, h, scratch);
    if (gradients.axis_tables)
      for (int64_t h = 0; h < params.grid.axis_table_heads; ++h) write_axis_tables(h);
    if (gradients.joint_bias) write_joint_bias();
    if (mask_sums == MaskSums::of_partitions) write_mask();
  }
  // Of the largest table: sums (num_rows, padded_row_dim), and one row that is rounded.
  int64_t scratch_bytes() const {
    int64_t bytes = 0;
    for (int kind = 0; kind < kTableKinds; ++kind)
      if (params.gradients.tables[kind])
        bytes = max(bytes, (params.tables[kind].num_rows + 1) * plan.padded_row_dim(kind) *
                               (int64_t)sizeof(double));
    return bytes;
  }
};

inline bool run_backward(const Params& params, const Host& host) {
  int threads = useful_threads(params, host);
  const MaskSums mask_sums = choose_mask_sums(params, threads);
  if (mask_sums == MaskSums::of_one_partition) threads = 1;
  Plan plan(params, true, threads);
  BackwardTasks tasks(plan, mask_sums);
  tasks.divide(threads);
  WorkspacePool pool(plan, threads);
  HostMemory memory(host, pool.total_bytes);
  HostMemory sums(host, tasks.total_bytes());
  HostMemory scratch(host, tasks.scratch_bytes());
  if (!memory.data || !sums.data || !scratch.data) return false;
  pool.bind(plan, memory.data);
  fill_shared_tables(plan, pool, host, threads);
  fill_joint_bias(plan, host, threads);
  fill_few_query_scores(plan, pool, host, threads);
  fill_query_axes(plan, pool, host, threads);
  tasks.pool = &pool;
  tasks.sums_memory = sums.data;
  on_threads(host, threads, BackwardTasks::run_thread, &tasks);
  if (tasks.splits > 1)
    host.parallel(params.batch * params.kv_heads, BackwardTasks::add_splits, &tasks);
  tasks.write_partitions((double*)scratch.data);
  return true;
}

}  // namespace
}  // namespace relpos
