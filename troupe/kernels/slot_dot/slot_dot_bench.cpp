#include "troupe/kernels/slot_dot/slot_dot.h"
#include "troupe/testing/routed_bench.h"

namespace troupe {
namespace {

struct Problem : testing::RoutedBench {
  explicit Problem(const benchmark::State& state)
      : RoutedBench(state), dots(routed.shape.tokens * routed.shape.choices) {}
  SlotDot args() {
    const int64_t T = routed.shape.tokens, K = routed.shape.choices;
    return {.plan = routed.read<PlanRef>(),
            .rows = rows().read(),
            .x = tokens().read(),
            .out = {dots.data(), Dtype::kF32, T, K, K}};
  }
  testing::Buffer<float> dots;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.args(), slot_dot_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.args(), slot_dot_cpu);
}
BENCHMARK(ref)->Apply(testing::routed_ref_shapes);
BENCHMARK(cpu)->Apply(testing::routed_cpu_shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.args(), slot_dot_cuda, /*launches=*/10);
}
BENCHMARK(cuda)->Apply(testing::routed_cuda_shapes);
#endif

}  // namespace
}  // namespace troupe
