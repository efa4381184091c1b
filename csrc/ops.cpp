// The ops that torch sees, by its stable C++ interface: one binary for every torch from 2.11 on.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "call.h"

namespace relpos {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

// ---- the host -----------------------------------------------------------------------------------

void parallel(int64_t count, void (*body)(void*, int64_t), void* context) {
  torch::stable::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) body(context, n);
  });
}

void* allocate(uint64_t bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, 64, bytes) == 0 ? memory : nullptr;
}

void release(void* memory) { free(memory); }

Host host() { return {(int)torch::stable::get_num_threads(), parallel, allocate, release}; }

// The best kernel for this processor; as for torch's own, ATEN_CPU_CAPABILITY names a lower one.
const Kernel& kernel() {
  static const Kernel* const chosen = [] {
    const Kernel* best = portable_kernel();
#if defined(__x86_64__)
    if (avx2_kernel() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      best = avx2_kernel();
    if (avx512_kernel() && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      best = avx512_kernel();
    const char* wanted = std::getenv("ATEN_CPU_CAPABILITY");
    if (wanted && std::strcmp(wanted, "default") == 0) best = portable_kernel();
    if (wanted && std::strcmp(wanted, "avx2") == 0 && best == avx512_kernel()) best = avx2_kernel();
#endif
    return best;
  }();
  return *chosen;
}

// ---- tensors as plain data ----------------------------------------------------------------------

Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    case ScalarType::Bool: return Dtype::boolean;
    default: throw std::runtime_error("relpos native: no such dtype");
  }
}

// Keeps alive what a call points to.
struct Keeper {
  std::vector<Tensor> kept;

  const Tensor& contiguous(const Tensor& x) {
    kept.push_back(x.is_contiguous() ? x : torch::stable::contiguous(x));
    return kept.back();
  }
  // With a contiguous last axis; others may be broadcast or permuted.
  const Tensor& rows(const Tensor& x) {
    const bool fits = x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1;
    kept.push_back(fits ? x : torch::stable::contiguous(x));
    return kept.back();
  }
};

int64_t stride(const Tensor& x, int64_t axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); }

// Of (b, h, i, d), or (b, h, i).
View view(const Tensor& x, Keeper& keeper) {
  const Tensor& kept = keeper.rows(x);
  return {kept.const_data_ptr(), {stride(kept, 0), stride(kept, 1), stride(kept, 2)}};
}

// The tensors of a call that may want gradients, in the order of the ops' arguments.
enum Input { kQ, kK, kV, kTables, kQRel = kTables + kKinds, kMask, kAxisTables, kByQuery, kJoint,
             kInputs };

struct Settings {
  const Sizes& firsts;
  const Sizes& zeros;
  const Sizes& grid;
  const Sizes& query_grid;
  const Sizes& axis_keys;
  const Sizes& axis_own_p;
  const Sizes& axis_bias;
  const Sizes& axis_values;
  int64_t prefix;
  bool causal;
  double scale;
  int64_t query_start;
  double dropout;
};

// The documents of each batch entry as small numbers, with the keys where each is found.
struct Numbered {
  std::vector<int32_t> numbers;
  std::vector<int64_t> begin, end;
  bool mixed = false;

  template <class T>
  void add(const T* documents, int64_t count) {
    struct Found {
      int32_t number;
      int64_t begin, end, keys;
    };
    std::unordered_map<int64_t, Found> found;
    const size_t first = numbers.size();
    for (int64_t j = 0; j < count; ++j) {
      const int64_t document = (int64_t)documents[j];
      if (document < 0) {
        numbers.push_back(-1);
        continue;
      }
      auto [at, fresh] =
          found.try_emplace(document, Found{(int32_t)found.size(), j, j + 1, 0});
      at->second.end = j + 1;
      at->second.keys += 1;
      numbers.push_back(at->second.number);
    }
    std::vector<const Found*> by_number(found.size());
    for (const auto& some : found) {
      by_number[(size_t)some.second.number] = &some.second;
      mixed = mixed || some.second.end - some.second.begin != some.second.keys;
    }
    for (int64_t j = 0; j < count; ++j) {
      const int32_t number = numbers[first + (size_t)j];
      begin.push_back(number < 0 ? 0 : by_number[(size_t)number]->begin);
      end.push_back(number < 0 ? 0 : by_number[(size_t)number]->end);
    }
  }
};

