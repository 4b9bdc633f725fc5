// A matrix of a product as it is kept: in its own type, or in few bits (ops/low_bit.h), of
// which the products unpack what they multiply with and keep nothing of the whole matrix' size.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/distributed/params/param.h"

namespace troupe {

struct KeptMatrix {
  explicit KeptMatrix(const Param& p) : value(p.value), low_bit(p.low_bit) {}

  // x [.., K] by W [N, K], b [N] or undefined: x W^T + b.
  at::Tensor linear(const at::Tensor& x, const at::Tensor& bias = {}) const;
  // x [R, K] by W [E, N, K] over the rows of experts (ops/grouped_gemm.h).
  at::Tensor grouped(const at::Tensor& x_RK, const at::Tensor& expert_offset) const;
  // W itself, or unpacked to f32.
  at::Tensor whole() const;

  at::Tensor value;  // undefined: in few bits
  std::optional<LowBitValue> low_bit;
};

}  // namespace troupe
