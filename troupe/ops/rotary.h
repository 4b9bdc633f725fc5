// Rotary position embedding: kernels/rotary.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace troupe {

struct RotaryOptions {
  bool interleaved = false;  // pairs (2j, 2j + 1) instead of (j, j + n / 2)
  int64_t first = 0;         // the first of the n turned dimensions of a head
};

struct RotaryTables {
  at::Tensor cos;  // [P, n / 2]  f32 (f64 beside f64)
  at::Tensor sin;
};

// x [T, H, D] or [B, S, H, D], any strides that keep a head together; position int64 [T] or [B, S],
// none: a token's place in its sequence. Gradient for x.
at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables,
                  const std::optional<at::Tensor>& position, const RotaryOptions& options);

}  // namespace troupe
