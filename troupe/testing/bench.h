// What the kernels' benchmarks share: bytes moved a second by one call.
#pragma once

#include <benchmark/benchmark.h>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/testing/backend.h"

namespace troupe::testing {

// bytes_moved(args) is the kernel's own.
template <class Args, class Body>
void measure(benchmark::State& state, const Args& args, const Body& body, int calls = 1) {
  for (auto _ : state) body(args);
  state.SetBytesProcessed(state.iterations() * calls * bytes_moved(args));
}

// On one thread.
template <class Args>
void measure_cpu(benchmark::State& state, const Args& args, void (*cpu)(const Args&, const Pool&)) {
  measure(state, args, [cpu](const Args& a) { cpu(a, serial); });
}

#ifdef TROUPE_CUDA
// First in a GPU's benchmark, before its problem is made.
inline bool no_gpu(benchmark::State& state) {
  if (available(Backend::kCuda)) return false;
  state.SkipWithError("no GPU here");
  return true;
}

// `launches` for one wait: they follow each other as in a step.
template <class Args>
void measure_cuda(benchmark::State& state, const Args& args,
                  void (*cuda)(const Args&, cudaStream_t), int launches = 1) {
  const auto body = [=](const Args& a) {
    for (int i = 0; i < launches; ++i) cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  };
  measure(state, args, body, launches);
}
#endif

}  // namespace troupe::testing
