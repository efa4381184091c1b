// The ops that torch sees, by its stable C++ interface: one binary for every torch from 2.11 on.
//
// Each op reads its arguments in the order of its schema (op_arguments.h), binds them to a Params
// (op_params.h; params.h has their shapes), and hands that to the fastest kernel for this processor.
// README.md says how to read the other files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernel.h"
#include "op_arguments.h"
#include "op_checks.h"
#include "op_params.h"
#include "op_results.h"

namespace relpos {
namespace {

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

// Where no backward pass follows, without what rounding took off the output.
template <bool alone>
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
  Tensor rounded_off = empty({0}, arguments.q.scalar_type());
  if (!alone && params.dtype != Dtype::f32) {
    rounded_off = empty_as(arguments.q, {b, h, i, params.value_dim}, arguments.q.scalar_type());
    params.rounded_off = result_view(rounded_off);
  }
  params.lse = lse.mutable_data_ptr<float>();
  bound.bind_softmax(softmax);
  require_memory(kernel(params).forward(params, host()));
  stack[0] = torch::stable::detail::from(output);
  stack[1] = torch::stable::detail::from(lse);
  stack[2] = torch::stable::detail::from(softmax);
  stack[3] = torch::stable::detail::from(rounded_off);
}

void backward(StableIValue* stack, uint64_t num_arguments, uint64_t) {
  ArgumentReader next(stack, num_arguments);
  const Tensor d_output = next.tensor();
  const OptionalTensor d_lse = next.optional_tensor();
  const Tensor output = next.tensor();
  const Tensor softmax = next.tensor();
  const Tensor rounded_off = next.tensor();
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
  const bool has_rounded_off = rounded_off.dim() > 1;
  require(rounded_off.scalar_type() == arguments.q.scalar_type() &&
              (has_rounded_off ? has_sizes(rounded_off, {b, h, i, params.value_dim})
                               : has_sizes(rounded_off, {0})),
          "rounded_off must be as the output, or empty");
  require(has_sizes(softmax, {2, b, h, i}) && softmax.scalar_type() == ScalarType::Float,
          "softmax must be (2, b, h, i) in float32");
  require(!d_lse || (has_sizes(*d_lse, {b, h, i}) && d_lse->scalar_type() == ScalarType::Float),
          "d_lse must be (b, h, i) in float32");
  params.output = result_view(bound.keeper.contiguous_rows(output));
  if (has_rounded_off)
    params.rounded_off = result_view(bound.keeper.contiguous_rows(rounded_off));
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
// torch.compile makes call the other; and forward alone, which no backward pass follows.
#define RELPOS_FORWARD "(" RELPOS_ARGUMENTS ") -> (Tensor, Tensor, Tensor, Tensor)"
#define RELPOS_BACKWARD                                                                          \
  "(Tensor d_output, Tensor? d_lse, Tensor output, Tensor softmax, Tensor rounded_off, "           \
  "int[] needs, " RELPOS_ARGUMENTS ") -> Tensor[]"

STABLE_TORCH_LIBRARY_FRAGMENT(relpos, library) {
  library.def("native_forward" RELPOS_FORWARD);
  library.def("native_backward" RELPOS_BACKWARD);
  library.def("native_forward_kernel" RELPOS_FORWARD);
  library.def("native_forward_alone" RELPOS_FORWARD);
  library.def("native_backward_kernel" RELPOS_BACKWARD);
  library.def("native_instructions() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CPU, library) {
  library.impl("native_forward", relpos::forward<false>);
  library.impl("native_backward", relpos::backward);
  library.impl("native_forward_kernel", relpos::forward<false>);
  library.impl("native_forward_alone", relpos::forward<true>);
  library.impl("native_backward_kernel", relpos::backward);
}

STABLE_TORCH_LIBRARY_IMPL(relpos, CompositeExplicitAutograd, library) {
  library.impl("native_instructions", TORCH_BOX(&relpos::instructions));
}
