// For x86-64 processors with AVX2 and FMA.
#include "call.h"

#define KERNEL avx2
#define TARGET "avx2,fma"

#define W 8
#define MR 6
#define NV 2
#include "x86.h"
