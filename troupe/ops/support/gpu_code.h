// Which GPUs a build has code for, as the CUDA driver decides it, and what is said where it has none.
// Arithmetic and texts: no GPU is asked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// A GPU as the choice of kernels sees it.
struct GpuKind {
  int capability = 0;      // 10 major + minor: 90 is Hopper; 0: no GPU
  bool sm90_code = false;  // it runs this build's kernels for sm_90a alone
};

// What the environment asks of the driver: CUDA_FORCE_PTX_JIT leaves all machine code alone,
// CUDA_DISABLE_PTX_JIT all PTX.
struct DriverRules {
  bool ptx_only = false, no_ptx = false;
};

enum class GpuCode { kNone, kMachine, kPtx };

// What of CMAKE_CUDA_ARCHITECTURES (`;`, a comma or a space between) such a GPU runs; machine code first.
//   90-real      machine code: on 9.0 and on later minor versions of 9
//   90a-real     on 9.0 alone; 100f-real: as 100-real
//   90-virtual   PTX, which the driver compiles: on 9.0 and on all that is later
//   90a-virtual  on 9.0 alone; 100f-virtual: on 10.0 and on later minor versions of 10
//   90           both
GpuCode gpu_code(std::string_view architectures, int capability, const DriverRules& rules = {});

// "sm_80, sm_90a and PTX of compute_90"; "no CUDA" for an empty list.
std::string architectures_text(std::string_view architectures);

struct GpuFound {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  int capability = 0;
};
std::string to_text(const GpuFound& gpu);  // "GPU 0 (NVIDIA H200, compute capability 9.0)"

// Why none of these GPUs runs a build's kernels, with which it is for and how to build for these; empty:
// one runs them, or there is none.
std::string why_no_code(std::string_view architectures, const std::vector<GpuFound>& gpus,
                        const DriverRules& rules = {});

// The same of one GPU that is to be used, where others may be left. `found`: the look-up of a kernel
// there found code. The list may promise what the driver does not keep: one older than the PTX.
std::string why_not_on(std::string_view architectures, const GpuFound& gpu, bool found,
                       const DriverRules& rules = {});

// What doctor says of a GPU that runs the kernels: "machine code", or PTX and what that means.
std::string code_text(std::string_view architectures, int capability,
                      const DriverRules& rules = {});

// Of what is in the list, what was run on a GPU and what was never.
std::string tried_text(std::string_view architectures);

}  // namespace troupe
