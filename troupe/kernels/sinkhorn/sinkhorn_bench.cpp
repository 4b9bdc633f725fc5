#include <benchmark/benchmark.h>

#include "troupe/kernels/sinkhorn/sinkhorn.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Buffer;
using testing::Matrix;

struct Problem {
  explicit Problem(const benchmark::State& state)
      : logits(Dtype::kF32, state.range(0), state.range(1)),
        u(Dtype::kF32, 1, state.range(0)),
        v(Dtype::kF32, 1, state.range(1)),
        ids(state.range(0)),
        iterations(1),
        workspace(workspace_bytes(args_without())) {
    logits.fill_normal(7);
  }
  Sinkhorn args_without() {
    return {.logits = logits.view(),
            .max_iterations = 10,
            .ids = ids.data(),
            .u = u.mut(),
            .v = v.mut(),
            .iterations = iterations.data()};
  }
  Sinkhorn args() {
    Sinkhorn a = args_without();
    a.tolerance = -1;  // Ten iterations, whatever the logits.
    a.workspace = workspace.data();
    return a;
  }
  Matrix logits, u, v;
  Buffer<int32_t> ids, iterations;
  Buffer<char> workspace;
};

void measure(benchmark::State& state, void (*run)(const Sinkhorn&)) {
  Problem p(state);
  const Sinkhorn args = p.args();
  for (auto _ : state) run(args);
  state.SetBytesProcessed(state.iterations() * args.max_iterations * bytes_moved(args));
}

void ref(benchmark::State& state) {
  measure(state, sinkhorn_ref);
}
void cpu(benchmark::State& state) {
  measure(state, [](const Sinkhorn& a) { sinkhorn_cpu(a, serial); });
}
BENCHMARK(ref)->Args({1024, 64})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Args({4096, 64})->Args({4096, 256})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const Sinkhorn& a) {
    sinkhorn_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Args({4096, 64})->Args({32768, 256})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
