#include "troupe/kernels/cross_entropy/cross_entropy.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : logits(static_cast<Dtype>(state.range(2)), state.range(0), state.range(1)),
        target(state.range(0)),
        loss(Dtype::kF32, state.range(0), 1),
        lse(Dtype::kF32, state.range(0), 1),
        grad_loss(Dtype::kF32, state.range(0), 1) {
    for (size_t t = 0; t < target.size(); ++t) target[t] = static_cast<int64_t>(t);
    lse.fill(30);
    grad_loss.fill(1e-3);
  }
  CrossEntropy forward() {
    return {.logits = logits.view(), .target = target.data(), .loss = loss.mut(), .lse = lse.mut()};
  }
  CrossEntropyBackward backward() {  // In place: the values fall, the work stays the same.
    return {.logits = logits.view(),
            .target = target.data(),
            .lse = lse.view(),
            .grad_loss = grad_loss.view(),
            .grad_logits = logits.mut()};
  }
  Matrix logits;
  testing::Buffer<int64_t> target;
  Matrix loss, lse, grad_loss;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.forward(), cross_entropy_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forward(), cross_entropy_cpu);
}
void cpu_backward(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.backward(), cross_entropy_backward_cpu);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 512, int(Dtype::kF32)})->Args({128, 50304, int(Dtype::kF32)});
  b->Args({128, 50304, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({32, 8192, int(Dtype::kF32)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);
BENCHMARK(cpu_backward)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forward(), cross_entropy_cuda);
}
void cuda_backward(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.backward(), cross_entropy_backward_cuda);
}
BENCHMARK(cuda)->Args({4096, 50304, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
BENCHMARK(cuda_backward)->Args({4096, 50304, int(Dtype::kBF16)})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
