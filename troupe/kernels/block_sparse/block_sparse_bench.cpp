// FLOP/s of the three products on the block-diagonal matrix of an MoE layer.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "troupe/kernels/block_sparse/block_sparse.h"
#include "troupe/testing/backend.h"

namespace troupe {
namespace {

using testing::Buffer;

void fill(Buffer<BF16>& x) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  BF16 some[4093];
  for (BF16& v : some) v = BF16(normal(rng));
  for (size_t i = 0; i < x.size(); ++i) x[i] = some[i % 4093];
}

// E experts, each with as many rows: x [R, D] times the weights [E F, D], S [R, E F].
struct Layer {
  explicit Layer(const benchmark::State& state)
      : R(state.range(0)),
        D(state.range(1)),
        F(state.range(2)),
        E(state.range(3)),
        block_rows(R / 128),
        across(F / 128),
        blocks(block_rows * across),
        x(R * D),
        w(E * F * D),
        values(blocks * 128 * 128),
        row_offsets(block_rows + 1),
        col_indices(blocks),
        col_offsets(E * across + 1),
        row_indices(blocks),
        block_order(blocks) {
    fill(x);
    fill(w);
    fill(values);
    const int64_t rows_each = block_rows / E;  // block rows of an expert
    for (int64_t i = 0; i <= block_rows; ++i) row_offsets[i] = static_cast<int32_t>(i * across);
    for (int64_t p = 0; p < blocks; ++p) {
      const int64_t expert = p / across / rows_each;
      col_indices[p] = static_cast<int32_t>(expert * across + p % across);
    }
    for (int64_t q = 0; q < blocks; ++q) {
      const int64_t column = q / rows_each, row = column / across * rows_each + q % rows_each;
      row_indices[q] = static_cast<int32_t>(row);
      block_order[q] = static_cast<int32_t>(row * across + column % across);
    }
    for (int64_t j = 0; j <= E * across; ++j) col_offsets[j] = static_cast<int32_t>(j * rows_each);
  }
  BlockTopology topology() {
    return {.rows = R,
            .cols = E * F,
            .blocks = blocks,
            .row_offsets = row_offsets.data(),
            .col_indices = col_indices.data(),
            .col_offsets = col_offsets.data(),
            .row_indices = row_indices.data(),
            .block_order = block_order.data()};
  }
  DenseOperand x_operand() { return {{x.data(), Dtype::kBF16, R, D, D}, false}; }
  DenseOperand w_operand(bool transpose) {
    return {{w.data(), Dtype::kBF16, E * F, D, D}, transpose};
  }
  MutRef stored() { return {values.data(), Dtype::kBF16, blocks * 128, 128, 128}; }

  // The products of a layer: S = x w^T, y = S w, and dw = S^T x.
  BlockSdd up() {
    return {.a = x_operand(), .b = w_operand(true), .topology = topology(), .c = stored()};
  }
  BlockDsd down() {
    return {.a = stored().read(),
            .topology = topology(),
            .b = w_operand(false),
            .c = {x.data(), Dtype::kBF16, R, D, D}};
  }
  BlockDsd weight() {
    return {.a = stored().read(),
            .topology = topology(),
            .transpose_a = true,
            .b = x_operand(),
            .c = {w.data(), Dtype::kBF16, E * F, D, D}};
  }
  int64_t R, D, F, E, block_rows, across, blocks;
  Buffer<BF16> x, w, values;
  Buffer<int32_t> row_offsets, col_indices, col_offsets, row_indices, block_order;
};

template <class Args, class Run>
void measure(benchmark::State& state, const Args& args, int64_t blocks, const Run& run) {
  run(args);
  for (auto _ : state) run(args);
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(flops(args, blocks)),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

void cpu_up(benchmark::State& state) {
  Layer layer(state);
  measure(state, layer.up(), layer.blocks, [](const BlockSdd& a) { block_sdd_cpu(a, serial); });
}
void cpu_down(benchmark::State& state) {
  Layer layer(state);
  measure(state, layer.down(), layer.blocks, [](const BlockDsd& a) { block_dsd_cpu(a, serial); });
}
BENCHMARK(cpu_up)->Args({1024, 256, 256, 4})->Unit(benchmark::kMicrosecond);
BENCHMARK(cpu_down)->Args({1024, 256, 256, 4})->Unit(benchmark::kMicrosecond);

#ifdef TROUPE_CUDA
// The kernels of any GPU where the last argument of a benchmark says so.
template <class Args>
auto and_wait(const benchmark::State& state, void (*run)(const Args&, cudaStream_t)) {
  return [run, generic = state.range(4) != 0](Args args) {
    args.generic = generic;
    run(args, nullptr);
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  };
}
bool has_gpu(benchmark::State& state) {
  if (testing::available(testing::Backend::kCuda)) return true;
  state.SkipWithError("no GPU here");
  return false;
}
void up(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  measure(state, layer.up(), layer.blocks, and_wait(state, block_sdd_cuda));
}
void down(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  measure(state, layer.down(), layer.blocks, and_wait(state, block_dsd_cuda));
}
void weight(benchmark::State& state) {
  if (!has_gpu(state)) return;
  Layer layer(state);
  measure(state, layer.weight(), layer.blocks, and_wait(state, block_dsd_cuda));
}
// The sizes of MegaBlocks' figure: 64 experts, sequences of 1024, batches of 64, 32 and 8.
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"R", "D", "F", "E", "generic"})->Unit(benchmark::kMicrosecond);
  for (const int64_t generic : {0, 1}) {
    b->Args({65536, 512, 2048, 64, generic})->Args({32768, 768, 3072, 64, generic});
    b->Args({8192, 1024, 4096, 64, generic});
  }
}
BENCHMARK(up)->Apply(shapes);
BENCHMARK(down)->Apply(shapes);
BENCHMARK(weight)->Apply(shapes);
#endif

}  // namespace
}  // namespace troupe
