#include <benchmark/benchmark.h>

#include "troupe/kernels/jitter/jitter.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : x(Dtype::kBF16, state.range(0), state.range(1)) {
    x.fill_normal(7);
  }
  Jitter args() {
    return {.x = x.view(),
            .epsilon = 0.01f,
            .rng = noise_rng("bench", {1, 2, 3}),
            .token = {},
            .out = x.mut()};
  }
  testing::Matrix x;
};

void cpu(benchmark::State& state) {
  Problem p(state);
  for (auto _ : state) jitter_cpu(p.args(), serial);
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}
BENCHMARK(cpu)->Args({8192, 2048})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  Problem p(state);
  for (auto _ : state) {
    jitter_cuda(p.args(), nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}
BENCHMARK(cuda)->Args({8192, 2048})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
