// The kernel for x86-64 processors with AVX2 and FMA.
//
// Everything that run_*.h include is compiled for these instructions, whatever the command line
// says; what is included before the pragma is not.
#include "kernel.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define RELPOS_F16C
#define RELPOS_LANES 8
#define RELPOS_MR 6
#define RELPOS_NR_VECTORS 2
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {

const Kernel* avx2_kernel() {
  static const Kernel kernel = {"avx2", takes_all, false, run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const relpos::Kernel* relpos::avx2_kernel() { return nullptr; }

#endif
