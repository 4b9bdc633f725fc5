#include "troupe/kernels/quantize/quantize.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

struct Problem {
  explicit Problem(const benchmark::State& state)
      : bits(static_cast<int>(state.range(1))),
        x(Dtype::kBF16, 1, state.range(0)),
        values(quantized_value_bytes(state.range(0), bits)),
        scales(quantized_scales(state.range(0))),
        saturated(1) {
    x.fill_normal(1);
    saturated[0] = 0;
  }
  Quantize forward() {
    return {.x = x.view(),
            .values = values.data(),
            .scales = scales.data(),
            .saturated = saturated.data(),
            .bits = bits};
  }
  Dequantize backward() {
    return {.values = values.data(), .scales = scales.data(), .x = x.mut(), .bits = bits};
  }
  int bits;
  testing::Matrix x;
  testing::Buffer<uint8_t> values;
  testing::Buffer<F16> scales;
  testing::Buffer<int64_t> saturated;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.forward(), quantize_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forward(), quantize_cpu);
}
void cpu_back(benchmark::State& state) {
  Problem p(state);
  quantize_cpu(p.forward(), serial);
  testing::measure_cpu(state, p.backward(), dequantize_cpu);
}
BENCHMARK(ref)->Args({1 << 16, 8})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Args({1 << 22, 8})->Args({1 << 22, 4})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu_back)->Args({1 << 22, 8})->Args({1 << 22, 4})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forward(), quantize_cuda);
}
void cuda_back(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  quantize_cuda(p.forward(), nullptr);
  testing::measure_cuda(state, p.backward(), dequantize_cuda);
}
BENCHMARK(cuda)->Args({1 << 27, 8})->Args({1 << 27, 4})->Unit(benchmark::kMicrosecond);
BENCHMARK(cuda_back)->Args({1 << 27, 8})->Args({1 << 27, 4})->Unit(benchmark::kMicrosecond);
#endif

}  // namespace
}  // namespace troupe
