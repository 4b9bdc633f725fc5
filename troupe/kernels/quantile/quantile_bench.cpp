#include <benchmark/benchmark.h>

#include "troupe/kernels/quantile/quantile.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : logits(Dtype::kF32, state.range(0), state.range(1)),
        beta(state.range(1)),
        next(state.range(1)),
        workspace(workspace_bytes({.logits = logits.view()})) {
    logits.fill_normal(7);
    std::fill_n(beta.data(), beta.size(), 0.0f);
  }
  Quantile args() {
    return {.logits = logits.view(),
            .choices = 8,
            .beta = beta.data(),
            .next = next.data(),
            .workspace = workspace.data()};
  }
  testing::Matrix logits;
  testing::Buffer<float> beta, next;
  testing::Buffer<char> workspace;
};

void measure(benchmark::State& state, void (*run)(const Quantile&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}
void cpu(benchmark::State& state) {
  measure(state, [](const Quantile& a) { quantile_cpu(a, serial); });
}
BENCHMARK(cpu)->Args({8192, 64})->Args({8192, 256})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Quantile& a) {
    quantile_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Args({8192, 64})->Args({65536, 256})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
