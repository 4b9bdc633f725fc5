// FLOP/s of the products of one MoE layer, at the shapes of recipes. Random data: zeros are 13 %
// faster on a chip that its power limits.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

using testing::Buffer;

// Rows are shared out evenly, or by Zipf's law.
std::vector<int32_t> offsets(int64_t rows, int64_t experts, bool zipf) {
  std::vector<double> share(experts);
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e)
    sum += share[e] = zipf ? 1.0 / static_cast<double>(e + 1) : 1;
  std::vector<int32_t> offset(experts + 1);
  double upto = 0;
  for (int64_t e = 0; e < experts; ++e) {
    upto += share[e];
    offset[e + 1] = static_cast<int32_t>(static_cast<double>(rows) * upto / sum + 0.5);
  }
  return offset;
}

void fill(Buffer<BF16>& x) {
  std::mt19937 rng(7);
  std::vector<BF16> some(4093);
  std::normal_distribution<float> normal;
  for (BF16& v : some) v = BF16(normal(rng));
  for (size_t i = 0; i < x.size(); ++i) x[i] = some[i % some.size()];
}

// A layer of width D with E experts of width F, R rows: the operands of all its products.
struct Layer {
  explicit Layer(const benchmark::State& state)
      : R(state.range(0)),
        D(state.range(1)),
        F(state.range(2)),
        E(state.range(3)),
        T(R / 8),
        x(T * D),
        h(R * 2 * F),
        w(E * 2 * F * D),
        offset(E + 1),
        src(R) {
    fill(x);
    fill(h);
    fill(w);
    const std::vector<int32_t> o = offsets(R, E, state.range(4) != 0);
    std::copy(o.begin(), o.end(), offset.data());
    for (int64_t r = 0; r < R; ++r) src[r] = static_cast<int32_t>(r * 7919 % T);
  }
  MatRef view(Buffer<BF16>& b, int64_t rows, int64_t cols) {
    return {b.data(), Dtype::kBF16, rows, cols, cols};
  }
  MutRef mut(Buffer<BF16>& b, int64_t rows, int64_t cols) {
    return {b.data(), Dtype::kBF16, rows, cols, cols};
  }
  // H = X[src] W1^T, and as written by backward: dX = dH W1.
  GroupedGemm up() {
    return {.a = view(x, T, D),
            .b = view(w, E * 2 * F, D),
            .c = mut(h, R, 2 * F),
            .experts = E,
            .expert_offset = offset.data(),
            .row_src = src.data()};
  }
  GroupedGemm down(Buffer<BF16>& y) {
    return {.a = view(h, R, F),
            .b = view(w, E * D, F),
            .c = mut(y, R, D),
            .experts = E,
            .expert_offset = offset.data()};
  }
  GroupedGemm up_backward(Buffer<BF16>& y) {
    return {.a = view(h, R, 2 * F),
            .b = view(w, E * 2 * F, D),
            .c = mut(y, R, D),
            .experts = E,
            .expert_offset = offset.data(),
            .transpose_b = false};
  }
  GroupedGemmWeight up_weight() {
    return {.a = view(h, R, 2 * F),
            .b = view(x, T, D),
            .c = mut(w, E * 2 * F, D),
            .experts = E,
            .expert_offset = offset.data(),
            .row_src = src.data(),
            .gather_b = true};
  }
  int64_t R, D, F, E, T;
  Buffer<BF16> x, h, w;
  Buffer<int32_t> offset, src;
};

template <class Args>
void measure(benchmark::State& state, const Args& args, [[maybe_unused]] int64_t rows,
             void (*run)(const Args&)) {
  run(args);
  for (auto _ : state) run(args);
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(flops(args, rows)),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

// The reference is for tests: one size, to know what it costs them.
void reference(benchmark::State& state) {
  Layer layer(state);
  measure(
      state, layer.up(), layer.R, +[](const GroupedGemm& a) { grouped_gemm_ref(a); });
}
BENCHMARK(reference)->Args({64, 128, 64, 4, 0});

#ifdef TROUPE_CUDA
template <class Args, void kCuda(const Args&, cudaStream_t)>
void and_wait(const Args& args) {
  kCuda(args, nullptr);
  TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
}
constexpr auto* rows_path = and_wait<GroupedGemm, grouped_gemm_cuda>;
constexpr auto* weight_path = and_wait<GroupedGemmWeight, grouped_gemm_weight_cuda>;

bool has_gpu(benchmark::State& state) {
  if (testing::available(testing::Backend::kCuda)) return true;
  state.SkipWithError("no GPU here");
  return false;
}

void up(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  measure(state, layer.up(), layer.R, rows_path);
}
void down(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  Buffer<BF16> y(layer.R * layer.D);
  measure(state, layer.down(y), layer.R, rows_path);
}
void up_backward(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  Buffer<BF16> y(layer.R * layer.D);
  measure(state, layer.up_backward(y), layer.R, rows_path);
}
void up_weight(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  measure(state, layer.up_weight(), layer.R, weight_path);
}
void up_weight_f32_sum(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  Buffer<float> sum(layer.w.size());
  std::fill_n(sum.data(), sum.size(), 0.0f);
  GroupedGemmWeight args = layer.up_weight();
  args.c = {sum.data(), Dtype::kF32, args.c.rows, args.c.cols, args.c.ld};
  args.accumulate = true;
  measure(state, args, layer.R, weight_path);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"R", "D", "F", "E", "zipf"})->Unit(benchmark::kMicrosecond);
  for (int64_t zipf : {0, 1}) {
    b->Args({24576 * 8, 1536, 256, 128, zipf});  // S7-256
    b->Args({32768 * 8, 2048, 1024, 64, zipf});  // OLMoE-1B-7B
    b->Args({8192 * 2, 4096, 14336, 8, zipf});   // Mixtral 8x7B
  }
}
BENCHMARK(up)->Apply(shapes);
BENCHMARK(down)->Apply(shapes);
BENCHMARK(up_backward)->Apply(shapes);
BENCHMARK(up_weight)->Apply(shapes);
BENCHMARK(up_weight_f32_sum)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
