#include <benchmark/benchmark.h>

#include "troupe/kernels/expert_choice/expert_choice.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Buffer;
using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : T(state.range(0)),
        E(state.range(1)),
        logits(Dtype::kF32, T, E),
        weights(Dtype::kF32, T, E),
        lse_squares(Dtype::kF32, 1, 1),
        grad_logits(Dtype::kF32, T, E),
        ids(T * E),
        counts(E),
        workspace(workspace_bytes({.logits = logits.view()})) {
    logits.fill_normal(7);
  }
  ExpertChoice forward() {
    return {.logits = logits.view(),
            .rule = {.rho = 2},
            .ids = ids.data(),
            .weights = weights.mut(),
            .counts = counts.data(),
            .lse_squares = lse_squares.mut(),
            .workspace = workspace.data()};
  }
  ExpertChoiceBackward backward() {
    return {.logits = logits.view(),
            .rule = {.rho = 2},
            .ids = ids.data(),
            .grad_weights = weights.view(),
            .grad_logits = grad_logits.mut()};
  }
  int64_t T, E;
  Matrix logits, weights, lse_squares, grad_logits;
  Buffer<int32_t> ids;
  Buffer<int64_t> counts;
  Buffer<char> workspace;
};

void cpu(benchmark::State& state) {
  Problem p(state);
  for (auto _ : state) expert_choice_cpu(p.forward(), serial);
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.forward()));
}
void backward_cpu(benchmark::State& state) {
  Problem p(state);
  expert_choice_cpu(p.forward(), serial);
  for (auto _ : state) expert_choice_backward_cpu(p.backward(), serial);
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.forward()));
}
BENCHMARK(cpu)->Args({8192, 64})->Args({8192, 256})->Unit(benchmark::kMicrosecond);
BENCHMARK(backward_cpu)->Args({8192, 64})->Args({8192, 256})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  Problem p(state);
  for (auto _ : state) {
    expert_choice_cuda(p.forward(), nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.forward()));
}
BENCHMARK(cuda)->Args({8192, 64})->Args({65536, 256})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