// A call with all that it points to: the tensors that had to be copied, and what is counted of
// documents. It must outlive the call and stay where it is.
struct Bound {
  Call call = {};
  Keeper keeper;
  Numbered numbered;

  Bound(const Bound&) = delete;
  Bound(const Tensor& q, const Tensor& k, const Tensor& v, const Optional* tables,
        const Optional& q_rel, const Optional& mask, const Optional& axis_tables,
        const Optional& by_query, const Optional& joint, const Optional& documents,
        const Optional& seed, const Settings& settings) {
    call.batch = q.size(0), call.heads = q.size(1), call.queries = q.size(2);
    call.width = q.size(3), call.groups = k.size(1), call.keys = k.size(2);
    call.value_width = v.size(3);
    call.dtype = dtype_of(q);
    call.q = view(q, keeper), call.k = view(k, keeper), call.v = view(v, keeper);
    if (q_rel) {
      call.q_rel = view(*q_rel, keeper);
      call.rel_width = q_rel->size(3);
    }
    for (int kind = 0; kind < kKinds; ++kind)
      if (tables[kind]) bind_table(call.tables[kind], *tables[kind], settings, (size_t)kind);
    if (mask) bind_mask(*mask);
    if (!settings.grid.empty()) bind_grid(axis_tables, by_query, joint, settings);
    if (documents) bind_documents(*documents);
    call.causal = settings.causal;
    call.scale = (float)settings.scale;
    call.start = settings.query_start;
    call.dropout = settings.dropout;
    if (seed) call.seed = (uint64_t)*seed->const_data_ptr<int64_t>();
  }

  void bind_table(Table& table, const Tensor& rows, const Settings& settings, size_t kind) {
    table.rows = keeper.contiguous(rows).const_data_ptr();
    table.heads = rows.size(0), table.count = rows.size(1);
    table.width = rows.dim() == 3 ? rows.size(2) : 1;
    table.first = settings.firsts[kind];
    table.zero = settings.zeros[kind] != 0;
  }

  void bind_mask(const Tensor& x) {
    call.mask.dtype = dtype_of(x);
    // Those of half precision are read by whole rows, or one number for a row.
    const bool fits = call.mask.dtype == Dtype::boolean || call.mask.dtype == Dtype::f32 ||
                      stride(x, 3) == 0;
    const Tensor& kept = fits ? (keeper.kept.push_back(x), keeper.kept.back()) : keeper.rows(x);
    call.mask.data = kept.const_data_ptr();
    for (int64_t axis = 0; axis < 4; ++axis) call.mask.strides[axis] = stride(kept, axis);
  }

  void bind_grid(const Optional& axis_tables, const Optional& by_query, const Optional& joint,
                 const Settings& settings) {
    Grid& grid = call.grid;
    grid.count = (int)settings.grid.size();
    for (size_t n = 0; n < settings.grid.size(); ++n) {
      grid.axes[n] = {settings.grid[n],        settings.query_grid[n],
                      settings.axis_keys[n],   settings.axis_own_p[n] != 0,
                      settings.axis_bias[n] != 0, settings.axis_values[n] != 0};
      grid.width += settings.grid[n];
      grid.query_width += settings.query_grid[n];
    }
    grid.prefix = settings.prefix;
    if (axis_tables) {
      grid.tables = keeper.contiguous(*axis_tables).const_data_ptr<float>();
      grid.table_heads = axis_tables->size(0), grid.table_count = axis_tables->size(1);
    }
    if (by_query) grid.by_query = view(*by_query, keeper);
    if (!joint) return;
    grid.joint = keeper.contiguous(*joint).const_data_ptr<float>();
    grid.joint_heads = joint->size(0), grid.joint_count = joint->size(1);
  }

