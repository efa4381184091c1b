// The kernel for bfloat16 on x86-64 processors with AMX, under Linux.
//
// As kernel_avx512.cpp, but for its products, which are made by the matrix unit. With
// RELPOS_EMULATED_TILES it is made for any processor, and emulates that unit (tiles.h): for tests.
#include "kernel.h"

#if defined(RELPOS_EMULATED_TILES) || (defined(__x86_64__) && defined(__linux__))

#if !defined(RELPOS_EMULATED_TILES)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#endif
#define RELPOS_INTRINSICS
#define RELPOS_F16C
#endif

#define RELPOS_LANES 16
#define RELPOS_MR 8
#define RELPOS_NR_VECTORS 2
#define RELPOS_TILES 1
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {
namespace {

// For few queries the keys are not worth their packing.
bool takes_bf16(const Params& params) {
  return params.dtype == Dtype::bf16 && params.seqlen_q > kFewQueries;
}

#if defined(RELPOS_EMULATED_TILES)
bool is_usable() { return true; }
#else
// Whether the processor has the instructions: bits of CPUID's leaf 7, and of its second part.
bool has_instructions() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!(d & kAmxBf16) || !(d & kAmxTile)) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return false;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  return (a & kAvx512Bf16) && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// Linux gives the matrix unit to a process that asks for it, for all its threads. It refuses where
// a thread's alternative stack for signals is too small for the registers, or a sandbox forbids.
bool may_use_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

bool is_usable() { return has_instructions() && may_use_tiles(); }
#endif

}  // namespace

const Kernel* amx_kernel() {
  static const Kernel kernel = {"amx", takes_bf16, true, run_forward, run_backward};
  static const bool usable = is_usable();
  return usable ? &kernel : nullptr;
}

}  // namespace relpos

#if defined(__clang__) && !defined(RELPOS_EMULATED_TILES)
#pragma clang attribute pop
#endif

#else

const relpos::Kernel* relpos::amx_kernel() { return nullptr; }

#endif
