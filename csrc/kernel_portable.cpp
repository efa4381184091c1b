// The kernel for every processor: vectors of 128 bits, which the compiler maps to what is there.
#include "kernel.h"

#define RELPOS_LANES 4
#define RELPOS_MR 4
#define RELPOS_NR_VECTORS 2
#include "run_forward.h"
#include "run_backward.h"

namespace relpos {

const Kernel* portable_kernel() {
  static const Kernel kernel = {"portable", takes_all, 0, 0, run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos
