// The ops that torch sees, by its stable C++ interface: one binary for every torch from 2.11 on.
//
// Each op reads its arguments in the order of its schema, binds them to a Params (params.h has
// their shapes), and hands that to the fastest kernel for this processor. A new argument is a line
// in the schema and a line in Arguments. README.md says how to read the other files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "document_index.h"
#include "kernel.h"
#include "params.h"

namespace relpos {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Ints = std::vector<int64_t>;

// ---- arguments, as the schema has them ----------------------------------------------------------

// The arguments that torch has put on the stack, one after another.
class ArgumentReader {
 public:
  ArgumentReader(const StableIValue* stack, uint64_t count) : next_(stack), end_(stack + count) {}

  Tensor tensor() { return read<Tensor>(); }
  OptionalTensor optional_tensor() { return read<OptionalTensor>(); }
  Ints ints() { return read<Ints>(); }
  Ints optional_ints() { return read<std::optional<Ints>>().value_or(Ints{}); }
  int64_t integer() { return read<int64_t>(); }
  double number() { return read<double>(); }
  bool flag() { return read<bool>(); }

  void finish() const {
    if (next_ != end_) throw std::runtime_error("relpos native: the schema has more arguments");
  }

 private:
  template <class T>
  T read() {
    if (next_ == end_) throw std::runtime_error("relpos native: the schema has fewer arguments");
    return torch::stable::detail::to<T>(*next_++);
  }

  const StableIValue* next_;
  const StableIValue* end_;
};

// As relpos/ops/arguments.py declares them: the schemas are compared when this is loaded.
#define RELPOS_ARGUMENTS                                                                          \
  "Tensor q, Tensor k, Tensor v, Tensor? keys=None, Tensor? queries=None, Tensor? bias=None, "    \
  "Tensor? values=None, Tensor? q_rel=None, Tensor? mask=None, Tensor? axis_tables=None, "        \
  "Tensor? joint_bias=None, Tensor? documents=None, Tensor? query_documents=None, "               \
  "Tensor? key_ranges=None, Tensor? seed=None, float scale=1., bool causal=False, "               \
  "SymInt query_start=0, SymInt[]? first_offsets=None, float dropout=0., float softcap=0., "      \
  "bool split_float32=False, SymInt prefix=0, SymInt[]? window=None, "                            \
  "SymInt[]? zero_beyond=None, SymInt[]? key_grid=None, SymInt[]? query_grid=None, "              \
  "SymInt[]? axis_key_widths=None, SymInt[]? axis_has_q_rel=None, "                               \
  "SymInt[]? axis_has_queries=None, SymInt[]? axis_has_bias=None, "                               \
  "SymInt[]? axis_has_values=None, SymInt[]? dropout_origin=None, bool has_other_keys=False"

// RELPOS_ARGUMENTS, read in this order. Lists have an element for each TableKind (first_offsets,
// zero_beyond), or for each axis of a grid; window has two for each axis, a line being one;
// dropout_origin has the members of DropoutOrigin. They are empty, or None, where there is nothing
// to say: AOTInductor makes None of an empty list.
struct Arguments {
  ArgumentReader& next;

