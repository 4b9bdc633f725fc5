#include "troupe/kernels/norm/norm.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Buffer;
using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : dtype(static_cast<Dtype>(state.range(2))),
        x(dtype, state.range(0), state.range(1)),
        y(dtype, state.range(0), state.range(1)),
        weight(dtype, 1, state.range(1)),
        rstd(Dtype::kF32, state.range(0), 1),
        grad(dtype, state.range(0), state.range(1)),
        grad_weight(Dtype::kF32, 1, state.range(1)),
        workspace(1) {
    x.fill_normal(1);
    weight.fill_normal(2);
    grad.fill_normal(3);
    rstd.fill(1);
    workspace = Buffer<char>(workspace_bytes(backward()));
  }
  Norm forward() {
    return {.x = x.view(), .weight = weight.view(), .y = y.mut(), .rstd = rstd.mut()};
  }
  NormBackward backward() {
    return {.s = x.view(),
            .weight = weight.view(),
            .rstd = rstd.view(),
            .grad_y = grad.view(),
            .grad_s = y.mut(),
            .grad_weight = grad_weight.mut(),
            .workspace = workspace.data()};
  }
  Dtype dtype;
  Matrix x, y, weight, rstd, grad, grad_weight;
  Buffer<char> workspace;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.forward(), norm_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forward(), norm_cpu);
}
void cpu_backward(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.backward(), norm_backward_cpu);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({4096, 512, int(Dtype::kF32)})->Args({4096, 512, int(Dtype::kBF16)});
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({256, 512, int(Dtype::kF32)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);
BENCHMARK(cpu_backward)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forward(), norm_cuda);
}
void cuda_backward(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.backward(), norm_backward_cuda);
}
BENCHMARK(cuda)->Args({32768, 2048, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cuda_backward)->Args({32768, 2048, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
