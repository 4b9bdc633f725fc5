// The Hopper path of ops/moe_ffn/moe_ffn: bf16 SwiGLU experts on a GPU of compute capability 9.0,
// by a build that has code for it (sm_90a).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/ops/moe_ffn/ffn_backend.h"
#include "troupe/ops/support/gpu_code.h"

namespace troupe {

// A layer of experts, as the choice of its kernels sees it.
struct Sm90Form {
  int64_t width, hidden, experts;
  bool plain;  // SwiGLU without clamp, offset and biases
  at::ScalarType type;
  GpuKind gpu;
};
GpuKind gpu_of(const c10::Device& device);  // without capability: it is none

inline constexpr int64_t kSm90Multiple = 64;  // of both widths

// Why Hopper's fused kernels (kernels/moe_sm90) do not compute it, for a line at the start of a
// run; empty: they do. `multiple`: of the widths. A function of the form alone, so forward and
// backward of a call take the same path: H's columns are in an order of that path's own.
std::string sm90_fault(const Sm90Form& form, int64_t multiple = kSm90Multiple);
// The kernels that then run, a line each, for `rows` rows of all experts: "up: sums of 2048; ..."
// `trial`: with those on trial (ops/support/trial_kernels.h).
std::vector<std::string> sm90_kernel_lines(const Sm90Form& form, int64_t rows, bool trial);
bool fits_sm90(const FfnCall& call);

// A whole backward makes dW2 first: A goes before the rows of dX come. In halves A stays until the
// second one, past the rows of dX.
std::unique_ptr<FfnBackend> sm90_ffn(const FfnCall& call);

}  // namespace troupe
