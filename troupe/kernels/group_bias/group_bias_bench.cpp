#include "troupe/kernels/group_bias/group_bias.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Matrix;

// Equal groups of rows.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : dtype(static_cast<Dtype>(state.range(3))),
        offset(state.range(1) + 1),
        x(dtype, state.range(0), state.range(2)),
        bias(dtype, state.range(1), state.range(2)),
        grad_bias(Dtype::kF32, state.range(1), state.range(2)) {
    for (int64_t e = 0; e <= state.range(1); ++e) {
      offset[e] = static_cast<int32_t>(state.range(0) * e / state.range(1));
    }
    x.fill_normal(1);
    bias.fill_normal(2);
  }
  GroupBias forward() {
    return {.x = x.view(), .bias = bias.view(), .y = x.mut(), .expert_offset = offset.data()};
  }
  GroupBiasBackward backward() {
    return {.grad_y = x.view(), .grad_bias = grad_bias.mut(), .expert_offset = offset.data()};
  }
  Dtype dtype;
  testing::Buffer<int32_t> offset;
  Matrix x, bias, grad_bias;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.backward(), group_bias_backward_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forward(), group_bias_cpu);
}
void cpu_backward(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.backward(), group_bias_backward_cpu);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({8192, 64, 512, int(Dtype::kF32)})->Args({8192, 64, 512, int(Dtype::kBF16)});
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({512, 8, 512, int(Dtype::kF32)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);
BENCHMARK(cpu_backward)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forward(), group_bias_cuda);
}
void cuda_backward(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.backward(), group_bias_backward_cuda);
}
BENCHMARK(cuda)->Args({65536, 64, 2048, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cuda_backward)->Args({65536, 64, 2048, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
