#include <benchmark/benchmark.h>

#include <cstring>

#include "troupe/kernels/activation/activation.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : dtype(static_cast<Dtype>(state.range(2))),
        rows(state.range(0)),
        units(state.range(1)),
        kind{.act = static_cast<Act>(state.range(3))},
        h(dtype, rows, 2 * units),
        u(dtype, rows, units),
        score(Dtype::kF32, rows, 1),
        grad_u(dtype, rows, units),
        grad_h(dtype, rows, 2 * units),
        grad_score(Dtype::kF32, rows, 1) {
    h.fill_normal(1);
    score.fill_normal(2);
    grad_u.fill_normal(3);
  }
  Activation forward() {
    return {.h = h.view(), .u = u.mut(), .score = score.view(), .kind = kind};
  }
  ActivationBackward backward() {
    return {.h = h.view(),
            .grad_u = grad_u.view(),
            .grad_h = grad_h.mut(),
            .score = score.view(),
            .grad_score = grad_score.mut(),
            .u = u.mut(),
            .kind = kind};
  }
  Dtype dtype;
  int64_t rows, units;
  ActivationKind kind;
  Matrix h, u, score, grad_u, grad_h, grad_score;
};

void finish(benchmark::State& state, Problem& p, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetLabel(std::string(name(p.kind.act)) + " " + name(p.dtype));
}

void ref(benchmark::State& state) {
  Problem p(state);
  for (auto _ : state) activation_ref(p.forward());
  finish(state, p, bytes_moved(p.forward()));
}
void cpu(benchmark::State& state) {
  Problem p(state);
  for (auto _ : state) activation_cpu(p.forward(), serial);
  finish(state, p, bytes_moved(p.forward()));
}
void cpu_backward(benchmark::State& state) {
  Problem p(state);
  for (auto _ : state) activation_backward_cpu(p.backward(), serial);
  finish(state, p, bytes_moved(p.backward()));
}
// The bar: reading and writing as many bytes as the forward does, half each.
void copy(benchmark::State& state) {
  Problem p(state);
  const int64_t bytes = bytes_moved(p.forward()) / 2;
  std::vector<char> from(bytes, 1), to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  finish(state, p, 2 * bytes);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Unit(benchmark::kMicrosecond);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (int act = 0; act < kNumActs; ++act) b->Args({4096, 512, static_cast<int>(dtype), act});
  }
}
BENCHMARK(ref)->Args({256, 512, static_cast<int>(Dtype::kF32), 0})->Unit(benchmark::kMicrosecond);
BENCHMARK(copy)->Args({4096, 512, static_cast<int>(Dtype::kF32), 0})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);
BENCHMARK(cpu_backward)->Apply(shapes);

#ifdef TROUPE_CUDA
void gpu_shapes(benchmark::internal::Benchmark* b) {
  b->Unit(benchmark::kMicrosecond);
  for (int act = 0; act < kNumActs; ++act) {
    b->Args({65536, 1024, static_cast<int>(Dtype::kBF16), act});
  }
}
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  Problem p(state);
  for (auto _ : state) {
    activation_cuda(p.forward(), nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  finish(state, p, bytes_moved(p.forward()));
}
void cuda_backward(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  Problem p(state);
  for (auto _ : state) {
    activation_backward_cuda(p.backward(), nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  finish(state, p, bytes_moved(p.backward()));
}
BENCHMARK(cuda)->Apply(gpu_shapes);
BENCHMARK(cuda_backward)->Apply(gpu_shapes);
#endif

}  // namespace
}  // namespace troupe