  Tensor q = next.tensor();
  Tensor k = next.tensor();
  Tensor v = next.tensor();
  OptionalTensor keys = next.optional_tensor();
  OptionalTensor queries = next.optional_tensor();
  OptionalTensor bias = next.optional_tensor();
  OptionalTensor values = next.optional_tensor();
  OptionalTensor q_rel = next.optional_tensor();
  OptionalTensor mask = next.optional_tensor();
  OptionalTensor axis_tables = next.optional_tensor();
  OptionalTensor joint_bias = next.optional_tensor();
  OptionalTensor documents = next.optional_tensor();
  OptionalTensor query_documents = next.optional_tensor();
  OptionalTensor key_ranges = next.optional_tensor();
  OptionalTensor seed = next.optional_tensor();
  double scale = next.number();
  bool causal = next.flag();
  int64_t query_start = next.integer();
  Ints first_offsets = next.optional_ints();
  double dropout = next.number();
  double softcap = next.number();
  bool split_float32 = next.flag();
  int64_t prefix = next.integer();
  Ints window = next.optional_ints();
  Ints zero_beyond = next.optional_ints();
  Ints key_grid = next.optional_ints();
  Ints query_grid = next.optional_ints();
  Ints axis_key_widths = next.optional_ints();
  Ints axis_has_q_rel = next.optional_ints();
  Ints axis_has_queries = next.optional_ints();
  Ints axis_has_bias = next.optional_ints();
  Ints axis_has_values = next.optional_ints();
  Ints dropout_origin = next.optional_ints();
  bool has_other_keys = next.flag();
};

// ---- what memory is read by ---------------------------------------------------------------------

// relpos/ops/checks.py has looked at all that users give, and says it better. Here the op refuses
// tensors whose sizes do not fit each other, as in a program that torch.jit.trace has written down
// for another length: a kernel would read beyond their memory.
void require(bool fits, const char* rule) {
  if (!fits) throw std::runtime_error(std::string("relpos native: ") + rule);
}

// Whether x has these sizes; below 0: -size or 1.
bool has_sizes(const Tensor& x, std::initializer_list<int64_t> sizes) {
  if (x.dim() != (int64_t)sizes.size()) return false;
  int64_t axis = 0;
  for (const int64_t size : sizes) {
    const int64_t found = x.size(axis++);
    if (found != std::abs(size) && !(size <= 0 && found == 1)) return false;
  }
  return true;
}

int64_t count_tokens(const Arguments& from, const Ints& grid) {
  int64_t tokens = 1;
  for (const int64_t size : grid) tokens *= size;
  return from.prefix + tokens;
}

void check_shapes(const Arguments& from) {
  require(from.q.dim() == 4 && from.k.dim() == 4 && from.v.dim() == 4, "q, k and v have 4 axes");
  const int64_t b = from.q.size(0), h = from.q.size(1), i = from.q.size(2), d = from.q.size(3);
  const int64_t g = from.k.size(1), j = from.k.size(2), value_dim = from.v.size(3);
  require(has_sizes(from.k, {b, g, j, d}) && g > 0 && h % g == 0, "k must be (b, g, j, d)");
  require(has_sizes(from.v, {b, g, j, value_dim}), "v must be (b, g, j, dv)");
  const ScalarType dtype = from.q.scalar_type();
  require(from.k.scalar_type() == dtype && from.v.scalar_type() == dtype,
          "k and v must have the dtype of q");
  int64_t rel_dim = d;
  if (from.q_rel) {
    require(from.q_rel->dim() == 4, "q_rel has 4 axes");
    if (from.key_grid.empty()) rel_dim = from.q_rel->size(3);
    require(has_sizes(*from.q_rel, {b, h, i, from.q_rel->size(3)}), "q_rel must be (b, h, i, d)");
  }
  const struct { const OptionalTensor& rows; bool has_width; int64_t width; } tables[] = {
      {from.keys, true, rel_dim}, {from.queries, true, d}, {from.bias, false, 0},
      {from.values, true, value_dim}};
  for (const auto& [rows, has_width, width] : tables) {
    if (!rows) continue;
    require(from.first_offsets.size() == kTableKinds, "each table has a first offset");
    require(rows->dim() > 1 && (has_width ? has_sizes(*rows, {-h, rows->size(1), width})
                                          : has_sizes(*rows, {-h, rows->size(1)})),
            "tables must be (h or 1, r, d), a bias (h or 1, r)");
    require(rows->scalar_type() == dtype, "tables must have the dtype of q");
  }
  if (from.mask) require(has_sizes(*from.mask, {-b, -h, -i, -j}), "mask must fit (b, h, i, j)");
  if (from.documents) {
    require(has_sizes(*from.documents, {-b, j}), "documents must be (b or 1, j)");
    const bool among_keys = from.query_start >= 0 && from.query_start + i <= j;
    require(from.query_documents ? has_sizes(*from.query_documents, {-b, i}) : among_keys,
            "query_documents must be (b or 1, i), or the queries among the keys");
  }
  if (from.key_ranges)
    require(has_sizes(*from.key_ranges, {-b, i, 2}), "key_ranges must be (b or 1, i, 2)");
  const size_t axes = from.key_grid.size();
  const auto fits = [](const Ints& list, size_t size) { return list.empty() || list.size() == size; };
  require(fits(from.zero_beyond, kTableKinds) && fits(from.window, 2 * std::max<size_t>(axes, 1)) &&
              fits(from.dropout_origin, 5),
          "lists must be as long as they are declared");
  require(!from.seed || has_sizes(*from.seed, {}), "seed must be one number");
  if (!axes) return;
  require(axes <= kMaxAxes, "a grid has too many axes");
  for (const Ints* list : {&from.query_grid, &from.axis_key_widths, &from.axis_has_q_rel,
                           &from.axis_has_queries, &from.axis_has_bias, &from.axis_has_values})
    require(list->size() == axes, "lists must have an element for each axis");
  require(count_tokens(from, from.key_grid) == j && count_tokens(from, from.query_grid) == i,
          "a grid must have as many tokens as there are");
  int64_t entries = 1, q_rel_dim = 0;
  for (size_t n = 0; n < axes; ++n) {
    entries *= 2 * from.key_grid[n] - 1;
    if (from.axis_has_q_rel[n]) q_rel_dim += from.axis_key_widths[n];
  }
  require(q_rel_dim == (from.q_rel ? from.q_rel->size(3) : 0), "q_rel must have each axis's part");
  if (from.joint_bias)
    require(has_sizes(*from.joint_bias, {-h, entries}), "joint_bias must be (h or 1, entries)");
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

// 0 along an axis of size 1, as if it were broadcast.
int64_t stride(const Tensor& x, int64_t axis) { return x.size(axis) == 1 ? 0 : x.stride(axis); }

// A tensor may have numbers and no memory: FSDP frees parameters after their module's call.
const Tensor& allocated(const Tensor& x) {
  int64_t bytes = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x.get(), &bytes));
  require(bytes > 0 || x.numel() == 0,
          "every tensor must have its memory, got one whose memory was freed (FSDP frees "
          "parameters after their module's call: wrap the layer, not its position)");
  return x;
}

