// For x86-64 processors with AVX2 and FMA.
#include "call.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define W 8
#define MR 6
#define NV 2
#include "kernel.h"

namespace relpos {

const Kernel* avx2_kernel() {
  static const Kernel kernel = {"avx2", run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace relpos {
const Kernel* avx2_kernel() { return nullptr; }
}  // namespace relpos
#endif
