// For x86-64 processors with AVX-512.
#include "call.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#define W 16
#define MR 8
#define NV 2
#include "kernel.h"

namespace relpos {

const Kernel* avx512_kernel() {
  static const Kernel kernel = {"avx512", run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace relpos {
const Kernel* avx512_kernel() { return nullptr; }
}  // namespace relpos
#endif
