// The kernel for x86-64 processors with AVX-512.
//
// Everything that run_*.h include is compiled for these instructions, whatever the command line
// says; what is included before the pragma is not.
#include "kernel.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define RELPOS_F16C
#define RELPOS_LANES 16
#define RELPOS_MR 8
#define RELPOS_NR_VECTORS 2
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {

const Kernel* avx512_kernel() {
  static const Kernel kernel = {"avx512", takes_all, false, run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const relpos::Kernel* relpos::avx512_kernel() { return nullptr; }

#endif
