// How products with 8-bit operands are computed (moe_ffn_fp8.h, linear_fp8.h), and weights in 8
// bits that are kept from call to call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "troupe/core/text/text.h"

namespace troupe {

// Which values share a scale; moe_ffn_fp8.h has the formulas.
enum class Fp8Recipe {
  kRow,      // a row of tokens; of activations 1 x 128, of weights 128 x 128
  kTensor,   // a tensor, by its own maximum; of weights an expert
  kBlock,    // as kRow, but of tokens 1 x 128 too, except in weights' gradients
  kDelayed,  // as kTensor, but by the maximum of earlier steps; of weights by their own
};
constexpr auto names_of(Fp8Recipe) {
  return std::array{Named{"row", Fp8Recipe::kRow}, Named{"tensor", Fp8Recipe::kTensor},
                    Named{"block", Fp8Recipe::kBlock}, Named{"delayed", Fp8Recipe::kDelayed}};
}

// Do all rows of a call's tokens share one?
constexpr bool has_one_scale(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::kTensor || recipe == Fp8Recipe::kDelayed;
}

constexpr int64_t kFp8HistorySteps = 16;  // of kDelayed, where nothing else is asked for

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

class Fp8History;  // fp8_history.h

// The recipe of this name for an operator, which has no history; refused where there is none.
Fp8Recipe fp8_recipe_of(const std::string& name, const char* op);

struct Fp8Options {
  bool weight_grad = true;  // false: weights' gradients of unrounded operands
  bool emulate = false;     // true: no product is computed in 8 bits
  Fp8Recipe recipe = Fp8Recipe::kRow;
  std::shared_ptr<Fp8Weights> kept = nullptr;     // null: each call rounds the weights
  std::shared_ptr<Fp8History> history = nullptr;  // of kDelayed alone, which needs it
  int64_t history_steps =
      kFp8HistorySteps;  // of a history that a module makes for itself (nn/parts/fp8_products.h)

  // Keeps weights from now on, or stops doing so; drops those kept until now.
  void keep_weights(bool keep) { kept = keep ? std::make_shared<Fp8Weights>() : nullptr; }
};

}  // namespace troupe
