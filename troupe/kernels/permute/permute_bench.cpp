#include "troupe/kernels/permute/permute.h"
#include "troupe/testing/routed_bench.h"

namespace troupe {
namespace {

struct Problem : testing::RoutedBench {
  using RoutedBench::RoutedBench;
  Permute args() { return {.plan = routed.read<PlanRef>(), .x = tokens().read(), .out = rows()}; }
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.args(), permute_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.args(), permute_cpu);
}
BENCHMARK(ref)->Apply(testing::routed_ref_shapes);
BENCHMARK(cpu)->Apply(testing::routed_cpu_shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.args(), permute_cuda, /*launches=*/10);
}
BENCHMARK(cuda)->Apply(testing::routed_cuda_shapes);
#endif

}  // namespace
}  // namespace troupe