// Keeps alive the tensors that a Params points to.
class TensorKeeper {
 public:
  const Tensor& keep(const Tensor& x) {
    kept_.push_back(allocated(x));
    return kept_.back();
  }
  const Tensor& contiguous(const Tensor& x) {
    return keep(x.is_contiguous() ? x : torch::stable::contiguous(allocated(x)));
  }
  // With a contiguous last axis; others may be broadcast or permuted.
  const Tensor& contiguous_rows(const Tensor& x) {
    const bool fits = x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1;
    return keep(fits ? x : torch::stable::contiguous(allocated(x)));
  }
  // Of x (B, H, L, D), or (B, H, L).
  TensorView view(const Tensor& x) {
    const Tensor& kept = contiguous_rows(x);
    return {kept.const_data_ptr(), {stride(kept, 0), stride(kept, 1), stride(kept, 2)}};
  }

 private:
  std::vector<Tensor> kept_;
};

// A Params with all that it points to. It must outlive the kernel's call and stay where it is.
struct BoundParams {
  Params params = {};
  TensorKeeper keeper;
  DocumentIndex document_index;

  BoundParams(const BoundParams&) = delete;
  explicit BoundParams(const Arguments& from) {
    check_shapes(from);
    params.batch = from.q.size(0), params.heads = from.q.size(1);
    params.kv_heads = from.k.size(1);
    params.seqlen_q = from.q.size(2), params.seqlen_k = from.k.size(2);
    params.head_dim = from.q.size(3), params.value_dim = from.v.size(3);
    params.query_start = from.query_start;
    params.dtype = dtype_of(from.q);
    params.q = keeper.view(from.q), params.k = keeper.view(from.k), params.v = keeper.view(from.v);
    if (from.q_rel) {
      params.q_rel = keeper.view(*from.q_rel);
      params.rel_dim = from.q_rel->size(3);
    }
    bind_table(kKeys, from.keys, from);
    bind_table(kQueries, from.queries, from);
    bind_table(kBias, from.bias, from);
    bind_table(kValues, from.values, from);
    if (from.mask) bind_mask(*from.mask);
    if (!from.key_grid.empty()) bind_grid(from);
    if (from.documents) bind_documents(*from.documents, from.query_documents);
    if (from.key_ranges) bind_key_ranges(*from.key_ranges);
    if (from.key_grid.empty() && !from.window.empty())
      params.window = {from.window[0], from.window[1]};
    params.softcap = (float)from.softcap;
    params.causal = from.causal;
    params.scale = (float)from.scale;
    params.dropout = from.dropout;
    params.split_float32 = from.split_float32;
    params.dropout_origin = {params.heads, 0, params.seqlen_q, 0, 0};
    if (!from.dropout_origin.empty()) {
      const Ints& origin = from.dropout_origin;
      params.dropout_origin = {origin[0], origin[1], origin[2], origin[3], origin[4]};
    }
    params.has_other_keys = from.has_other_keys;
    if (from.seed) params.seed = (uint64_t)*from.seed->const_data_ptr<int64_t>();
  }

