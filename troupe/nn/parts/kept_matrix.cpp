#include "troupe/nn/parts/kept_matrix.h"

#include <ATen/TensorOperators.h>

#include "troupe/nn/parts/linear_product.h"
#include "troupe/ops/grouped_gemm.h"

namespace troupe {

at::Tensor KeptMatrix::linear(const at::Tensor& x, const at::Tensor& bias) const {
  if (!low_bit) return linear_product(x, value, bias);
  const at::Tensor y = low_bit_linear(x, low_bit->packed, low_bit->format);
  return bias.defined() ? y + bias : y;
}

at::Tensor KeptMatrix::grouped(const at::Tensor& x_RK, const at::Tensor& expert_offset) const {
  if (!low_bit) return grouped_gemm(x_RK, value, expert_offset);
  return low_bit_grouped_gemm(x_RK, low_bit->packed, low_bit->format, expert_offset);
}

at::Tensor KeptMatrix::whole() const {
  return low_bit ? low_bit_unpack(low_bit->packed, low_bit->format, at::kFloat) : value;
}

}  // namespace troupe
