#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "troupe/kernels/binned_plan/binned_plan.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : tokens(state.range(0)),
        choices(state.range(1)),
        experts(state.range(2)),
        slots(tokens * choices),
        indices(slots),
        bins(experts),
        padded_bins(experts),
        expert_offset(experts + 1),
        row_src(slots + experts * 128),
        row_slot(row_src.size()),
        slot_row(slots),
        counts(experts) {
    for (int64_t s = 0; s < slots; ++s) indices[s] = static_cast<int32_t>(s);
    std::mt19937 rng(7);
    std::shuffle(indices.data(), indices.data() + slots, rng);
    int32_t padded = 0;
    for (int64_t e = 0; e < experts; ++e) {
      bins[e] = static_cast<int32_t>((e + 1) * slots / experts);
      padded_bins[e] = padded += (bins[e] - (e == 0 ? 0 : bins[e - 1]) + 127) / 128 * 128;
    }
  }
  BinnedPlan args() {
    return {.tokens = tokens,
            .choices = choices,
            .experts = experts,
            .indices = indices.data(),
            .num_indices = slots,
            .bins = bins.data(),
            .padded_bins = padded_bins.data(),
            .rows = static_cast<int64_t>(row_src.size()),
            .expert_offset = expert_offset.data(),
            .row_src = row_src.data(),
            .row_slot = row_slot.data(),
            .slot_row = slot_row.data(),
            .counts = counts.data()};
  }
  int64_t tokens, choices, experts, slots;
  testing::Buffer<int32_t> indices, bins, padded_bins, expert_offset, row_src, row_slot, slot_row;
  testing::Buffer<int64_t> counts;
};

void measure(benchmark::State& state, void (*run)(const BinnedPlan&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, binned_plan_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const BinnedPlan& a) { binned_plan_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({16384, 4, 128})->Args({32768, 8, 128})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const BinnedPlan& a) {
    binned_plan_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
