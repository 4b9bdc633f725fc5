#include <benchmark/benchmark.h>

#include "troupe/kernels/grad_norm/grad_norm.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

void measure(benchmark::State& state, void (*body)(const SumSquares&)) {
  testing::Matrix x(static_cast<Dtype>(state.range(1)), 1, state.range(0));
  x.fill(1);
  testing::Buffer<double> out(1);
  SumSquares args{.x = x.view(), .out = out.data()};
  testing::Buffer<char> workspace(workspace_bytes(args));
  args.workspace = workspace.data();
  for (auto _ : state) body(args);
  state.SetBytesProcessed(state.iterations() * bytes_moved(args));
}

void ref(benchmark::State& state) {
  measure(state, sum_squares_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const SumSquares& a) { sum_squares_cpu(a, serial); });
}
BENCHMARK(ref)->Args({1 << 20, int(Dtype::kF32)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)
    ->Args({1 << 24, int(Dtype::kF32)})
    ->Args({1 << 24, int(Dtype::kBF16)})
    ->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const SumSquares& a) {
    sum_squares_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Args({1 << 28, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