  void bind_table(TableKind kind, const OptionalTensor& rows, const Arguments& from) {
    if (!rows) return;
    OffsetTable& table = params.tables[kind];
    table.rows = keeper.contiguous(*rows).const_data_ptr();
    table.heads = rows->size(0), table.num_rows = rows->size(1);
    table.row_dim = rows->dim() == 3 ? rows->size(2) : 1;
    table.first_offset = from.first_offsets[(size_t)kind];
    table.zero_beyond = !from.zero_beyond.empty() && from.zero_beyond[(size_t)kind] != 0;
  }

  void bind_mask(const Tensor& x) {
    params.mask.dtype = dtype_of(x);
    // Those of half precision are read by whole rows, or one number for a row.
    const bool any_strides = params.mask.dtype == Dtype::boolean ||
                             params.mask.dtype == Dtype::f32 || stride(x, 3) == 0;
    const Tensor& kept = any_strides ? keeper.keep(x) : keeper.contiguous_rows(x);
    params.mask.data = kept.const_data_ptr();
    for (int64_t axis = 0; axis < 4; ++axis) params.mask.strides[axis] = stride(kept, axis);
  }

  void bind_grid(const Arguments& from) {
    Grid& grid = params.grid;
    grid.num_axes = (int)from.key_grid.size();
    for (size_t n = 0; n < from.key_grid.size(); ++n) {
      Axis& axis = grid.axes[n];
      axis.size_k = from.key_grid[n], axis.size_q = from.query_grid[n];
      axis.key_dim = from.axis_key_widths[n], axis.has_q_rel = from.axis_has_q_rel[n] != 0;
      axis.has_queries = from.axis_has_queries[n] != 0;
      axis.has_bias = from.axis_has_bias[n] != 0, axis.has_values = from.axis_has_values[n] != 0;
      if (!from.window.empty()) axis.window = {from.window[2 * n], from.window[2 * n + 1]};
      grid.has_window = grid.has_window || axis.window.limited();
      grid.sum_size_k += axis.size_k;
    }
    grid.prefix = from.prefix;
    if (from.axis_tables) {
      grid.axis_tables = keeper.contiguous(*from.axis_tables).const_data_ptr<float>();
      grid.axis_table_heads = from.axis_tables->size(0);
      grid.axis_table_size = from.axis_tables->size(1);
    }
    int64_t table_size = 0;
    for (int n = 0; n < grid.num_axes; ++n) {
      const Axis& axis = grid.axes[n];
      table_size += axis.table_rows() * (axis.key_dim + axis.has_queries * params.head_dim +
                                         axis.has_bias + axis.has_values * params.value_dim);
    }
    require(from.axis_tables ? has_sizes(*from.axis_tables, {-params.heads, table_size})
                             : table_size == 0,
            "axis_tables must be (h or 1, numbers of all axes' tables)");
    if (!from.joint_bias) return;
    grid.joint_bias = keeper.contiguous(*from.joint_bias).const_data_ptr<float>();
    grid.joint_bias_heads = from.joint_bias->size(0);
    grid.joint_bias_size = from.joint_bias->size(1);
  }

