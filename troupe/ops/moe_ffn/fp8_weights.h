// How products with 8-bit operands are computed (moe_ffn_fp8.h, linear_fp8.h), and weights in 8
// bits that are kept from call to call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

namespace troupe {

// A weight [E, N, K], or [N, K], in 8 bits: a scale for each 128 x 128.
struct Fp8Weight {
  at::Tensor bytes;       // [E N, K]
  at::Tensor transposed;  // [E K, N], which backward on tensor cores reads; undefined elsewhere
  at::Tensor scales;
};

// The two weights of a module in 8 bits, for calls that follow each other while the weights stay as
// they are, such as the microbatches of a step: rounded by the first call that reads them. A call
// with another tensor, or with one that an operator has written since, rounds it anew. Who writes
// values past PyTorch's count of that, as an optimizer's kernel does, makes a new Fp8Weights.
class Fp8Weights {
 public:
  enum Which { kIn, kOut };  // of the product that reads the module's input, that gives its output
  const Fp8Weight& get(Which which, const at::Tensor& w, const std::function<Fp8Weight()>& round);

 private:
  struct Entry {
    at::Tensor source;  // held, so that no other tensor can have its address
    int64_t version = -1;
    Fp8Weight weight;
  };
  std::array<Entry, 2> entries_;
};

struct Fp8Options {
  bool weight_grad = true;                     // false: weights' gradients of unrounded operands
  bool emulate = false;                        // true: no product is computed in 8 bits
  std::shared_ptr<Fp8Weights> kept = nullptr;  // null: each call rounds the weights

  // Keeps weights from now on, or stops doing so; drops those kept until now.
  void keep_weights(bool keep) { kept = keep ? std::make_shared<Fp8Weights>() : nullptr; }
};

}  // namespace troupe
