// The Hopper path of ops/moe_ffn/moe_ffn_fp8: products of 8-bit operands on the tensor cores
// (kernels/moe_sm90), for bf16 SwiGLU experts on a GPU of compute capability 9.0.
#pragma once

#include <memory>
#include <string>

#include "troupe/ops/moe_ffn/ffn_backend.h"
#include "troupe/ops/moe_ffn/fp8_sm90.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"

namespace troupe {

// Why a layer of experts cannot take this path; empty: it can.
std::string fp8_sm90_fault(const Sm90Form& form);

// The operands of recipe row, whose kernels round the activations that they compute.
struct Fp8Operands {
  at::Tensor x;       // [T, D], of dW1 without weight_grad
  Fp8Sm90::Rows x8;   // of H, and of dW1 with weight_grad
  Fp8Weight w1, w2;   // `bytes` of forward, `transposed` of backward
  at::Tensor scores;  // [T, K]
  Plan plan;
};
// Weights come from `fp8.kept` where there is one, and are rounded here otherwise. `backward`: its
// copies too.
Fp8Operands fp8_operands(const FfnCall& call, bool backward, const Fp8Options& fp8);

// dO in 8 bits; of dH and A those that products in 8 bits read. Others are in FfnBetween, in bf16.
struct Fp8Between {
  Fp8Sm90::Rows grad_out;
  Fp8Sm90::Tiles grad_hidden, act;
};

// A whole backward makes weights' gradients first: it holds less. In two halves dH and A wait as
// the second one reads them. `weight_grad` as Fp8Options's.
std::unique_ptr<FfnBackend> fp8_sm90_ffn(const Fp8Operands& operands, bool weight_grad);

}  // namespace troupe
