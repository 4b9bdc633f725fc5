#include "troupe/kernels/low_bit/low_bit.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : format(static_cast<LowBitFormat>(state.range(1))),
        x(Dtype::kBF16, 1, state.range(0)),
        values(state.range(0) * low_bit_bits(format) / 8),
        scales(state.range(0) / low_bit_group(format)),
        exponents(state.range(0) / low_bit_group(format)),
        non_finite(1) {
    x.fill_normal(1);
    non_finite[0] = 0;
  }
  bool mx() const { return format == LowBitFormat::kMxfp4; }
  LowBitPack pack() {
    return {.x = x.view(),
            .values = values.data(),
            .scales = mx() ? nullptr : scales.data(),
            .exponents = mx() ? exponents.data() : nullptr,
            .non_finite = non_finite.data(),
            .format = format};
  }
  LowBitUnpack unpack() {
    return {.values = values.data(),
            .scales = mx() ? nullptr : scales.data(),
            .exponents = mx() ? exponents.data() : nullptr,
            .x = x.mut(),
            .format = format};
  }
  LowBitFormat format;
  testing::Matrix x;
  testing::Buffer<uint8_t> values;
  testing::Buffer<float> scales;
  testing::Buffer<uint8_t> exponents;
  testing::Buffer<int64_t> non_finite;
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
