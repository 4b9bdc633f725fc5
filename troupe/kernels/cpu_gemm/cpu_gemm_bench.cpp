// The products of an expert with 512 rows, at the shapes of docs/bench/2026-11-21.md: M, N, K, a
// transposed, b transposed. On one core.
#include <benchmark/benchmark.h>

#include <vector>

#include "troupe/kernels/cpu_gemm/cpu_gemm.h"

namespace troupe {
namespace {

void cpu(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const bool a_t = state.range(3) != 0, b_t = state.range(4) != 0;
  const std::vector<float> a(m * k, 1e-3f), b(n * k, 1e-3f);
  std::vector<float> c(m * n), scratch(kCpuGemmScratch);
  const CpuGemm args{.m = m,
                     .n = n,
                     .k = k,
                     .a = {a.data(), a_t ? m : k, a_t},
                     .b = {b.data(), b_t ? k : n, b_t},
                     .c = c.data(),
                     .ldc = n};
  for (auto _ : state) cpu_gemm_cpu(args, scratch.data());
  state.counters["flops"] = benchmark::Counter(
      static_cast<double>(state.iterations() * flops(args)), benchmark::Counter::kIsRate);
}
BENCHMARK(cpu)
    ->Args({2048, 2048, 2048, 0, 0})
    ->Args({512, 3584, 512, 0, 1})
    ->Args({512, 512, 1792, 0, 1})
    ->Args({512, 1792, 512, 0, 0})
    ->Args({512, 512, 3584, 0, 0})
    ->Args({3584, 512, 512, 1, 0})
    ->Args({512, 512, 512, 0, 1})
    ->Args({512, 512, 512, 1, 0})
    ->Args({256, 128, 256, 0, 1})
    ->Args({256, 64, 256, 1, 0})
    ->Args({512, 384, 192, 0, 1})
    ->Args({512, 192, 192, 0, 1})
    ->Args({512, 192, 192, 0, 0})
    ->Args({512, 192, 384, 0, 0})
    ->Args({384, 192, 512, 1, 0})
    ->Args({192, 192, 512, 1, 0})
    ->Args({512, 768, 384, 0, 1})
    ->Args({512, 384, 384, 0, 1})
    ->Args({512, 384, 768, 0, 0})
    ->Args({768, 384, 512, 1, 0})
    ->Args({512, 192, 2048, 0, 0})
    ->Args({512, 192, 2000, 0, 0})
    ->Args({2048, 192, 512, 1, 0})
    ->Args({192, 192, 512, 0, 1})
    ->Args({64, 160, 32, 0, 1})
    ->Args({64, 32, 160, 0, 0})
    ->Args({160, 32, 64, 1, 0})
    ->Args({64, 320, 64, 0, 1})
    ->Args({64, 64, 320, 0, 0})
    ->Args({320, 64, 64, 1, 0})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace troupe