  void bind_documents(const Tensor& x) {
    const Tensor& kept = keeper.contiguous(x);
    for (int64_t b = 0; b < x.size(0); ++b) {
      const int64_t at = b * x.size(1);
      switch (x.scalar_type()) {
        case ScalarType::Long: numbered.add(kept.const_data_ptr<int64_t>() + at, x.size(1)); break;
        case ScalarType::Int: numbered.add(kept.const_data_ptr<int32_t>() + at, x.size(1)); break;
        case ScalarType::Short: numbered.add(kept.const_data_ptr<int16_t>() + at, x.size(1)); break;
        case ScalarType::Char: numbered.add(kept.const_data_ptr<int8_t>() + at, x.size(1)); break;
        default: numbered.add(kept.const_data_ptr<uint8_t>() + at, x.size(1));
      }
    }
    call.documents = {numbered.numbers.data(), numbered.begin.data(), numbered.end.data(),
                      x.size(0) == 1 ? 0 : x.size(1), numbered.mixed};
  }
};

void require(bool done) {
  if (!done) throw std::runtime_error("attention: native: there is not enough memory");
}

Tensor empty(const Tensor& like, const Sizes& sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, sizes, dtype);
}

// (2, b, h, i): each row's largest score and sum.
void bind_softmax(Call& call, const Tensor& softmax) {
  call.most = softmax.mutable_data_ptr<float>();
  call.total = call.most + call.batch * call.heads * call.queries;
}

// ---- the ops ------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> forward(
    Tensor q, Tensor k, Tensor v, Optional keys, Optional queries, Optional bias, Optional values,
    Optional q_rel, Optional mask, Optional axis_tables, Optional by_query, Optional joint,
    Optional documents, Optional seed, Sizes firsts, Sizes zeros, Sizes grid, Sizes query_grid,
    Sizes axis_keys, Sizes axis_own_p, Sizes axis_bias, Sizes axis_values, int64_t prefix,
    bool causal, double scale, int64_t query_start, double dropout) {
  const Optional tables[kKinds] = {keys, queries, bias, values};
  Bound bound(q, k, v, tables, q_rel, mask, axis_tables, by_query, joint, documents, seed,
              {firsts, zeros, grid, query_grid, axis_keys, axis_own_p, axis_bias, axis_values,
               prefix, causal, scale, query_start, dropout});
  Call& call = bound.call;
  const Sizes rows = {call.batch, call.heads, call.queries};
  Tensor output = empty(q, {rows[0], rows[1], rows[2], call.value_width}, ScalarType::Float);
  Tensor softmax = empty(q, {2, rows[0], rows[1], rows[2]}, ScalarType::Float);
  Tensor lse = empty(q, rows, ScalarType::Float);
  call.output = output.mutable_data_ptr<float>();
  bind_softmax(call, softmax);
  call.lse = lse.mutable_data_ptr<float>();
  require(kernel().forward(call, host()));
  return {output, lse, softmax};
}

// Gradients of what is added to scores, one for all pairs that share it, are summed in place.
bool begins_with_zeros(size_t input) { return input == kMask || input >= kByQuery; }

