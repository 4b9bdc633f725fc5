#include "troupe/ops/support/build_info.h"

#include <torch/library.h>
#include <torch/version.h>

#include "troupe/core/device/cpu.h"
#include "troupe/ops/support/gpu_code.h"

// ops/CMakeLists.txt defines these; without CUDA the first two are empty.
#ifndef TROUPE_GPU_ARCHITECTURES
#define TROUPE_GPU_ARCHITECTURES ""
#endif
#ifndef TROUPE_CUDA_VERSION
#define TROUPE_CUDA_VERSION ""
#endif
#ifndef TROUPE_CPU_ARCH
#define TROUPE_CPU_ARCH ""
#endif

namespace troupe {
namespace {

// "x86-64-v3: popcnt, sse4.2, avx2, fma, bmi2"
std::string cpu_text(const std::string& arch) {
  constexpr std::string_view kLevel = "x86-64-v";
  if (arch.empty()) return "the compiler's default";
  if (!arch.starts_with(kLevel) || arch.size() != kLevel.size() + 1) return arch;
  std::string names;
  for (const CpuFeature& feature : cpu_features()) {
    if (feature.level > arch.back() - '0') continue;
    names += (names.empty() ? ": " : ", ") + std::string(feature.name);
  }
  return arch + names;
}

}  // namespace

std::string gpu_architectures() {
  return TROUPE_GPU_ARCHITECTURES;
}

std::string build_info() {
  const std::string cuda = TROUPE_CUDA_VERSION, list = gpu_architectures();
  std::string out = std::string("PyTorch    ") + TORCH_VERSION + "\nCUDA       " +
                    (cuda.empty() ? "none: built without" : cuda);
  if (!list.empty()) {
    out += "\nGPU code   " + architectures_text(list) + "\n           " + tried_text(list);
  }
  return out + "\nCPU code   " + cpu_text(TROUPE_CPU_ARCH);
}

// What `import troupe` asks: of GPUs that NVML found, without a driver's context.
std::string why_no_gpu_code_for(const std::vector<int64_t>& capabilities,
                                const std::vector<std::string>& names) {
  std::vector<GpuFound> gpus;
  for (size_t i = 0; i < capabilities.size(); ++i) {
    gpus.push_back(
        {static_cast<int>(i), i < names.size() ? names[i] : "", static_cast<int>(capabilities[i])});
  }
  return gpu_architectures().empty() ? "" : why_no_code(gpu_architectures(), gpus);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  m.def("build_info() -> str", build_info);
  m.def("gpu_architectures() -> str", gpu_architectures);
  m.def("why_no_gpu_code(int[] capabilities, str[] names) -> str",
        [](const c10::List<int64_t>& capabilities, const c10::List<std::string>& names) {
          return why_no_gpu_code_for(capabilities.vec(), names.vec());
        });
}

}  // namespace troupe
