#include <benchmark/benchmark.h>

#include <random>

#include "troupe/kernels/histogram/histogram.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : rows(state.range(0)),
        n(state.range(1)),
        bins(state.range(2)),
        x(rows * n),
        out(rows * bins) {
    std::mt19937 rng(7);
    std::uniform_int_distribution<int32_t> value(0, static_cast<int32_t>(bins) - 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] = value(rng);
  }
  Histogram args() {
    return {.x = {x.data(), IntDtype::kI32, rows, n}, .bins = bins, .out = out.data()};
  }
  int64_t rows, n, bins;
  testing::Buffer<int32_t> x, out;
};

void measure(benchmark::State& state, void (*run)(const Histogram&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void ref(benchmark::State& state) {
  measure(state, histogram_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Histogram& a) { histogram_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 16384, 128})->Args({1, 65536, 128})->Args({1, 262144, 128});
  b->Args({8, 16384, 1024})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Apply(shapes);
BENCHMARK(cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
template <bool kGeneric>
void on_gpu(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Histogram& a) {
    Histogram args = a;
    args.generic = kGeneric;
    histogram_cuda(args, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
void cuda(benchmark::State& state) {
  on_gpu<false>(state);
}
void cuda_generic(benchmark::State& state) {
  on_gpu<true>(state);
}
BENCHMARK(cuda)->Apply(shapes);
BENCHMARK(cuda_generic)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
