#include <benchmark/benchmark.h>

#include <cstring>

#include "troupe/kernels/adamw/adamw.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Matrix;

void measure(benchmark::State& state, void (*body)(const AdamW&)) {
  const int64_t n = state.range(0);
  const auto grad_type = static_cast<Dtype>(state.range(1));
  Matrix param(Dtype::kF32, 1, n), grad(grad_type, 1, n), m(Dtype::kF32, 1, n),
      v(Dtype::kF32, 1, n), copy(Dtype::kBF16, 1, n);
  param.fill(1);
  grad.fill(0.01);
  const bool halves = state.range(2) != 0;
  testing::Buffer<uint16_t> remainder(static_cast<size_t>(n));
  std::memset(remainder.data(), 0, remainder.size() * sizeof(uint16_t));
  const AdamW args{.param = halves ? MutRef{} : param.mut(),
                   .grad = grad.view(),
                   .m = m.mut(),
                   .v = v.mut(),
                   .step = 100,
                   .lr = 1e-4,
                   .copy = grad_type == Dtype::kF32 ? MutRef{} : copy.mut(),
                   .remainder = halves ? Mat<uint16_t>{remainder.data(), 1, n, n} : Mat<uint16_t>{},
                   .weight_decay = 0.1};
  for (auto _ : state) body(args);
  state.SetBytesProcessed(state.iterations() * bytes_moved(args));
}

void ref(benchmark::State& state) {
  measure(state, adamw_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const AdamW& a) { adamw_cpu(a, serial); });
}
// Elements, the gradient's type, and whether the parameter is in halves.
BENCHMARK(ref)->Args({1 << 16, int(Dtype::kF32), 0})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)
    ->Args({1 << 22, int(Dtype::kF32), 0})
    ->Args({1 << 22, int(Dtype::kBF16), 0})
    ->Args({1 << 22, int(Dtype::kBF16), 1})
    ->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const AdamW& a) {
    adamw_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)
    ->Args({1 << 26, int(Dtype::kBF16), 0})
    ->Args({1 << 26, int(Dtype::kBF16), 1})
    ->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
