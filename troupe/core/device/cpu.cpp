// Compiled for the base architecture: it must run where the kernels do not.
#include "troupe/core/device/cpu.h"

#include <string>

#include "troupe/core/check.h"
#include "troupe/core/text/suggest.h"

namespace troupe {

std::vector<CpuFeature> cpu_features() {
#ifdef __x86_64__
  __builtin_cpu_init();
  return {
      {"popcnt", 2, __builtin_cpu_supports("popcnt") != 0},
      {"sse4.2", 2, __builtin_cpu_supports("sse4.2") != 0},
      {"avx2", 3, __builtin_cpu_supports("avx2") != 0},
      {"fma", 3, __builtin_cpu_supports("fma") != 0},
      {"bmi2", 3, __builtin_cpu_supports("bmi2") != 0},
      {"avx512f", 4, __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", 4, __builtin_cpu_supports("avx512bw") != 0},
      {"avx512dq", 4, __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vl", 4, __builtin_cpu_supports("avx512vl") != 0},
  };
#else
  return {};
#endif
}

void check_cpu(std::string_view arch, const std::vector<CpuFeature>& features) {
  constexpr std::string_view kLevel = "x86-64-v";
  if (!arch.starts_with(kLevel) || arch.size() != kLevel.size() + 1) return;
  const int level = arch.back() - '0';
  std::vector<std::string_view> missing;
  for (const CpuFeature& feature : features) {
    if (feature.level <= level && !feature.present) missing.push_back(feature.name);
  }
  if (missing.empty()) return;
  fail(Code::kOldCpu, "this processor", "lacks " + joined(missing) + ", which a build for",
       std::string(arch), "needs; rebuild with -DTROUPE_CPU_ARCH=");
}

void check_cpu() {
#ifdef TROUPE_CPU_ARCH
  check_cpu(TROUPE_CPU_ARCH, cpu_features());
#endif
}

}  // namespace troupe
