#include <benchmark/benchmark.h>

#include "troupe/kernels/topology/topology.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : experts(state.range(0)),
        block_rows(state.range(1)),
        columns(state.range(2)),
        bins(experts),
        out(block_rows * columns) {
    for (int64_t e = 0; e < experts; ++e) {
      bins[e] = static_cast<int32_t>((e + 1) * block_rows / experts * 128);
    }
  }
  Topology args() {
    return {.padded_bins = bins.data(),
            .experts = experts,
            .block = 128,
            .block_rows = block_rows,
            .block_columns = columns,
            .out = out.data()};
  }
  int64_t experts, block_rows, columns;
  testing::Buffer<int32_t> bins, out;
};

void measure(benchmark::State& state, void (*run)(const Topology&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, topology_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Topology& a) { topology_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({64, 128, 6})->Args({128, 32769, 16})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Topology& a) {
    topology_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
