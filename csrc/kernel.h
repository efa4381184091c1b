// A kernel as its callers see it: ops.cpp, and the programs in tests/native.
#pragma once

#include <stdint.h>

#include "params.h"

namespace relpos {

// What a kernel needs of its host: torch (ops.cpp), or a test (tests/native/host.h).
struct Host {
  int threads;
  // Calls body(context, n) for n = 0..count-1, on at most `threads` threads.
  void (*parallel)(int64_t count, void (*body)(void* context, int64_t n), void* context);
  // 64-byte aligned memory; null if there is none. `release` takes null too.
  void* (*allocate)(uint64_t bytes);
  void (*release)(void* memory);
};

struct Kernel {
  const char* name;
  // Whether it is made for such a call.
  bool (*takes)(const Params&);
  // The largest relative errors of rounding the weights and their gradients before products, and of
  // any product, beyond those of floats.
  double weight_error, product_error;
  // Both return false if there is no memory.
  bool (*forward)(const Params&, const Host&);
  bool (*backward)(const Params&, const Host&);
};

// One for each kernel_*.cpp.
const Kernel* portable_kernel();
const Kernel* avx2_kernel();    // null where it was not compiled
const Kernel* avx512_kernel();  // null where it was not compiled
const Kernel* neon_kernel();    // null where it was not compiled
// Null where they were not compiled, or the system refuses the use.
const Kernel* amx_kernel();
const Kernel* amx_split_kernel();
const Kernel* bfmmla_kernel();  // null where it was not compiled, or the processor has no BFMMLA

inline bool takes_all(const Params&) { return true; }

// Those that this processor can run, from the slowest to the fastest; null after the last.
struct SupportedKernels {
  const Kernel* kernels[6] = {};

  SupportedKernels() {
    const Kernel** next = kernels;
    *next++ = portable_kernel();
#if defined(__x86_64__)
    // Those with AVX2 have F16C too, which not all compilers can ask for.
    if (avx2_kernel() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      *next++ = avx2_kernel();
    if (avx512_kernel() && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      *next++ = avx512_kernel();
#elif defined(__aarch64__)
    *next++ = neon_kernel();
    if (bfmmla_kernel()) *next++ = bfmmla_kernel();
#endif
    if (amx_split_kernel()) *next++ = amx_split_kernel();
    if (amx_kernel()) *next++ = amx_kernel();
  }
};

}  // namespace relpos
