#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/routing_plan/routing_plan.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : shape{.tokens = state.range(0),
              .choices = state.range(1),
              .experts = state.range(2),
              .tile_height = 128},
        ids(shape.tokens * shape.choices),
        slot_row(ids.size()),
        expert_offset(shape.experts + 1),
        row_src(row_bound(shape)),
        row_slot(row_src.size()),
        tile_list(2 * tile_bound(shape)),
        tile_count(1),
        counts(shape.experts),
        workspace(workspace_bytes(RoutingPlan{.shape = shape})) {
    std::mt19937 rng(7);
    std::uniform_int_distribution<int32_t> expert(0, static_cast<int32_t>(shape.experts) - 1);
    for (size_t s = 0; s < ids.size(); ++s) ids[s] = expert(rng);
  }
  RoutingPlan args() {
    return {.shape = shape,
            .ids = ids.data(),
            .counts = counts.data(),
            .expert_offset = expert_offset.data(),
            .row_src = row_src.data(),
            .row_slot = row_slot.data(),
            .slot_row = slot_row.data(),
            .tile_list = tile_list.data(),
            .tile_count = tile_count.data(),
            .workspace = workspace.data()};
  }
  PlanShape shape;
  testing::Buffer<int32_t> ids, slot_row, expert_offset, row_src, row_slot, tile_list, tile_count;
  testing::Buffer<int64_t> counts;
  testing::Buffer<uint8_t> workspace;
};

template <class Run>
void measure(benchmark::State& state, const Run& run) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, routing_plan_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const RoutingPlan& a) { routing_plan_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 2, 8})->Args({32768, 8, 128})->Args({32768, 8, 1024})->Args({32768, 8, 70000});
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  constexpr int kRuns = 20;  // A wait a batch: the launches follow each other as in a step.
  measure(state, [](const RoutingPlan& a) {
    for (int i = 0; i < kRuns; ++i) routing_plan_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
  state.SetBytesProcessed(state.bytes_processed() * kRuns);
  state.counters["us_each"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kRuns * 1e-6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
