// `train.fp8`: the experts' products with 8-bit operands, forward and backward
// (ops/moe_ffn/moe_ffn_fp8.h has the formulas); with `ffn` those of dense feed-forwards and shared
// experts, and with `attention` the projections to queries, keys and values and back
// (linear_fp8.h), of latent attention those whose sides allow it. Router, attention itself, norms,
// embedding, head, losses and MTP modules stay as they are; so do weights, moments, gradients and
// checkpoints, which beside them hold the histories of recipe delayed (ops/moe_ffn/fp8_history.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/facts.h"
#include "troupe/core/text/text.h"
#include "troupe/nn/config/config.h"
#include "troupe/ops/moe_ffn/fp8_weights.h"

namespace troupe {

class Model;
struct Param;
struct GpuProducts;  // experts_kernels.h

enum class Fp8WeightGrad { kFp8, kBf16 };
constexpr auto names_of(Fp8WeightGrad) {
  return std::array{Named{"fp8", Fp8WeightGrad::kFp8}, Named{"bf16", Fp8WeightGrad::kBf16}};
}

// kKept: rounded once a step, and kept over its microbatches, but where a layer's weights are cut
// over ranks and whole only while it computes.
enum class Fp8WeightCopies { kKept, kOnUse };
constexpr auto names_of(Fp8WeightCopies) {
  return std::array{Named{"kept", Fp8WeightCopies::kKept},
                    Named{"on_use", Fp8WeightCopies::kOnUse}};
}

struct Fp8Config {
  Fp8Recipe recipe = Fp8Recipe::kRow;
  Fp8WeightGrad weight_grad = Fp8WeightGrad::kFp8;  // bf16: of operands that were not rounded
  Fp8WeightCopies weights = Fp8WeightCopies::kKept;
  bool emulate = false;                   // also where tensor cores could multiply the bytes
  bool attention = false;                 // the projections of attention too
  bool ffn = false;                       // dense feed-forwards and shared experts too
  int64_t skip_first = 0, skip_last = 0;  // blocks that stay as they are
  int64_t history = kFp8HistorySteps;     // of recipe delayed

  static void visit(auto& c, auto&& f) {
    f("recipe", c.recipe,
      "What shares a scale: row (a token's row, 1 x 128, of weights 128 x 128), block (tokens too "
      "1 x 128), tensor, or delayed (a tensor, by its largest value of earlier steps).");
    f("weight_grad", c.weight_grad, "Operand type of weight gradients: fp8 or bf16.");
    f("weights", c.weights,
      "Weights in 8 bits: kept over a step's microbatches, or rounded on_use in each; same bits.");
    f("emulate", c.emulate, "Round to 8 bits, but multiply in the run's precision.");
    f("attention", c.attention,
      "Also the projections of attention: q, k, v and out; of latent attention those that fit.");
    f("ffn", c.ffn, "Also dense feed-forwards and shared experts.");
    f("skip_first", c.skip_first, "Leading layers that stay in bf16.");
    f("skip_last", c.skip_last, "Trailing layers that stay in bf16.");
    f("history", c.history, "Steps whose largest values recipe delayed makes its scales of.",
      AtMost{1 << 20});
  }
};

// Over how many tensor ranks weights are cut; `shared`: those of shared experts.
struct Fp8Cut {
  int64_t tensor = 1, shared = 1;
};
// What is wrong with the combination, and what would do.
std::vector<std::string> fp8_faults(const Fp8Config& config, const ModelConfig& model,
                                    const Fp8Cut& cut = {});

// For each layer of the model: do its experts compute in 8 bits?
std::vector<bool> fp8_layers(const Fp8Config& config, const ModelConfig& model);

// The same of attention's projections.
std::vector<bool> fp8_attention_layers(const Fp8Config& config, const ModelConfig& model);

// The same of its dense feed-forward or its shared expert.
std::vector<bool> fp8_ffn_layers(const Fp8Config& config, const ModelConfig& model);

// Tells the modules of those layers that are here.
void use_fp8(const Fp8Config& config, Model& model);

// While it lives the modules of a model that compute in 8 bits keep their weights so from call to
// call, where the recipe says so, a step has more microbatches than one, and `whole` says that a
// parameter's values stay in memory. Weights must not change meanwhile.
class KeepsFp8Weights {
 public:
  KeepsFp8Weights(const std::optional<Fp8Config>& config, Model& model, size_t microbatches,
                  const std::function<bool(const Param&)>& whole);
  KeepsFp8Weights(const KeepsFp8Weights&) = delete;
  KeepsFp8Weights& operator=(const KeepsFp8Weights&) = delete;
  ~KeepsFp8Weights() { forget(); }
  void forget();  // no more of it

 private:
  Model* model_ = nullptr;  // null: nothing is kept
};

// What recipe delayed remembers of the modules that are here, in the order of layers. Their
// parameters must have memory.
std::vector<Fp8History*> fp8_histories(Model& model);
// The names of these tensors in checkpoints, which those of another recipe lack.
constexpr const char* kFp8HistoryNames = "model.*.fp8.history";

// "fp8: experts of 7 of 8 MoE layers ...": which products, by which path and why. Where paths
// differ, each kind of products has its own behind it.
std::string fp8_line(const Fp8Config& config, const ModelConfig& model,
                     const GpuProducts& products);

}  // namespace troupe
