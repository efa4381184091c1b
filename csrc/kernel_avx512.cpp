// For x86-64 processors with AVX-512.
#include "call.h"

#define KERNEL avx512
#define TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"

#define W 16
#define MR 8
#define NV 2
#include "x86.h"
