// The kernel for bfloat16 on 64-bit ARM processors that multiply it (BFMMLA of ARMv8.6), under
// Linux and macOS.
//
// As kernel_neon.cpp, but for its products, which are made in tiles as a matrix unit makes them
// (bfmmla_tiles.h).
#include "kernel.h"

#if defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))

#if defined(__linux__)
#include <sys/auxv.h>
#else
#include <sys/sysctl.h>
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+bf16")
#endif

#define RELPOS_LANES 16
#define RELPOS_MR 8
#define RELPOS_NR_VECTORS 2
#define RELPOS_TILES 1
#define RELPOS_BFMMLA
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {
namespace {

// For few queries the keys are not worth their packing.
bool takes_bf16(const Params& params) {
  return params.dtype == Dtype::bf16 && params.seqlen_q > kFewQueries;
}

bool has_instructions() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  return getauxval(AT_HWCAP2) & kBf16;
#else
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
#endif
}

}  // namespace

const Kernel* bfmmla_kernel() {
  static const Kernel kernel = {"bfmmla", takes_bf16, 0x1p-8, 0, run_forward, run_backward};
  static const bool usable = has_instructions();
  return usable ? &kernel : nullptr;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const relpos::Kernel* relpos::bfmmla_kernel() { return nullptr; }

#endif
