#include <thread>

#include "troupe/kernels/peer_flags/peer_flags.h"
#include "troupe/testing/bench.h"

namespace troupe {
namespace {

// There and back between two threads: what a transfer costs beside its bytes.
void cpu(benchmark::State& state) {
  uint32_t there = 0, back = 0, round = 0;
  int32_t missing = -1;
  const auto await = [&missing](const uint32_t& flag, uint32_t want) {
    await_flags_cpu({.count = 1,
                     .flags = {&flag},
                     .want = want,
                     .limit_ns = 10'000'000'000,
                     .missing = &missing},
                    serial);
  };
  constexpr uint32_t kEnd = 1u << 30;
  std::jthread other([&] {
    int32_t none = -1;
    for (uint32_t n = 1; none < 0; ++n) {
      const AwaitFlags wait{
          .count = 1, .flags = {&there}, .want = n, .limit_ns = 10'000'000'000, .missing = &none};
      await_flags_cpu(wait, serial);
      signal_flags_cpu({.count = 1, .flags = {&back}, .value = n}, serial);
      if (static_cast<int32_t>(there - kEnd) >= 0) return;
    }
  });
  for (auto _ : state) {
    signal_flags_cpu({.count = 1, .flags = {&there}, .value = ++round}, serial);
    await(back, round);
  }
  signal_flags_cpu({.count = 1, .flags = {&there}, .value = kEnd}, serial);
}
BENCHMARK(cpu)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace troupe
