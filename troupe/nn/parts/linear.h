// y = x W^T + b, with an adapter s (d(x) A^T) B^T where it has one, and several such products of one x made as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "troupe/distributed/params/param.h"
#include "troupe/nn/parts/lora.h"
#include "troupe/ops/moe_ffn/linear_fp8.h"
#include "troupe/ops/support/backward_order.h"

namespace troupe {

struct LinearShape {
  int64_t out, in;
  Init init;
  bool bias = false;
  LoraConfig lora = {};                      // an adapter beside the weight
  std::optional<LowBitFormat> low_bit = {};  // a frozen weight, in few bits
  DropPlace place = DropPlace::kQuery;       // of the adapter's dropout
};

struct Linear {
  explicit Linear(const LinearShape& shape);

  // [.., in] to [.., out]. `context` is that of x's rows: an adapter reads it for its dropout.
  at::Tensor forward(const at::Tensor& x, const Context& context = {}) const;
  // x W^T, and + b where `biased`, without the adapter.
  at::Tensor product(const at::Tensor& x, bool biased = true) const;

  static void visit(auto& m, auto&& f) {
    f("weight", m.weight);
    f("bias", m.bias);
    if (m.lora) LoraFactors::visit(*m.lora, f);
  }

  Param weight;               // [out, in]
  std::optional<Param> bias;  // [out]
  std::optional<LoraFactors> lora;
};

// x [T, D] times all weights [n_i, D], side by side: [T, sum n_i]; biases all or none. One product
// forward, two backward. Weights that are not one behind the other are joined by a copy in each.
// Adapters, of all parts or of none, are added behind that product. Weights in few bits, of all
// parts or of none, are multiplied each on its own, in the type of x.
struct JoinedOptions {
  // Where in the backward the weights' gradients are made; absent: with that of x.
  std::optional<BackwardOrder> weights_order = {};
  std::optional<Fp8Linear> fp8 = {};  // 8-bit operands: blocks of the weights as one matrix
  bool biased = true;                 // false: biases are left to the caller
  Context context = {};               // of x's rows, for the dropout of adapters
};
at::Tensor joined_linear(const at::Tensor& x_TD, const std::vector<const Linear*>& parts,
                         const JoinedOptions& options = {});

}  // namespace troupe
