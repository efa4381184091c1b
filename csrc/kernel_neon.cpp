// The kernel for 64-bit ARM processors, all of which have NEON: 32 registers of 128 bits.
//
// A register block has 20 sums: of 24, GCC keeps some in memory.
#include "kernel.h"

#if defined(__aarch64__)

#define RELPOS_LANES 4
#define RELPOS_MR 5
#define RELPOS_NR_VECTORS 4
#define RELPOS_NEON
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {

const Kernel* neon_kernel() {
  static const Kernel kernel = {"neon", takes_all, 0, 0, run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#else

const relpos::Kernel* relpos::neon_kernel() { return nullptr; }

#endif
