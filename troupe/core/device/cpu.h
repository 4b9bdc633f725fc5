// Refuses a processor that cannot run the code that was built, in words and not by SIGILL.
#pragma once

#include <string_view>
#include <vector>

namespace troupe {

struct CpuFeature {
  std::string_view name;  // "avx2"
  int level;              // needed from x86-64-v<level> on
  bool present;
};

// The features of this machine; empty where it is not x86-64.
std::vector<CpuFeature> cpu_features();

// Throws E7003, naming all that is missing, if code for `arch` (x86-64-v2 to x86-64-v4) needs what
// is not present. Nothing is known of other names ("native", a model): they pass unchecked.
void check_cpu(std::string_view arch, const std::vector<CpuFeature>& features);

// What this build's CPU kernels need (TROUPE_CPU_ARCH), on this machine: the first thing a program
// does.
void check_cpu();

}  // namespace troupe