std::vector<Tensor> backward(
    Tensor d_output, Optional d_lse, Tensor output, Tensor softmax, Tensor q, Tensor k, Tensor v,
    Optional keys, Optional queries, Optional bias, Optional values, Optional q_rel, Optional mask,
    Optional axis_tables, Optional by_query, Optional joint, Optional documents, Optional seed,
    Sizes firsts, Sizes zeros, Sizes grid, Sizes query_grid, Sizes axis_keys, Sizes axis_own_p,
    Sizes axis_bias, Sizes axis_values, int64_t prefix, bool causal, double scale,
    int64_t query_start, double dropout, Sizes needs) {
  const Optional tables[kKinds] = {keys, queries, bias, values};
  Bound bound(q, k, v, tables, q_rel, mask, axis_tables, by_query, joint, documents, seed,
              {firsts, zeros, grid, query_grid, axis_keys, axis_own_p, axis_bias, axis_values,
               prefix, causal, scale, query_start, dropout});
  Call& call = bound.call;
  call.output = bound.keeper.contiguous(output).mutable_data_ptr<float>();
  bind_softmax(call, bound.keeper.contiguous(softmax));
  call.d_output = view(d_output, bound.keeper);
  if (d_lse) call.d_lse = view(*d_lse, bound.keeper);
  const Optional inputs[kInputs] = {q,     k,    v,           keys,     queries, bias, values,
                                    q_rel, mask, axis_tables, by_query, joint};
  std::vector<Tensor> results;
  void* data[kInputs] = {};
  for (size_t n = 0; n < kInputs; ++n) {
    if (!needs[n] || !inputs[n]) {
      results.push_back(empty(q, {0}, ScalarType::Float));
      continue;
    }
    const auto sizes = inputs[n]->sizes();
    const Sizes full(sizes.begin(), sizes.end());
    const ScalarType dtype = n < kMask ? q.scalar_type() : ScalarType::Float;
    results.push_back(empty(q, full, dtype));
    if (begins_with_zeros(n)) torch::stable::zero_(results.back());
    data[n] = results.back().mutable_data_ptr();
  }
  Gradients& gradients = call.gradients;
  gradients.q = data[kQ], gradients.k = data[kK], gradients.v = data[kV];
  for (int kind = 0; kind < kKinds; ++kind) gradients.tables[kind] = data[kTables + kind];
  gradients.q_rel = data[kQRel];
  gradients.mask = (float*)data[kMask];
  for (int64_t axis = 0; gradients.mask && axis < 4; ++axis)
    gradients.mask_strides[axis] = stride(results[kMask], axis);
  gradients.grid_tables = (float*)data[kAxisTables];
  gradients.by_query = (float*)data[kByQuery];
  gradients.joint = (float*)data[kJoint];
  require(kernel().backward(call, host()));
  return results;
}

std::string instructions() { return kernel().name; }

}  // namespace
}  // namespace relpos

#define RELPOS_ARGUMENTS                                                                         \
  "Tensor q, Tensor k, Tensor v, Tensor? keys, Tensor? queries, Tensor? bias, Tensor? values, "   \
  "Tensor? q_rel, Tensor? mask, Tensor? axis_tables, Tensor? by_query, Tensor? joint, "           \
  "Tensor? documents, Tensor? seed, SymInt[] firsts, int[] zeros, SymInt[] grid, "                \
  "SymInt[] query_grid, SymInt[] axis_keys, int[] axis_own_p, int[] axis_bias, "                  \
  "int[] axis_values, SymInt prefix, bool causal, float scale, SymInt query_start, float dropout"

STABLE_TORCH_LIBRARY_FRAGMENT(relpos, library) {
  library.def("native_forward(" RELPOS_ARGUMENTS ") -> (Tensor, Tensor, Tensor)");
  library.def("native_backward(Tensor d_output, Tensor? d_lse, Tensor output, Tensor softmax, "
              RELPOS_ARGUMENTS ", int[] needs) -> Tensor[]");
  library.def("native_instructions() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CPU, library) {
  library.impl("native_forward", TORCH_BOX(&relpos::forward));
  library.impl("native_backward", TORCH_BOX(&relpos::backward));
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CompositeExplicitAutograd, library) {
  library.impl("native_instructions", TORCH_BOX(&relpos::instructions));
}
