#include "troupe/kernels/peer_rows/peer_rows.h"
#include "troupe/testing/bench.h"

namespace troupe {
namespace {

// Two ranks' tokens of bf16, all of them wanted, all in this memory.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : each(state.range(0)),
        row_bytes(2 * state.range(1)),
        from(each * row_bytes),
        out(2 * each * row_bytes) {}
  PeerRows args() {
    return {.peers = 2,
            .from = {from.data(), from.data()},
            .each = each,
            .row_bytes = row_bytes,
            .out = out.data()};
  }
  int64_t each, row_bytes;
  testing::Buffer<uint8_t> from, out;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.args(), peer_rows_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.args(), peer_rows_cpu);
}
BENCHMARK(ref)->Args({64, 2048})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Args({1024, 2048})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.args(), peer_rows_cuda, 10);
}
BENCHMARK(cuda)->Args({32768, 2048})->Args({8192, 7168})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
