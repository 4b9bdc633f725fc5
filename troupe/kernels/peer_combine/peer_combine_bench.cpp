#include "troupe/kernels/peer_combine/peer_combine.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

// Each token has a row on both of two ranks.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : tokens(state.range(0)),
        y(Dtype::kBF16, 2 * tokens, state.range(1)),
        out(Dtype::kBF16, tokens, state.range(1)),
        place(2 * tokens) {
    for (int64_t t = 0; t < tokens; ++t) {
      place[2 * t] = static_cast<int32_t>(t);
      place[2 * t + 1] = static_cast<int32_t>(tokens + t);
    }
  }
  PeerCombine args() {
    const auto* const first = static_cast<const char*>(y.view().data);
    return {.peers = 2,
            .from = {first, first + tokens * y.cols() * 2},
            .each = tokens,
            .choices = 2,
            .place = place.data(),
            .out = out.mut()};
  }
  int64_t tokens;
  testing::Matrix y, out;
  testing::Buffer<int32_t> place;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.args(), peer_combine_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.args(), peer_combine_cpu);
}
BENCHMARK(ref)->Args({64, 2048})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Args({1024, 2048})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.args(), peer_combine_cuda, 10);
}
BENCHMARK(cuda)->Args({32768, 2048})->Args({8192, 7168})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
