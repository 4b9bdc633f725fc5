// y = x W^T with 8-bit operands, as the dense products of a model compute it under train.fp8. With
// row, tile, block, q and sx of moe_ffn_fp8.h:
//
//   Y = row(X) block(W)^T        dX = tile(dY) block(W)        dW = block(sx dY)^T q(X)
//
// A row of Y and of dX depends on that row alone (Q8-3). That is recipe row: with tensor X, dY and W
// have one scale each, that of their largest value, with delayed X and dY that of the largest value
// of earlier steps (fp8_history.h); with block Y = tile(X) block(W)^T. `weight_grad: false`: dW =
// dY^T X of unrounded operands.
//
// On a Hopper GPU, in bf16, for sizes that are multiples of 128, tensor cores multiply the bytes
// (kernels/moe_sm90, as for one expert that has all rows). Everywhere else, and with `emulate`, the
// products run on the kernels of x's type, at their speed; both round the same values the same way.
#pragma once

#include "troupe/ops/moe_ffn/fp8_weights.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

struct Fp8Linear {
  Fp8Options options;
  Fp8Weights::Which which = Fp8Weights::kIn;  // of the module's weights, for options.kept
};

struct LinearFp8Forward {
  at::Tensor y;      // [T, N]
  TensorList saved;  // for backward; empty where nobody asks for it
};
// x [T, K], w [N, K]; K and N at least 128. Records no gradient.
LinearFp8Forward linear_fp8_forward(const at::Tensor& x_TK, const at::Tensor& w_NK,
                                    const Fp8Linear& fp8, bool keep);

struct LinearGrads {
  at::Tensor x, w;  // undefined where not asked for
};
LinearGrads linear_fp8_backward(const at::Tensor& grad_y_TN, const TensorList& saved,
                                const Fp8Linear& fp8, bool of_x, bool of_w);

// Both, as an operator with gradients.
at::Tensor linear_fp8(const at::Tensor& x_TK, const at::Tensor& w_NK, const Fp8Linear& fp8);

}  // namespace troupe