  // Without `queries` the queries are some of the keys' tokens.
  void bind_documents(const Tensor& keys, const OptionalTensor& queries) {
    switch (keys.scalar_type()) {
      case ScalarType::Long: index_documents<int64_t>(keys, queries); break;
      case ScalarType::Int: index_documents<int32_t>(keys, queries); break;
      case ScalarType::Short: index_documents<int16_t>(keys, queries); break;
      case ScalarType::Char: index_documents<int8_t>(keys, queries); break;
      default: index_documents<uint8_t>(keys, queries);
    }
    const bool one_entry = keys.size(0) == 1 && (!queries || queries->size(0) == 1);
    params.documents = {document_index.ids.data(), document_index.query_ids.data(),
                        document_index.key_begin.data(), document_index.key_end.data(),
                        one_entry ? 0 : params.seqlen_k, one_entry ? 0 : params.seqlen_q,
                        document_index.interleaved};
  }

  void bind_key_ranges(const Tensor& x) {
    params.key_ranges = {keeper.contiguous(x).const_data_ptr<int64_t>(),
                         x.size(0) == 1 ? 0 : 2 * x.size(1)};
  }

  template <class T>
  void index_documents(const Tensor& keys, const OptionalTensor& queries) {
    const T* of_keys = keeper.contiguous(keys).const_data_ptr<T>();
    const T* of_queries = of_keys + params.query_start;
    if (queries) of_queries = keeper.contiguous(*queries).const_data_ptr<T>();
    const Tensor& others = queries ? *queries : keys;
    const int64_t key_stride = keys.size(0) == 1 ? 0 : keys.size(1);
    const int64_t query_stride = others.size(0) == 1 ? 0 : others.size(1);
    // An empty batch has no documents to read.
    const int64_t entries = params.batch ? std::max(keys.size(0), others.size(0)) : 0;
    for (int64_t b = 0; b < entries; ++b)
      document_index.add_entry(of_keys + b * key_stride, params.seqlen_k,
                               of_queries + b * query_stride, params.seqlen_q);
  }

  // softmax (2, B, H, seqlen_q): row_max and row_sum.
  void bind_softmax(const Tensor& softmax) {
    params.row_max = softmax.mutable_data_ptr<float>();
    params.row_sum = params.row_max + params.num_rows();
  }
};

// ---- the host and its kernel --------------------------------------------------------------------

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

// The kernels for this processor up to the one that ATEN_CPU_CAPABILITY names, if it does, as for
// torch's own.
const SupportedKernels& kernels() {
  static const SupportedKernels chosen = [] {
    const char* const wanted = std::getenv("ATEN_CPU_CAPABILITY");
    SupportedKernels supported;
    const Kernel* last = nullptr;  // so far, that is named
    for (const Kernel*& kernel : supported.kernels) {
      if (!kernel || !wanted) continue;
      if (last && std::strcmp(kernel->name, last->name) != 0)
        kernel = nullptr;
      else if (std::strcmp(wanted, "default") == 0 || std::strcmp(wanted, kernel->name) == 0)
        last = kernel;
    }
    return supported;
  }();
  return chosen;
}

// The fastest for a call.
const Kernel& kernel(const Params& params) {
  const Kernel* fastest = nullptr;
  for (const Kernel* supported : kernels().kernels)
    if (supported && supported->takes(params)) fastest = supported;
  return *fastest;
}

void require_memory(bool finished) {
  if (!finished) throw std::runtime_error("attention: native: there is not enough memory");
}

