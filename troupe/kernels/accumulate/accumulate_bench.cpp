#include <benchmark/benchmark.h>

#include "troupe/kernels/accumulate/accumulate.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

void measure(benchmark::State& state, void (*body)(const Accumulate&)) {
  const int64_t n = state.range(0);
  testing::Matrix x(static_cast<Dtype>(state.range(1)), 1, n), sum(Dtype::kF32, 1, n);
  const Accumulate args{
      .x = x.view(), .sum = sum.mut().as<float>().data, .add = state.range(2) != 0};
  for (auto _ : state) body(args);
  state.SetBytesProcessed(state.iterations() * bytes_moved(args));
}

void ref(benchmark::State& state) {
  measure(state, accumulate_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Accumulate& a) { accumulate_cpu(a, serial); });
}
BENCHMARK(ref)->Args({1 << 20, int(Dtype::kBF16), 1})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)
    ->Args({1 << 24, int(Dtype::kBF16), 0})
    ->Args({1 << 24, int(Dtype::kBF16), 1})
    ->Args({1 << 24, int(Dtype::kF32), 1})
    ->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Accumulate& a) {
    accumulate_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)
    ->Args({1 << 28, int(Dtype::kBF16), 0})
    ->Args({1 << 28, int(Dtype::kBF16), 1})
    ->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
