// `train.fp8`: the experts' products with 8-bit operands, forward and backward
// (ops/moe_ffn/moe_ffn_fp8.h has the formulas). Router, attention, shared expert, norms, embedding,
// head and losses stay as they are; so do weights, moments, gradients and checkpoints.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/nn/models/config.h"

namespace troupe {

class Model;

enum class Fp8Recipe {
  kRow,  // one scale a token row, for 1 x 128 of activations, for 128 x 128 of weights
};
constexpr auto names_of(Fp8Recipe) {
  return std::array{Named{"row", Fp8Recipe::kRow}};
}

enum class Fp8WeightGrad { kFp8, kBf16 };
constexpr auto names_of(Fp8WeightGrad) {
  return std::array{Named{"fp8", Fp8WeightGrad::kFp8}, Named{"bf16", Fp8WeightGrad::kBf16}};
}

struct Fp8Config {
  Fp8Recipe recipe = Fp8Recipe::kRow;
  Fp8WeightGrad weight_grad = Fp8WeightGrad::kFp8;  // bf16: of operands that were not rounded
  int64_t skip_first = 0, skip_last = 0;            // blocks whose experts stay as they are

  static void visit(auto& c, auto&& f) {
    f("recipe", c.recipe);
    f("weight_grad", c.weight_grad);
    f("skip_first", c.skip_first);
    f("skip_last", c.skip_last);
  }
};

// What is wrong with the combination, and what would do.
std::vector<std::string> fp8_faults(const Fp8Config& config, const ModelConfig& model);

// For each layer of the model: do its experts compute in 8 bits?
std::vector<bool> fp8_layers(const Fp8Config& config, const ModelConfig& model);

// Tells the experts of those layers that are here.
void use_fp8(const Fp8Config& config, Model& model);

// "fp8: experts of 7 of 8 MoE layers ...": which products, by which path, and what stays.
std::string fp8_line(const Fp8Config& config, const ModelConfig& model);

}  // namespace troupe