// ---- the ops ------------------------------------------------------------------------------------

Ints contiguous_strides(const Ints& sizes) {
  Ints strides(sizes.size(), 1);
  for (size_t n = sizes.size(); n > 1; --n)
    strides[n - 2] = strides[n - 1] * std::max<int64_t>(sizes[n - 1], 1);
  return strides;
}

// As torch::stable::new_empty, without the dispatcher, in which a small call would spend its time.
Tensor empty(const Ints& sizes, const Ints& strides, ScalarType dtype) {
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      (int64_t)sizes.size(), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)),
      aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}
Tensor empty(const Ints& sizes, ScalarType dtype) {
  return empty(sizes, contiguous_strides(sizes), dtype);
}

// The same of sizes (B, H, L, D) with the heads where x (B, H, ...) has them, as empty_as in
// relpos/ops/result_layout.py.
Tensor empty_as(const Tensor& x, const Ints& sizes, ScalarType dtype) {
  if (!(0 < x.stride(1) && x.stride(1) < x.stride(2))) return empty(sizes, dtype);
  const Ints strides = contiguous_strides({sizes[0], sizes[2], sizes[1], sizes[3]});
  return empty(sizes, {strides[0], strides[2], strides[1], strides[3]}, dtype);
}

// Of x (B, H, L, D), of which D is contiguous.
ResultView result_view(const Tensor& x) {
  return {x.mutable_data_ptr(), {stride(x, 0), stride(x, 1), stride(x, 2)}};
}

void forward(StableIValue* stack, uint64_t num_arguments, uint64_t) {
  ArgumentReader next(stack, num_arguments);
  const Arguments arguments{next};
  next.finish();
  BoundParams bound(arguments);
  Params& params = bound.params;
  const int64_t b = params.batch, h = params.heads, i = params.seqlen_q;
  Tensor output =
      empty_as(arguments.q, {b, h, i, params.value_dim}, arguments.q.scalar_type());
  Tensor lse = empty({b, h, i}, ScalarType::Float);
  Tensor softmax = empty({2, b, h, i}, ScalarType::Float);
  params.output = result_view(output);
  params.lse = lse.mutable_data_ptr<float>();
  bound.bind_softmax(softmax);
  require_memory(kernel(params).forward(params, host()));
  stack[0] = torch::stable::detail::from(output);
  stack[1] = torch::stable::detail::from(lse);
  stack[2] = torch::stable::detail::from(softmax);
}

// The gradients of the inputs that may want one, in the order of the schema; empty tensors for
// those that do not.
struct GradientTensors {
  ScalarType dtype;  // of the call
  const Ints& needs;  // 0 or 1 for each of them
  std::vector<Tensor> tensors = {};

  static Ints sizes_of(const Tensor& x) { return Ints(x.sizes().begin(), x.sizes().end()); }
  // Whether the next input's gradient is wanted; if not, it is an empty tensor.
  bool wants(const OptionalTensor& input) {
    if (needs.at(tensors.size()) && input) return true;
    tensors.push_back(empty({0}, ScalarType::Float));
    return false;
  }
  // Memory for the next input's gradient; null if it is not wanted.
  void* add(const OptionalTensor& input, ScalarType of_gradient) {
    if (!wants(input)) return nullptr;
    tensors.push_back(empty(sizes_of(*input), of_gradient));
    return tensors.back().mutable_data_ptr();
  }
  // The same for q, k, v or q_rel, with the heads where the input has them.
  ResultView add_as(const OptionalTensor& input) {
    if (!wants(input)) return {};
    tensors.push_back(empty_as(*input, sizes_of(*input), dtype));
    return result_view(tensors.back());
  }
  void* add(const OptionalTensor& input) { return add(input, dtype); }
  float* add_float(const OptionalTensor& input) { return (float*)add(input, ScalarType::Float); }
  // For those that a kernel only adds to: what is added to scores as it is.
  float* add_zeros(const OptionalTensor& input) {
    float* const data = add_float(input);
    if (data) torch::stable::zero_(tensors.back());
    return data;
  }
};

