// The whole call: how its work is cut, and how the parts are added up in a fixed order.
//
// Included by one source file for each instruction set, after it has said W (floats in a vector),
// and MR and NV (rows and vectors of a register block).
#pragma once

#include "simd.h"
#include "gemm.h"
#include "windows.h"
#include "strips.h"
#include "axes.h"
#include "block.h"
#include "grid.h"
#include "scores.h"
#include "forward.h"
#include "backward.h"

namespace relpos {
namespace {

// Multiplications that are worth a thread.
constexpr double kWorthAThread = 1 << 20;

// How the rows are cut into blocks.
struct Rows {
  int64_t queries, blocks, height;

  explicit Rows(int64_t count) : queries(count) {
    blocks = (count + kRowsOfBlock - 1) / kRowsOfBlock;
    height = blocks ? smaller(rounded_up((count + blocks - 1) / blocks, MR), kRowsOfBlock) : 1;
    blocks = (count + height - 1) / height;
  }
  int64_t count(int64_t block) const { return smaller(height, queries - block * height); }
};

struct Memory {
  const Host& host;
  char* data = nullptr;

  Memory(const Host& h, int64_t bytes) : host(h), data((char*)h.allocate((uint64_t)bytes + 64)) {}
  ~Memory() { host.release(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

inline int useful_threads(const Call& call, const Host& host) {
  const double work = (double)call.batch * (double)call.heads * (double)call.queries *
                      (double)call.keys * (double)(call.width + call.value_width) /
                      (call.causal ? 2 : 1);
  const double most = work / kWorthAThread;
  return most < 2 ? 1 : most < host.threads ? (int)most : host.threads;
}

// Shared tables and one workspace for each thread, in one piece of memory.
struct Workplace {
  int64_t shared, each, bytes;
  char* memory = nullptr;

  Workplace(Problem& problem, int threads) {
    Arena arena;
    lay_out_tables(problem, arena);
    shared = arena.used;
    Arena own;
    Workspace measured(problem, own);
    each = rounded_up(own.used, 64);
    bytes = shared + each * threads;
  }

  static void lay_out_tables(Problem& problem, Arena& arena) {
    for (int kind = 0; kind < kKinds; ++kind)
      if (problem.call.tables[kind].heads == 1)
        problem.tables[kind] = problem.columns(kind, arena);
    if (problem.call.grid.table_heads == 1) problem.axes = problem.axis_tables(arena);
  }

  void settle(Problem& problem, char* at) {
    memory = at;
    Arena arena{at, 0};
    lay_out_tables(problem, arena);
  }

  Workspace workspace(const Problem& problem, int64_t thread) const {
    Arena arena{memory + shared + each * thread, 0};
    return Workspace(problem, arena);
  }
};

// Work for some threads; where there is but one, in this one.
inline void on_threads(const Host& host, int threads, void (*body)(void*, int64_t), void* context) {
  if (threads == 1)
    body(context, 0);
  else
    host.parallel(threads, body, context);
}

// Fills a table that all heads share, or (a kind beyond them) those of the axes.
struct TableTasks {
  const Problem* problem;
  const Workplace* workplace;
  int kind;
  int64_t threads;

  static void work(void* context, int64_t thread) {
    const TableTasks& all = *(const TableTasks*)context;
    const Problem& problem = *all.problem;
    if (all.kind == kKinds) {
      problem.axes.fill_rows(problem.call, problem.grid, problem.value_width, problem.backward, 0,
                             thread, all.threads);
      return;
    }
    const Window& window = problem.window(all.kind);
    const Workspace workspace = all.workplace->workspace(problem, thread);
    for (int64_t panel = thread; panel < window.panels(); panel += all.threads)
      fill_panel(problem.call.tables[all.kind], problem.call.dtype, window, panel,
                 problem.padded(all.kind), problem.tables[all.kind], workspace.scratch);
  }
};

inline void fill_tables(Problem& problem, const Workplace& workplace, const Host& host,
                        int threads) {
  for (int kind = 0; kind < kKinds; ++kind) {
    if (problem.call.tables[kind].heads != 1) continue;
    Columns& columns = problem.tables[kind];
    if (!columns.rows && !columns.panels && !columns.line) continue;
    columns.head = 0;
    TableTasks tasks = {&problem, &workplace, kind, threads};
    on_threads(host, threads, TableTasks::work, &tasks);
  }
  if (problem.call.grid.table_heads != 1) return;
  TableTasks tasks = {&problem, &workplace, kKinds, threads};
  on_threads(host, threads, TableTasks::work, &tasks);
}

// ---- forward ------------------------------------------------------------------------------------

struct ForwardTasks {
  const Problem* problem;
  const Workplace* workplace;
  Rows rows;
  int64_t pieces;  // of a head
  int64_t next;    // task that nobody has taken

  static void work(void* context, int64_t thread) {
    ForwardTasks& all = *(ForwardTasks*)context;
    const Call& call = all.problem->call;
    Forward forward(*all.problem, all.workplace->workspace(*all.problem, thread));
    const int64_t count = call.batch * call.heads * all.pieces;
    for (;;) {
      const int64_t task = __atomic_fetch_add(&all.next, 1, __ATOMIC_RELAXED);
      if (task >= count) return;
      const int64_t head = task / all.pieces, piece = task % all.pieces;
      for (int64_t n = all.rows.blocks - 1 - piece; n >= 0; n -= all.pieces)
        forward.run(head / call.heads, head % call.heads, n * all.rows.height, all.rows.count(n));
    }
  }
};

inline bool run_forward(const Call& call, const Host& host) {
  Problem problem(call, false);
  const int threads = useful_threads(call, host);
  Workplace workplace(problem, threads);
  Memory memory(host, workplace.bytes);
  if (!memory.data) return false;
  workplace.settle(problem, memory.data);
  fill_tables(problem, workplace, host, threads);
  const Rows rows(call.queries);
  const int64_t heads = call.batch * call.heads;
  int64_t pieces = threads == 1 || heads == 0 ? 1 : (4 * threads + heads - 1) / heads;
  if (heads % threads == 0) pieces = 1;
  ForwardTasks tasks = {&problem, &workplace, rows, clamped(pieces, 1, larger(rows.blocks, 1)), 0};
  on_threads(host, threads, ForwardTasks::work, &tasks);
  return true;
}

// ---- backward -----------------------------------------------------------------------------------

// Units are what shares gradients of keys and values: one head of keys, or one of its `pieces`.
// Groups are runs of units, each with its own sums for the tables; their number depends on sizes
// and threads alone, and they are added up in order, so that results are the same each time.
struct BackwardTasks {
  const Problem* problem;
  const Workplace* workplace;
  Rows rows;
  int64_t pieces, units, groups;
  int64_t next;
  char* totals;            // of the groups, then of the units if there are several pieces
  int64_t group_bytes, unit_bytes;

  const Call& call() const { return problem->call; }
  int64_t unit_begin(int64_t group) const { return units * group / groups; }

  // Units are in the order of heads, so that a group meets few of them.
  int64_t group_of_keys(int64_t unit) const { return unit / pieces / call().batch; }
  int64_t first_head(int64_t group) const {
    return group_of_keys(unit_begin(group)) * call().repeat();
  }
  int64_t end_head(int64_t group) const {
    return (group_of_keys(unit_begin(group + 1) - 1) + 1) * call().repeat();
  }

  void lay_out(Totals& all, Arena& arena, int64_t heads) const {
    const Gradients& gradients = call().gradients;
    for (int kind = 0; kind < kKinds; ++kind) {
      if (!gradients.tables[kind]) continue;
      const int64_t some = call().tables[kind].heads == 1 ? 1 : heads;
      all.tables[kind] =
          arena.take(some * problem->window(kind).panels() * NR * problem->padded(kind));
    }
    if (gradients.grid_tables)
      all.grid = arena.take((call().grid.table_heads == 1 ? 1 : heads) * problem->grid.padded);
    if (gradients.joint)
      all.joint = arena.take((call().grid.joint_heads == 1 ? 1 : heads) * call().grid.joint_count);
  }
  void lay_out_unit(Totals& all, Arena& arena) const {
    if (call().gradients.k && !in_place(call().width))
      all.k = arena.take(call().keys * problem->width);
    if (call().gradients.v && !in_place(call().value_width))
      all.v = arena.take(call().keys * problem->value_width);
  }
  // Whether a unit adds to the gradients themselves.
  bool in_place(int64_t width) const {
    return pieces == 1 && call().dtype == Dtype::f32 && width % W == 0;
  }
  // The sums of one unit, zeros at first.
  void begin_unit(Totals& all, int64_t b, int64_t g) const {
    const int64_t first = (b * call().groups + g) * call().keys;
    const Gradients& gradients = call().gradients;
    if (gradients.k && in_place(call().width)) all.k = (float*)gradients.k + first * call().width;
    if (gradients.v && in_place(call().value_width))
      all.v = (float*)gradients.v + first * call().value_width;
    clear(all.k, call().keys * problem->width * (int64_t)sizeof(float));
    clear(all.v, call().keys * problem->value_width * (int64_t)sizeof(float));
  }

  Totals totals_of_group(int64_t group) const {
    Totals all;
    Arena arena{totals + group * group_bytes, 0};
    lay_out(all, arena, end_head(group) - first_head(group));
    all.first_head = first_head(group);
    if (pieces == 1) lay_out_unit(all, arena);
    return all;
  }
  char* memory_of_unit(int64_t unit) const {
    return totals + groups * group_bytes + unit * unit_bytes;
  }

  static void work(void* context, int64_t thread) {
    BackwardTasks& all = *(BackwardTasks*)context;
    Backward backward(*all.problem, all.workplace->workspace(*all.problem, thread));
    for (;;) {
      const int64_t group = __atomic_fetch_add(&all.next, 1, __ATOMIC_RELAXED);
      if (group >= all.groups) return;
      all.run_group(backward, group);
    }
  }

  void run_group(Backward& backward, int64_t group) const {
    clear(totals + group * group_bytes, group_bytes);
    backward.totals = totals_of_group(group);
    for (int64_t unit = unit_begin(group); unit < unit_begin(group + 1); ++unit) {
      if (pieces > 1) {
        Arena arena{memory_of_unit(unit), 0};
        lay_out_unit(backward.totals, arena);
      }
      const int64_t g = group_of_keys(unit), b = unit / pieces % call().batch;
      begin_unit(backward.totals, b, g);
      const int64_t blocks = call().repeat() * rows.blocks;
      for (int64_t n = blocks - 1 - unit % pieces; n >= 0; n -= pieces)
        backward.run(b, g * call().repeat() + n / rows.blocks, n % rows.blocks * rows.height,
                     rows.count(n % rows.blocks));
      if (pieces == 1) write(backward.totals, b, g);
    }
  }

  static void clear(void* memory, int64_t bytes) {
    if (memory) __builtin_memset(memory, 0, (uint64_t)bytes);
  }

  void write(const Totals& from, int64_t b, int64_t g) const {
    const int64_t first = (b * call().groups + g) * call().keys;
    for (int64_t j = 0; from.k && !in_place(call().width) && j < call().keys; ++j)
      narrow(from.k + j * problem->width, call().width, call().gradients.k, call().dtype,
             (first + j) * call().width);
    for (int64_t j = 0; from.v && !in_place(call().value_width) && j < call().keys; ++j)
      narrow(from.v + j * problem->value_width, call().value_width, call().gradients.v,
             call().dtype, (first + j) * call().value_width);
  }

  // Add up the pieces of one head of keys.
  static void add_pieces(void* context, int64_t head) {
    const BackwardTasks& all = *(const BackwardTasks*)context;
    float* first = (float*)all.memory_of_unit(head * all.pieces);
    for (int64_t piece = 1; piece < all.pieces; ++piece) {
      const float* other = (const float*)all.memory_of_unit(head * all.pieces + piece);
      for (int64_t n = 0; n < all.unit_bytes / (int64_t)sizeof(float); ++n) first[n] += other[n];
    }
    Totals sum;
    Arena arena{(char*)first, 0};
    all.lay_out_unit(sum, arena);
    all.write(sum, head % all.call().batch, head / all.call().batch);
  }

  // The gradient of one head's table: the groups' columns, each added to the row that it shows.
  void write_table(int kind, int64_t head, float* sums) const {
    const Table& table = call().tables[kind];
    const Window& window = problem->window(kind);
    const int64_t padded = problem->padded(kind);
    fill(sums, table.count * padded, 0);
    for (int64_t group = 0; group < groups; ++group) {
      if (table.heads > 1 && (head < first_head(group) || head >= end_head(group))) continue;
      const Totals some = totals_of_group(group);
      const int64_t of_head = table.heads == 1 ? 0 : head - some.first_head;
      const float* from = some.tables[kind] + of_head * window.panels() * NR * padded;
      for (int64_t n = 0; n < window.count; ++n) {
        const int64_t row = source_row(table, window, n);
        if (row < 0) continue;
        for (int64_t k = 0; k < padded; ++k) sums[row * padded + k] += from[n * padded + k];
      }
    }
    for (int64_t row = 0; row < table.count; ++row)
      narrow(sums + row * padded, table.width, call().gradients.tables[kind], call().dtype,
             (head * table.count + row) * table.width);
  }

  // The gradients of the axes' tables of one head.
  void write_grid(int64_t head) const {
    const Grid& grid = call().grid;
    const int64_t value_width = problem->value_width;
    float* const to = call().gradients.grid_tables + head * grid.table_count;
    fill(to, grid.table_count, 0);
    for (int64_t group = 0; group < groups; ++group) {
      if (grid.table_heads > 1 && (head < first_head(group) || head >= end_head(group))) continue;
      const Totals some = totals_of_group(group);
      const int64_t of_head = grid.table_heads == 1 ? 0 : head - some.first_head;
      const float* from = some.grid + of_head * problem->grid.padded;
      each_axis_table(call(), problem->grid, value_width,
                      [&](const AxisPlan& plan, const AxisTable& table) {
                        for (int64_t n = 0; n < plan.rows; ++n)
                          for (int64_t k = 0; k < table.width; ++k)
                            to[table.given + n * table.width + k] +=
                                from[table.padded + n * table.padded_width + k];
                      });
    }
  }

  void write_joint() const {
    const Grid& grid = call().grid;
    for (int64_t group = 0; group < groups; ++group) {
      const Totals some = totals_of_group(group);
      const int64_t first = grid.joint_heads == 1 ? 0 : some.first_head;
      const int64_t heads = grid.joint_heads == 1 ? 1 : end_head(group) - some.first_head;
      float* to = call().gradients.joint + first * grid.joint_count;
      for (int64_t n = 0; n < heads * grid.joint_count; ++n) to[n] += some.joint[n];
    }
  }
};

inline bool shares_mask(const Call& call) {
  const int64_t* strides = call.gradients.mask_strides;
  return call.gradients.mask && ((strides[0] == 0 && call.batch > 1) ||
                                 (strides[1] == 0 && call.heads > 1) || strides[2] == 0);
}

inline bool run_backward(const Call& call, const Host& host) {
  Problem problem(call, true);
  const bool serial = shares_mask(call);
  const int threads = serial ? 1 : useful_threads(call, host);
  BackwardTasks tasks = {&problem, nullptr, Rows(call.queries), 1, 0, 1, 0, nullptr, 0, 0};
  const int64_t heads = call.batch * call.groups;
  if (threads > 1 && heads % threads != 0 && heads < 4 * threads && !call.gradients.by_query)
    tasks.pieces = clamped((2 * threads + heads - 1) / heads, 1,
                           larger(call.repeat() * tasks.rows.blocks, 1));
  tasks.units = heads * tasks.pieces;
  Arena unit, group;
  Totals measured;
  tasks.lay_out_unit(measured, unit);
  tasks.lay_out(measured, group, call.heads);
  const bool small = group.used * 4 * threads < 16 << 20;
  tasks.groups = smaller(tasks.units, serial ? 1 : small ? 4 * threads : threads);
  Arena widest;  // the group that meets most heads
  int64_t most = 0;
  for (int64_t n = 0; n < tasks.groups; ++n)
    most = larger(most, tasks.end_head(n) - tasks.first_head(n));
  tasks.lay_out(measured, widest, most);
  if (tasks.pieces == 1) tasks.lay_out_unit(measured, widest);
  tasks.group_bytes = rounded_up(widest.used, 64);
  tasks.unit_bytes = tasks.pieces > 1 ? unit.used : 0;
  int64_t table_bytes = 64;
  for (int kind = 0; kind < kKinds; ++kind)
    if (call.gradients.tables[kind])
      table_bytes = larger(table_bytes, call.tables[kind].count * problem.padded(kind) * 4);

  Workplace workplace(problem, threads);
  Memory memory(host, workplace.bytes);
  Memory totals(host, tasks.groups * tasks.group_bytes + tasks.units * tasks.unit_bytes);
  Memory sums(host, table_bytes);
  if (!memory.data || !totals.data || !sums.data) return false;
  workplace.settle(problem, memory.data);
  fill_tables(problem, workplace, host, threads);
  tasks.workplace = &workplace;
  tasks.totals = totals.data;
  on_threads(host, threads, BackwardTasks::work, &tasks);
  if (tasks.pieces > 1) host.parallel(heads, BackwardTasks::add_pieces, &tasks);
  for (int kind = 0; kind < kKinds; ++kind)
    for (int64_t h = 0; call.gradients.tables[kind] && h < call.tables[kind].heads; ++h)
      tasks.write_table(kind, h, (float*)sums.data);
  for (int64_t h = 0; call.gradients.grid_tables && h < call.grid.table_heads; ++h)
    tasks.write_grid(h);
  if (call.gradients.joint) tasks.write_joint();
  return true;
}

}  // namespace
}  // namespace relpos
