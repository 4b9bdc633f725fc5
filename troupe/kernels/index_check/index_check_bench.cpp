#include <benchmark/benchmark.h>

#include <algorithm>

#include "troupe/kernels/index_check/index_check.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state) : rows(state.range(0)), index(rows) {
    std::fill_n(index.data(), rows, 7);
  }
  // As the plan of a layer: three maps of rows.
  IndexCheck args() {
    IndexCheck a;
    a.count = 3;
    for (int s = 0; s < a.count; ++s) {
      a.spans[s] = {
          .name = "index", .data = index.data(), .size = rows, .low = -1, .high = rows - 1};
    }
    return a;
  }
  int64_t rows;
  testing::Buffer<int32_t> index;
};

void measure(benchmark::State& state, void (*run)(const IndexCheck&)) {
  Problem p(state);
  for (auto _ : state) run(p.args());
  state.SetBytesProcessed(state.iterations() * bytes_moved(p.args()));
}

void cpu(benchmark::State& state) {
  measure(state, [](const IndexCheck& a) { index_check_cpu(a, serial); });
}
BENCHMARK(cpu)->Arg(1 << 12)->Arg(1 << 19)->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (!testing::available(testing::Backend::kCuda)) return state.SkipWithError("no GPU here");
  measure(state, [](const IndexCheck& a) {
    index_check_cuda(a, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  });
}
BENCHMARK(cuda)->Arg(1 << 12)->Arg(1 << 19)->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
