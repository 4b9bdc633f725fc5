#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/cumsum/cumsum.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : rows(state.range(0)),
        n(state.range(1)),
        x(rows * n),
        out(rows * n),
        workspace(workspace_bytes(Cumsum{.x = {nullptr, IntDtype::kI32, rows, n}, .out = {}})) {
    std::mt19937 rng(7);
    std::uniform_int_distribution<int32_t> value(0, 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] = value(rng);
  }
  Cumsum args() {
    return {.x = {x.data(), IntDtype::kI32, rows, n},
            .out = {out.data(), IntDtype::kI32, rows, n},
            .workspace = workspace.data()};
  }
  int64_t rows, n;
  testing::Buffer<int32_t> x, out;
  testing::Buffer<uint8_t> workspace;
};

void measure(benchmark::State& state, void (*run)(const Cumsum&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, cumsum_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Cumsum& a) { cumsum_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 128})->Args({128, 16384})->Args({1, 1 << 22})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Cumsum& a) {
    cumsum_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
