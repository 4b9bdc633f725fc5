#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/device/look_up.cuh"

namespace troupe {
namespace {

// Compiled as all kernels are whose architecture is not their own.
__global__ void build_code_kernel() {}

}  // namespace

bool runs_build_code() {
  static LookUps look_ups;
  return look_ups(reinterpret_cast<const void*>(build_code_kernel));
}

}  // namespace troupe
