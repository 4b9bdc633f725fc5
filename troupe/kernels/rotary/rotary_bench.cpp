#include <benchmark/benchmark.h>

#include "troupe/kernels/rotary/rotary.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : head_dim(state.range(2)),
        x(static_cast<Dtype>(state.range(3)), state.range(0), state.range(1) * head_dim),
        cos(Dtype::kF32, 512, head_dim / 2),
        sin(Dtype::kF32, 512, head_dim / 2) {
    x.fill_normal(1);
    cos.fill(0.6);
    sin.fill(0.8);
  }
  Rotary args(RotaryForm form) {
    return {.x = x.view(),
            .y = x.mut(),
            .cos = cos.view(),
            .sin = sin.view(),
            .head_dim = head_dim,
            .form = form};
  }
  int64_t head_dim;
  Matrix x, cos, sin;
};

void measure(benchmark::State& state, RotaryForm form, void (*body)(const Rotary&)) {
  Problem p(state);
  for (auto _ : state) body(p.args(form));
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args(form)));
}

void on_cpu(const Rotary& a) {
  rotary_cpu(a, serial);
}
void ref(benchmark::State& state) {
  measure(state, RotaryForm::kHalf, rotary_ref);
}
void cpu_half(benchmark::State& state) {
  measure(state, RotaryForm::kHalf, on_cpu);
}
void cpu_interleaved(benchmark::State& state) {
  measure(state, RotaryForm::kInterleaved, on_cpu);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({4096, 8, 64, int(Dtype::kF32)})->Args({4096, 8, 64, int(Dtype::kBF16)});
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({128, 8, 64, int(Dtype::kF32)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu_half)->Apply(shapes);
BENCHMARK(cpu_interleaved)->Apply(shapes);

#ifdef TROUPE_CUDA
void on_cuda(const Rotary& a) {
  rotary_cuda(a, nullptr);
  TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
}
void cuda_half(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, RotaryForm::kHalf, on_cuda);
}
void cuda_interleaved(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, RotaryForm::kInterleaved, on_cuda);
}
BENCHMARK(cuda_half)->Args({32768, 16, 128, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cuda_interleaved)
    ->Args({32768, 16, 128, int(Dtype::kBF16)})
    ->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
