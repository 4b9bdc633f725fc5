#include "troupe/kernels/low_bit/low_bit.h"
#include "troupe/kernels/low_bit/problem_test.h"
#include "troupe/testing/bench.h"

namespace troupe {
namespace {

struct Problem : low_bit_detail::LowBitProblem {
  explicit Problem(const benchmark::State& state)
      : LowBitProblem(state.range(0), Dtype::kBF16, static_cast<LowBitFormat>(state.range(1))) {}
  LowBitUnpack unpack() { return unpack_to(x.mut()); }
};

// Elements, then the formats in the order of LowBitFormat: nf4, int8, fp8, mxfp4.
void each_format(benchmark::internal::Benchmark* b, int64_t elements) {
  for (const int64_t format : {0, 1, 2, 3}) b->Args({elements, format});
  b->Unit(benchmark::kMicrosecond);
}
void small(benchmark::internal::Benchmark* b) {
  each_format(b, 1 << 16);
}
void middle(benchmark::internal::Benchmark* b) {
  each_format(b, 1 << 22);
}

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.pack(), low_bit_pack_ref);
}
void cpu_pack(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.pack(), low_bit_pack_cpu);
}
void cpu_unpack(benchmark::State& state) {
  Problem p(state);
  low_bit_pack_cpu(p.pack(), serial);
  testing::measure_cpu(state, p.unpack(), low_bit_unpack_cpu);
}
BENCHMARK(ref)->Apply(small);
BENCHMARK(cpu_pack)->Apply(middle);
BENCHMARK(cpu_unpack)->Apply(middle);

#ifdef TROUPE_CUDA
void large(benchmark::internal::Benchmark* b) {
  each_format(b, 1 << 27);
}

void cuda_pack(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.pack(), low_bit_pack_cuda);
}
void cuda_unpack(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  low_bit_pack_cuda(p.pack(), nullptr);
  testing::measure_cuda(state, p.unpack(), low_bit_unpack_cuda);
}
BENCHMARK(cuda_pack)->Apply(large);
BENCHMARK(cuda_unpack)->Apply(large);
#endif

}  // namespace
}  // namespace troupe
