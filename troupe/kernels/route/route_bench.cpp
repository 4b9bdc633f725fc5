#include <benchmark/benchmark.h>

#include "troupe/kernels/route/problem_test.h"

namespace troupe {
namespace {

using route_detail::RouteProblem;

// Softmax, 8 of 64 (OLMoE), and sigmoid with bias and groups, 8 of 256 (DeepSeek-V3).
RouteProblem problem(const benchmark::State& state) {
  const int64_t experts = state.range(1);
  RouteRule rule{.choices = 8};
  if (experts == 256) {
    rule = {.choices = 8,
            .score = Score::kSigmoid,
            .weighting = Weighting::kSum,
            .scale = 2.5f,
            .groups = 8,
            .keep_groups = 4,
            .group_best = 2};
  }
  RouteProblem p({state.range(0), experts}, rule);
  p.with_bias = experts == 256;
  return p;
}

template <class Args>
void measure(benchmark::State& state, const Args& args, void (*run)(const Args&)) {
  for (auto _ : state) run(args);
  state.SetBytesProcessed(state.iterations() * bytes_moved(args));
}

void ref(benchmark::State& state) {
  RouteProblem p = problem(state);
  measure(state, p.forward(), route_ref);
}
void cpu(benchmark::State& state) {
  RouteProblem p = problem(state);
  measure<Route>(state, p.forward(), [](const Route& a) { route_cpu(a, serial); });
}
void backward_cpu(benchmark::State& state) {
  RouteProblem p = problem(state);
  route_cpu(p.forward(), serial);
  measure<RouteBackward>(state, p.backward(),
                         [](const RouteBackward& a) { route_backward_cpu(a, serial); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({8192, 64})->Args({8192, 128})->Args({8192, 256})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({1024, 64})->Args({1024, 256})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(shapes);
BENCHMARK(backward_cpu)->Apply(shapes);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  RouteProblem p = problem(state);
  measure<Route>(state, p.forward(), [](const Route& a) {
    route_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
void backward_cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  RouteProblem p = problem(state);
  route_cuda(p.forward(), nullptr);
  measure<RouteBackward>(state, p.backward(), [](const RouteBackward& a) {
    route_backward_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Apply(shapes)->Args({65536, 64})->Args({65536, 256});
BENCHMARK(backward_cuda)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
