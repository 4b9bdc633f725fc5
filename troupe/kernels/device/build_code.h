// Which of this build's code the current device runs. The driver answers: a kernel that does nothing
// is looked up, and nothing is launched. The device's number alone does not tell: a build has code
// for some architectures, and CUDA_FORCE_PTX_JIT hides machine code.
#pragma once

namespace troupe {

#ifdef TROUPE_CUDA

// The kernels of CMAKE_CUDA_ARCHITECTURES: most.
bool runs_build_code();

// The kernels for sm_90a alone (TMA, wgmma: kernels/moe_sm90, and block_sparse's own). False in a build
// whose list lacks 90a.
bool runs_sm90_code();

#else
inline bool runs_build_code() {
  return false;
}
inline bool runs_sm90_code() {
  return false;
}
#endif

}  // namespace troupe
