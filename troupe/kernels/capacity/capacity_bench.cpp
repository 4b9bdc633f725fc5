#include <benchmark/benchmark.h>

#include <cmath>

#include "troupe/kernels/capacity/capacity.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : rows({.tokens = state.range(0), .choices = state.range(1), .experts = state.range(2)}),
        weights(state.range(0) * state.range(1)),
        kept_weights(weights.size()),
        kept_ids(weights.size()),
        dropped(1),
        workspace(1) {
    testing::fill_normal(weights, 7);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::abs(weights[i]);
  }
  DropOverCapacity args() {
    const int64_t T = rows.shape.tokens, K = rows.shape.choices;
    return {.plan = rows.read<PlanRef>(),
            .ids = rows.ids.data(),
            .weights = {weights.data(), Dtype::kF32, T, K, K},
            .rule = {.factor = 1},
            .kept_ids = kept_ids.data(),
            .kept_weights = {kept_weights.data(), Dtype::kF32, T, K, K},
            .dropped = dropped.data(),
            .workspace = workspace.data()};
  }
  testing::RoutedRows rows;
  testing::Buffer<float> weights, kept_weights;
  testing::Buffer<int32_t> kept_ids;
  testing::Buffer<int64_t> dropped, workspace;
};

void measure(benchmark::State& state, void (*run)(const DropOverCapacity&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, drop_over_capacity_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const DropOverCapacity& a) { drop_over_capacity_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 2, 8})->Args({32768, 8, 128})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({2048, 2, 8})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const DropOverCapacity& a) {
    drop_over_capacity_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
