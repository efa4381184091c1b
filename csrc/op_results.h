// What an op gives back: new tensors, as views for a kernel to write to.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "op_arguments.h"
#include "op_params.h"
#include "params.h"

namespace relpos {

inline Ints contiguous_strides(const Ints& sizes) {
  Ints strides(sizes.size(), 1);
  for (size_t n = sizes.size(); n > 1; --n)
    strides[n - 2] = strides[n - 1] * std::max<int64_t>(sizes[n - 1], 1);
  return strides;
}

// As torch::stable::new_empty, without the dispatcher, in which a small call would spend its time.
inline Tensor empty(const Ints& sizes, const Ints& strides, ScalarType dtype) {
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      (int64_t)sizes.size(), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)),
      aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}
inline Tensor empty(const Ints& sizes, ScalarType dtype) {
  return empty(sizes, contiguous_strides(sizes), dtype);
}

// The same of sizes (B, H, L, D) with the heads where x (B, H, ...) has them, as empty_as in
// relpos/ops/result_layout.py.
inline Tensor empty_as(const Tensor& x, const Ints& sizes, ScalarType dtype) {
  if (!(0 < x.stride(1) && x.stride(1) < x.stride(2))) return empty(sizes, dtype);
  const Ints strides = contiguous_strides({sizes[0], sizes[2], sizes[1], sizes[3]});
  return empty(sizes, {strides[0], strides[2], strides[1], strides[3]}, dtype);
}

// Of x (B, H, L, D), of which D is contiguous.
inline ResultView result_view(const Tensor& x) {
  return {x.mutable_data_ptr(), {stride(x, 0), stride(x, 1), stride(x, 2)}};
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

}  // namespace relpos
