#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/slot_dot/slot_dot.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : routed({.tokens = state.range(0), .choices = state.range(1), .experts = state.range(2)}),
        width(state.range(3)),
        rows(routed.rows * width),
        tokens(routed.shape.tokens * width),
        dots(routed.shape.tokens * routed.shape.choices) {
    // Random bits of moderate size: zeros would flatter a GPU.
    std::mt19937 rng(7);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].bits = 0x3c00 | (rng() & 0x83ff);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i].bits = 0x3c00 | (rng() & 0x83ff);
  }
  SlotDot args() {
    const int64_t T = routed.shape.tokens;
    return {.plan = routed.read<PlanRef>(),
            .rows = {rows.data(), Dtype::kBF16, routed.rows, width, width},
            .x = {tokens.data(), Dtype::kBF16, T, width, width},
            .out = {dots.data(), Dtype::kF32, T, routed.shape.choices, routed.shape.choices}};
  }
  testing::RoutedRows routed;
  int64_t width;
  testing::Buffer<BF16> rows, tokens;
  testing::Buffer<float> dots;
};

template <class Run>
void measure(benchmark::State& state, const Run& run) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, slot_dot_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const SlotDot& a) { slot_dot_cpu(a, serial); });
}
BENCHMARK(ref)->Args({512, 2, 8, 512})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Args({512, 2, 8, 512})->Args({2048, 8, 64, 2048})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  constexpr int kRuns = 10;  // A wait a batch: the launches follow each other as in a step.
  measure(state, [](const SlotDot& a) {
    for (int i = 0; i < kRuns; ++i) slot_dot_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
  state.SetBytesProcessed(state.bytes_processed() * kRuns);
}
BENCHMARK(cuda)
    ->Args({24576, 8, 128, 1536})
    ->Args({32768, 8, 128, 4096})
    ->Args({8192, 2, 8, 4096})
    ->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
