// What a kernel needs of its host, made hard: real threads, memory that is NaN and may run out.
#pragma once

#include <cstdlib>
#include <thread>

#include "arrays.h"

namespace fuzz {

using relpos::Host;
using relpos::Kernel;

inline int threads = 1;
inline int64_t held = 0, requests = 0, refused = -1;  // pieces of memory; the one not given

inline void parallel(int64_t count, void (*body)(void*, int64_t), void* context) {
  std::vector<std::thread> all;
  for (int64_t t = 0; t < threads; ++t)
    all.emplace_back([=] {
      for (int64_t n = t; n < count; n += threads) body(context, n);
    });
  for (std::thread& one : all) one.join();
}

inline void* allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (requests++ == refused || posix_memalign(&memory, 64, bytes) != 0) return nullptr;
  ++held;
  return std::memset(memory, kNotANumber, bytes);
}

inline void release(void* memory) {
  if (memory) --held;
  std::free(memory);
}

inline Host host() { return {threads, parallel, allocate, release}; }

inline std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> all = {relpos::portable_kernel()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    all.push_back(relpos::avx2_kernel());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    all.push_back(relpos::avx512_kernel());
#endif
  return all;
}

}  // namespace fuzz
