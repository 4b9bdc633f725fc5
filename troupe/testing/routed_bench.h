// The set-up of the benchmarks of kernels that move rows between tokens and experts.
#pragma once

#include <random>

#include "troupe/core/device/view.h"
#include "troupe/core/number/bf16.h"
#include "troupe/testing/bench.h"
#include "troupe/testing/routed_rows.h"

namespace troupe::testing {

// A benchmark's arguments: tokens, choices, experts, width. Rows and tokens are bf16.
class RoutedBench {
 public:
  explicit RoutedBench(const benchmark::State& state)
      : routed({.tokens = state.range(0), .choices = state.range(1), .experts = state.range(2)}),
        width_(state.range(3)),
        rows_(routed.rows * width_),
        tokens_(routed.shape.tokens * width_) {
    // Random bits of moderate size: zeros would flatter a GPU.
    std::mt19937 rng(7);
    for (Buffer<BF16>* b : {&rows_, &tokens_}) {
      for (size_t i = 0; i < b->size(); ++i) (*b)[i].bits = 0x3c00 | (rng() & 0x83ff);
    }
  }
  MutRef rows() { return {rows_.data(), Dtype::kBF16, routed.rows, width_, width_}; }
  MutRef tokens() { return {tokens_.data(), Dtype::kBF16, routed.shape.tokens, width_, width_}; }

  RoutedRows routed;

 private:
  int64_t width_;
  Buffer<BF16> rows_, tokens_;
};

inline void routed_ref_shapes(benchmark::internal::Benchmark* b) {
  b->Args({512, 2, 8, 512})->Unit(benchmark::kMicrosecond);
}
inline void routed_cpu_shapes(benchmark::internal::Benchmark* b) {
  b->Args({512, 2, 8, 512})->Args({2048, 8, 64, 2048})->Unit(benchmark::kMicrosecond);
}
inline void routed_cuda_shapes(benchmark::internal::Benchmark* b) {
  b->Args({24576, 8, 128, 1536})->Args({32768, 8, 128, 4096})->Args({8192, 2, 8, 4096});
  b->Unit(benchmark::kMicrosecond);
}

}  // namespace troupe::testing