void backward(StableIValue* stack, uint64_t num_arguments, uint64_t) {
  ArgumentReader next(stack, num_arguments);
  const Tensor d_output = next.tensor();
  const OptionalTensor d_lse = next.optional_tensor();
  const Tensor output = next.tensor();
  const Tensor softmax = next.tensor();
  const Ints needs = next.ints();
  const Arguments arguments{next};
  next.finish();
  BoundParams bound(arguments);
  Params& params = bound.params;
  const int64_t b = params.batch, h = params.heads, i = params.seqlen_q;
  for (const Tensor* const x : {&d_output, &output})
    require(has_sizes(*x, {b, h, i, params.value_dim}) &&
                x->scalar_type() == arguments.q.scalar_type(),
            "output and d_output must be (b, h, i, dv), in the dtype of q");
  require(has_sizes(softmax, {2, b, h, i}) && softmax.scalar_type() == ScalarType::Float,
          "softmax must be (2, b, h, i) in float32");
  require(!d_lse || (has_sizes(*d_lse, {b, h, i}) && d_lse->scalar_type() == ScalarType::Float),
          "d_lse must be (b, h, i) in float32");
  params.output = result_view(bound.keeper.contiguous_rows(output));
  bound.bind_softmax(bound.keeper.contiguous(softmax));
  params.d_output = bound.keeper.view(d_output);
  if (d_lse) params.d_lse = bound.keeper.view(*d_lse);
  GradientTensors results{arguments.q.scalar_type(), needs};
  Gradients& gradients = params.gradients;
  gradients.q = results.add_as(arguments.q);
  gradients.k = results.add_as(arguments.k);
  gradients.v = results.add_as(arguments.v);
  gradients.tables[kKeys] = results.add(arguments.keys);
  gradients.tables[kQueries] = results.add(arguments.queries);
  gradients.tables[kBias] = results.add(arguments.bias);
  gradients.tables[kValues] = results.add(arguments.values);
  gradients.q_rel = results.add_as(arguments.q_rel);
  gradients.mask = results.add_zeros(arguments.mask);
  if (gradients.mask)
    for (int64_t axis = 0; axis < 4; ++axis)
      gradients.mask_strides[axis] = stride(results.tensors.back(), axis);
  gradients.axis_tables = results.add_float(arguments.axis_tables);
  gradients.joint_bias = results.add_zeros(arguments.joint_bias);
  require_memory(kernel(params).backward(params, host()));
  stack[0] = torch::stable::detail::from(results.tensors);
}

std::string instructions() {
  std::string name;
  for (const Kernel* supported : kernels().kernels)
    if (supported) name = supported->name;
  return name;
}

}  // namespace
}  // namespace relpos

// Each op twice: relpos/ops/custom_op.py gives a derivative to the one, and graphs that
// torch.compile makes call the other.
#define RELPOS_FORWARD "(" RELPOS_ARGUMENTS ") -> (Tensor, Tensor, Tensor)"
#define RELPOS_BACKWARD                                                                          \
  "(Tensor d_output, Tensor? d_lse, Tensor output, Tensor softmax, int[] needs, "                 \
  RELPOS_ARGUMENTS ") -> Tensor[]"

STABLE_TORCH_LIBRARY_FRAGMENT(relpos, library) {
  library.def("native_forward" RELPOS_FORWARD);
  library.def("native_backward" RELPOS_BACKWARD);
  library.def("native_forward_kernel" RELPOS_FORWARD);
  library.def("native_backward_kernel" RELPOS_BACKWARD);
  library.def("native_instructions() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CPU, library) {
  library.impl("native_forward", relpos::forward);
  library.impl("native_backward", relpos::backward);
  library.impl("native_forward_kernel", relpos::forward);
  library.impl("native_backward_kernel", relpos::backward);
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CompositeExplicitAutograd, library) {
  library.impl("native_instructions", TORCH_BOX(&relpos::instructions));
}
