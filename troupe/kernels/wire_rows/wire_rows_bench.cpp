#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

// Twice as many packed rows as there are: each goes to two ranks.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : rows(2 * state.range(0)),
        width(state.range(1)),
        code(state.range(3) == 0 ? WireCode::kInt8 : WireCode::kE4m3),
        bytes(wire_row(width, code).bytes),
        x(static_cast<Dtype>(state.range(2)), state.range(0), width),
        back(x.dtype(), rows, width),
        packed(rows * bytes),
        index(rows) {
    x.fill_normal(1);
    for (int64_t r = 0; r < rows; ++r) index[r] = r % x.rows();
  }
  PackRows forth() {
    return {.x = x.view(),
            .index = index.data(),
            .packed = {packed.data(), rows, bytes, bytes},
            .code = code};
  }
  UnpackRows home() {
    return {.packed = {packed.data(), rows, bytes, bytes}, .out = back.mut(), .code = code};
  }
  int64_t rows, width;
  WireCode code;
  int64_t bytes;
  testing::Matrix x, back;
  testing::Buffer<uint8_t> packed;
  testing::Buffer<int64_t> index;
};

void pack_ref(benchmark::State& state) {
  Problem p(state);
  testing::measure(state, p.forth(), pack_rows_ref);
}
void pack_cpu(benchmark::State& state) {
  Problem p(state);
  testing::measure_cpu(state, p.forth(), pack_rows_cpu);
}
void unpack_cpu(benchmark::State& state) {
  Problem p(state);
  pack_rows_cpu(p.forth(), serial);
  testing::measure_cpu(state, p.home(), unpack_rows_cpu);
}
constexpr int kBf16 = static_cast<int>(Dtype::kBF16), kF32 = static_cast<int>(Dtype::kF32);
// The last argument: 0 int8, 1 e4m3.
void cpu_sizes(benchmark::internal::Benchmark* b) {
  for (const int e4m3 : {0, 1}) b->Args({1024, 2048, kBf16, e4m3})->Args({1024, 2048, kF32, e4m3});
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(pack_ref)->Args({64, 2048, kBf16, 0})->Unit(benchmark::kMicrosecond);
BENCHMARK(pack_cpu)->Apply(cpu_sizes);
BENCHMARK(unpack_cpu)->Apply(cpu_sizes);

#ifdef TROUPE_CUDA
void pack_cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  testing::measure_cuda(state, p.forth(), pack_rows_cuda, 10);
}
void unpack_cuda(benchmark::State& state) {
  if (testing::no_gpu(state)) return;
  Problem p(state);
  pack_rows_cuda(p.forth(), nullptr);
  testing::measure_cuda(state, p.home(), unpack_rows_cuda, 10);
}
// 2880: rows that begin on 4 bytes. 2045: no row of x begins on 16.
void sizes(benchmark::internal::Benchmark* b) {
  for (const int e4m3 : {0, 1}) {
    b->Args({32768, 2048, kBf16, e4m3})->Args({32768, 2048, kF32, e4m3});
    b->Args({32768, 2880, kBf16, e4m3})->Args({32768, 2045, kBf16, e4m3});
  }
  b->Unit(benchmark::kMicrosecond);
}
BENCHMARK(pack_cuda)->Apply(sizes);
BENCHMARK(unpack_cuda)->Apply(sizes);
#endif

}  // namespace
}  // namespace troupe
