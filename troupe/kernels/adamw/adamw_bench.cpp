#include <benchmark/benchmark.h>

#include <cstring>

#include "troupe/core/number/moment8.h"
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
  const bool halves = state.range(2) != 0, codes = state.range(3) != 0;
  testing::Buffer<uint8_t> m8(static_cast<size_t>(n)), v8(m8.size());
  testing::Buffer<float> scales(static_cast<size_t>(2 * moment_blocks(n)));
  std::memset(m8.data(), 0, m8.size());
  std::memset(v8.data(), 0, v8.size());
  std::memset(scales.data(), 0, scales.size() * sizeof(float));
  const auto coded = [&](testing::Buffer<uint8_t>& x, int64_t from) -> MomentCodes {
    if (!codes) return {};
    const int64_t blocks = moment_blocks(n);
    return {{x.data(), 1, n, n}, {scales.data() + from, 1, blocks, blocks}};
  };
  testing::Buffer<uint16_t> remainder(static_cast<size_t>(n));
  std::memset(remainder.data(), 0, remainder.size() * sizeof(uint16_t));
  const AdamW args{.param = halves ? MutRef{} : param.mut(),
                   .grad = grad.view(),
                   .m = codes ? MutRef{} : m.mut(),
                   .v = codes ? MutRef{} : v.mut(),
                   .step = 100,
                   .lr = 1e-4,
                   .copy = grad_type == Dtype::kF32 ? MutRef{} : copy.mut(),
                   .remainder = halves ? Mat<uint16_t>{remainder.data(), 1, n, n} : Mat<uint16_t>{},
                   .m8 = coded(m8, 0),
                   .v8 = coded(v8, moment_blocks(n)),
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
// Elements, the gradient's type, whether the parameter is in halves and the moments in codes.
BENCHMARK(ref)->Args({1 << 16, int(Dtype::kF32), 0, 0})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)
    ->Args({1 << 22, int(Dtype::kF32), 0, 0})
    ->Args({1 << 22, int(Dtype::kBF16), 0, 0})
    ->Args({1 << 22, int(Dtype::kBF16), 1, 0})
    ->Args({1 << 22, int(Dtype::kBF16), 1, 1})
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
    ->Args({1 << 26, int(Dtype::kBF16), 0, 0})
    ->Args({1 << 26, int(Dtype::kBF16), 1, 0})
    ->Args({1 << 26, int(Dtype::kBF16), 1, 1})
    ->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
