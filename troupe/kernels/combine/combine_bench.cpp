#include "troupe/kernels/combine/combine.h"
#include "troupe/testing/routed_bench.h"

namespace troupe {
namespace {

struct Problem : testing::RoutedBench {
  using RoutedBench::RoutedBench;
  Combine args() { return {.plan = routed.read<PlanRef>(), .y = rows().read(), .out = tokens()}; }
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.args(), combine_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.args(), combine_cpu);
}
BENCHMARK(ref)->Apply(testing::routed_ref_shapes);
BENCHMARK(cpu)->Apply(testing::routed_cpu_shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.args(), combine_cuda, /*launches=*/10);
}
BENCHMARK(cuda)->Apply(testing::routed_cuda_shapes);
#endif

}  // namespace
}  // namespace troupe
