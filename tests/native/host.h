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

// Those that this machine can run.
inline std::vector<const Kernel*> kernels() {
  std::vector<const Kernel*> all;
  for (const Kernel* kernel : relpos::SupportedKernels().kernels)
    if (kernel) all.push_back(kernel);
  return all;
}

}  // namespace fuzz
