// For every processor: vectors of 128 bits, which the compiler maps to what is there.
#include "call.h"

#define W 4
#if defined(__aarch64__)
#define MR 6
#define NV 4
#else
#define MR 4
#define NV 2
#endif
#include "kernel.h"

namespace relpos {

const Kernel* portable_kernel() {
  static const Kernel kernel = {"portable", run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos
