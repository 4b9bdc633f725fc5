#include "troupe/kernels/fp8/fp8.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

// Arguments: rows, columns, and which groups: 0 whole rows, 1 of 1 x 128, 2 of 128 x 128.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : groups{.rows = state.range(2) == 2 ? 128 : 1,
               .columns = state.range(2) == 0 ? kWholeRow : 128},
        x(Dtype::kBF16, state.range(0), state.range(1)),
        bytes(state.range(0) * state.range(1)),
        scales(scale_rows(groups, x.rows()) * scale_columns(groups, x.cols())) {
    x.fill_normal(1);
  }
  QuantizeFp8 forth() {
    const int64_t columns = scale_columns(groups, x.cols());
    return {.x = x.view(),
            .groups = groups,
            .bytes = {bytes.data(), x.rows(), x.cols(), x.cols()},
            .scales = {scales.data(), scale_rows(groups, x.rows()), columns, columns}};
  }
  DequantizeFp8 home() {
    const QuantizeFp8 a = forth();
    return {.bytes = {a.bytes.data, x.rows(), x.cols(), x.cols()},
            .scales = {a.scales.data, a.scales.rows, a.scales.cols, a.scales.ld},
            .groups = groups,
            .x = x.mut()};
  }
  Fp8Groups groups;
  testing::Matrix x;
  testing::Buffer<uint8_t> bytes;
  testing::Buffer<float> scales;
};

void ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.forth(), quantize_fp8_ref);
}
void cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forth(), quantize_fp8_cpu);
}
void cpu_back(benchmark::State& state) {
  Problem p(state);
  quantize_fp8_cpu(p.forth(), serial);
  testing::measure_cpu(state, p.home(), dequantize_fp8_cpu);
}
void small(benchmark::internal::Benchmark* b) {
  for (int64_t groups : {0, 1, 2}) b->Args({2048, 1024, groups})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ref)->Args({256, 256, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu)->Apply(small);
BENCHMARK(cpu_back)->Apply(small);

#ifdef TROUPE_CUDA
void cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forth(), quantize_fp8_cuda);
}
void cuda_back(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  quantize_fp8_cuda(p.forth(), nullptr);
  testing::measure_cuda(state, p.home(), dequantize_fp8_cuda);
}
void large(benchmark::internal::Benchmark* b) {
  for (int64_t groups : {0, 1, 2}) b->Args({65536, 2048, groups})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(cuda)->Apply(large);
BENCHMARK(cuda_back)->Apply(large);
#endif

}  // namespace
}  // namespace troupe
