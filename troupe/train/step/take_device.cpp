#include "troupe/train/step/take_device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "troupe/ops/support/trial_kernels.h"

namespace troupe {
namespace {

// Two runs are equal bit for bit (rule G4). On a GPU that asks it of PyTorch's own operators too:
// of cuBLAS, and of flash attention's backward. Its habit of filling fresh memory meanwhile is no
// part of that, and would cost a pass over each tensor. Attention is ours
// (ops/attention/attention_cudnn). What it does not take is PyTorch's: flash attention's repeatable
// backward, which PyTorch takes where an operator without one is an error and not where that is a
// warning, and never cuDNN's, which through PyTorch has none. With run.deterministic=false it may
// warn: all attention is PyTorch's fastest then.
void make_deterministic(bool attention) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/!attention);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (attention) at::globalContext().setSDPUseCuDNN(false);
}

}  // namespace

void take_device(const c10::Device& device, const RunConfig& run) {
  if (device.is_cpu()) return;
  // What names no device, such as an allocation, is of this rank's too.
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  make_deterministic(run.deterministic);
  set_trial_kernels(run.trial_kernels);
}

}  // namespace troupe
