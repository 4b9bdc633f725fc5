// y = x W^T + b of tensors: at::linear, the gradients of whose weights can be put off
// (ops/support/late.h), with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// x [.., in], weight [out, in], bias [out] or undefined: [.., out].
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias = {});

}  // namespace troupe
