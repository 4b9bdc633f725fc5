#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/replicate/replicate.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : rows(state.range(0)),
        experts(state.range(1)),
        n(state.range(2)),
        x(rows * experts),
        bins(experts),
        out(rows * n) {
    std::mt19937 rng(7);
    std::uniform_int_distribution<int32_t> value(0, 1 << 20);
    for (size_t i = 0; i < x.size(); ++i) x[i] = value(rng);
    for (int64_t e = 0; e < experts; ++e) bins[e] = static_cast<int32_t>((e + 1) * n / experts);
  }
  Replicate args() {
    return {.x = x.data(),
            .element_bytes = 4,
            .rows = rows,
            .experts = experts,
            .bins = bins.data(),
            .out = out.data(),
            .outputs = n};
  }
  int64_t rows, experts, n;
  testing::Buffer<int32_t> x, bins, out;
};

void measure(benchmark::State& state, void (*run)(const Replicate&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, replicate_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Replicate& a) { replicate_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({8, 128, 16384})->Args({1, 64, 262144})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Replicate& a) {
    replicate_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
