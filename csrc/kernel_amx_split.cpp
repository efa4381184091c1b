// The kernel for float16, and for float32 where torch's precision of products is "high", on
// processors with AMX: each number of a product is split into two bfloat16 numbers.
#define RELPOS_PARTS 2
#include "kernel_amx.cpp"
