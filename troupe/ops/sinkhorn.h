// Sinkhorn's choice of experts (R12): kernels/sinkhorn has the formulas. Without a gradient; the
// weights are ops/route's, with these ids given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace troupe {

struct SinkhornOptions {
  int64_t top_k = 1;
  double tolerance = 1e-4;  // negative: always max_iterations
  int64_t max_iterations = 100;
};

struct SinkhornResult {
  at::Tensor ids_TK;      // int32
  at::Tensor u_T, v_E;    // f32, f64 beside f64 logits
  at::Tensor iterations;  // int32 scalar, on the device: nothing waits for it
};

// logits [T, E], valid bool [T] or absent.
SinkhornResult sinkhorn(const at::Tensor& logits_TE, const std::optional<at::Tensor>& valid_T,
                        const SinkhornOptions& options);

}  // namespace troupe
