// An op's arguments, as its schema has them. A new one is a line in the schema and a line below it.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

namespace relpos {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Ints = std::vector<int64_t>;

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
  "Tensor? key_ranges=None, Tensor? axis_ranges=None, Tensor? seed=None, float scale=1., "        \
  "bool causal=False, "                                                                           \
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
  OptionalTensor axis_ranges = next.optional_tensor();
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

}  // namespace relpos
