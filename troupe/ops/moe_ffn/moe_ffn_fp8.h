// ops/moe_ffn/moe_ffn with products of 8-bit operands (kernels/fp8), as every path of it must
// compute. With row(x), tile(x), block(x): x rounded to e4m3 with one scale a row, for 1 x 128 or
// 128 x 128 values, and read back:
//
//   H  = row(X) block(W1)^T          A  = s act(H)           Y   = tile(A) block(W2)^T
//   G  = row(dO) block(W2)           dS = rowdot(G, act(H))  dXt = tile(dH) block(W1)
//   dW2 = q(dO)^T block(so A)        dW1 = block(sx dH)^T q(X)
//
// q(x) are row(x)'s bytes without their scale, sx and so the rows' scales, which the other operand
// takes up before it is rounded: over 128 rows of one expert and 128 columns. No tile or
// block reaches from gates to ups or from expert to expert. Sums, activation, score, combine and
// the gradient of the weights K are as in moe_ffn. A row's out and dX depend on that row alone
// (Q8-3).
//
// That is recipe row. The others (Q8-21) are for what is trained with them elsewhere:
//   tensor  row, tile and block of X, dO, A and dH have one scale, that of the largest value which
//           this call's experts see in it; weights one for an expert. So a row's bits depend on the
//           call's other rows, and over ranks on which rank computes it.
//   delayed as tensor, but that value is the largest of earlier steps (fp8_history.h); what is larger
//           than 448 scales becomes that. Weights have their own largest value as in tensor, which
//           costs little and cuts nothing off.
//   block   X and dO are rounded by tile in H and G; all else is as in row.
//
// On a Hopper GPU, in bf16, for plain SwiGLU experts of widths that are multiples of 128, tensor
// cores multiply the bytes (kernels/moe_sm90). In recipe row X, dO and weights are kept in 8 bits
// for backward, H in bf16; in the others each product is a pass of its own, and X is kept in bf16.
// Everywhere else, and with `emulate`, the products run on the kernels of the given
// type, at their speed: operands that are on the grid of e4m3 times a power of two are exact in
// bf16 and f32. Both round the same values the same way; they differ in the order of sums, and in
// H, which the emulation of bf16 rounds as well. Biases and LoRA are refused.
//
// With FfnOptions::weights_order dW1 and dW2 are made behind dX, as moe_ffn makes them: the same
// bits. Between the two halves dH and A are held as the second reads them, on tensor cores in 8
// bits.
#pragma once

#include "troupe/ops/moe_ffn/fp8_weights.h"
#include "troupe/ops/moe_ffn/moe_ffn.h"

namespace troupe {

// D and F at least 128. keep_hidden, input_bits and hidden_bits of `options` must be as they begin.
at::Tensor moe_ffn_fp8(const at::Tensor& x_SD, const at::Tensor& weights_TK, const Plan& plan,
                       const ExpertWeights& experts, const FfnOptions& options,
                       const Fp8Options& fp8);

}  // namespace troupe
