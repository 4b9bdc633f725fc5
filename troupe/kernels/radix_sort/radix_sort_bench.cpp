#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/radix_sort/radix_sort.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : n(state.range(0)),
        bits(static_cast<int>(state.range(1))),
        x(n),
        out(n),
        indices(n),
        workspace(workspace_bytes(
            RadixSort{.x = {nullptr, IntDtype::kI32, 1, n}, .end_bit = bits, .out = {}})) {
    std::mt19937 rng(7);
    std::uniform_int_distribution<int32_t> value(0, static_cast<int32_t>((int64_t{1} << bits) - 1));
    for (size_t i = 0; i < x.size(); ++i) x[i] = value(rng);
  }
  RadixSort args() {
    return {.x = {x.data(), IntDtype::kI32, 1, n},
            .end_bit = bits,
            .out = {out.data(), IntDtype::kI32, 1, n},
            .indices = indices.data(),
            .workspace = workspace.data()};
  }
  int64_t n;
  int bits;
  testing::Buffer<int32_t> x, out, indices;
  testing::Buffer<uint8_t> workspace;
};

void measure(benchmark::State& state, void (*run)(const RadixSort&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, radix_sort_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const RadixSort& a) { radix_sort_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({16384, 7})->Args({16384, 31})->Args({262144, 7})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const RadixSort& a) {
    radix_sort_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
