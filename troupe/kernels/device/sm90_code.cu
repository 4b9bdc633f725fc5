#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/device/look_up.cuh"

namespace troupe {

#ifdef TROUPE_SM90A
namespace {

// Compiled as the kernels for sm_90a are: for it alone.
__global__ void sm90_code_kernel() {}

}  // namespace

bool runs_sm90_code() {
  static LookUps look_ups;
  return look_ups(reinterpret_cast<const void*>(sm90_code_kernel));
}
#else
bool runs_sm90_code() {
  return false;
}
#endif

}  // namespace troupe
