// A kernel for some x86-64 processors. Included, after call.h, by a source file that has said
// KERNEL, its name; TARGET, the instructions it may use, in the compiler's words; and what kernel.h
// wants to know.
#pragma once

#define RELPOS_FUNCTION_OF(name) name##_kernel
#define RELPOS_FUNCTION(name) RELPOS_FUNCTION_OF(name)
#define RELPOS_WORD_OF(name) #name
#define RELPOS_WORD(name) RELPOS_WORD_OF(name)
#define RELPOS_PRAGMA(words) _Pragma(#words)
#define RELPOS_FOR_CLANG(target_words) \
  RELPOS_PRAGMA(clang attribute push(__attribute__((target(target_words))), apply_to = function))
#define RELPOS_FOR_GCC(target_words) RELPOS_PRAGMA(GCC target(target_words))

#if defined(__x86_64__)

#if defined(__clang__)
RELPOS_FOR_CLANG(TARGET)
#else
RELPOS_FOR_GCC(TARGET)
#endif

#include "kernel.h"

namespace relpos {

const Kernel* RELPOS_FUNCTION(KERNEL)() {
  static const Kernel kernel = {RELPOS_WORD(KERNEL), run_forward, run_backward};
  return &kernel;
}

}  // namespace relpos

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace relpos {
const Kernel* RELPOS_FUNCTION(KERNEL)() { return nullptr; }
}  // namespace relpos

#endif
