// The experts: F(x) = W2 u for each routed row, with u = s act(W1 x) or s act(W1 x) (V x + o), s
// the row's score (rules X1 to X8). Weights are W1 [E, 2F, D] (gate rows, then up rows) or [E, F,
// D], and W2 [E, D, F], over the experts of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/text/text.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/fp8_products.h"
#include "troupe/nn/parts/lora.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

namespace troupe {

// The form of a feed-forward, shared by routed, shared and dense ones.
struct FfnForm {
  std::string activation = "silu";  // gelu, gelu_tanh, quick_gelu, relu, relu2
  bool gated = true;
  std::optional<double> clamp;  // X4
  double offset = 0;            // X4: added to the up half

  static void visit(auto& c, auto&& f) {
    f("activation", c.activation, "silu, gelu, gelu_tanh, quick_gelu, relu or relu2.");
    f("gated", c.gated, "Gated experts with three matrices, act(W1 x) * V x; false: two matrices.");
    f("clamp", c.clamp, "Clamp of both halves before they are multiplied (gpt-oss); null: off.");
    f("offset", c.offset, "Constant added to the linear half (gpt-oss: 1).");
  }
  int64_t gates() const { return gated ? 2 : 1; }
  FfnOptions options() const;
};

enum class ExpertsImpl {
  kGrouped,      // one fused operator, group sizes read on the device
  kBlockSparse,  // products with a block-diagonal matrix; keeps more for backward than kGrouped
  kLoop,         // each expert by plain ATen: the reference; reads counts on the host
};
constexpr auto names_of(ExpertsImpl) {
  return std::array{Named{"grouped", ExpertsImpl::kGrouped},
                    Named{"block_sparse", ExpertsImpl::kBlockSparse},
                    Named{"loop", ExpertsImpl::kLoop}};
}

// Rows and columns of a block of kBlockSparse: each expert's rows are padded to whole blocks, and
// `hidden` must be a multiple.
constexpr int64_t kExpertBlock = 128;

// What backward computes again (rule M2).
enum class Recompute {
  kNone,    // nothing; but kGrouped, which keeps as little as it can, is at kAct in any case
  kAct,     // the activation and W2's product, from H
  kExpert,  // H too, from x
  kLayer,   // the whole MoE layer, from its input and the choices made (MoeLayer does that)
};
constexpr auto names_of(Recompute) {
  return std::array{Named{"none", Recompute::kNone}, Named{"act", Recompute::kAct},
                    Named{"expert", Recompute::kExpert}, Named{"layer", Recompute::kLayer}};
}

// Bits of the activations that are kept for backward (rule Q1): -1 off, 8 or 4; kGrouped alone can.
// `scatter` is MegaBlocks' and has nothing to pack: its output rows are not kept, for the score
// comes before W2.
struct QuantizeConfig {
  int64_t inputs = -1;
  int64_t rematerialize = -1;
  int64_t scatter = -1;

  static void visit(auto& c, auto&& f) {
    f("inputs", c.inputs, "Bits of the experts' saved inputs: 8, 4, or -1: off.");
    f("rematerialize", c.rematerialize,
      "Bits of the experts' saved hidden rows: 8, 4, or -1: off.");
    f("scatter", c.scatter, "Accepted for MegaBlocks' recipes; output rows are never kept.");
  }
};

struct ExpertsInit {
  double std = 0.02;
  std::optional<double> down_std;  // of W2; absent: std / sqrt(2 layers)
  double truncate = 0;
  bool kaiming = false;
  bool same_experts = false;

  static void visit(auto& c, auto&& f) {
    f("std", c.std, "Standard deviation.");
    f("down_std", c.down_std, "Standard deviation of W2; null: std / sqrt(2 layers).");
    f("truncate", c.truncate,
      "Truncation of the normal distribution, in standard deviations; 0: off.");
    f("kaiming", c.kaiming, "Uses sqrt(2 / inputs) instead of std.");
    f("same_experts", c.same_experts, "Initializes all experts as copies of the first.");
  }
  Init up() const;
  Init down(int64_t layers) const;
};

struct ExpertsConfig {
  int64_t hidden = 0;  // F
  FfnForm form;
  bool bias = false;            // X6: b1, b2
  bool score_on_input = false;  // X5: k = 1 only
  ExpertsImpl impl = ExpertsImpl::kGrouped;
  Recompute recompute = Recompute::kNone;
  QuantizeConfig quantize;
  LoraConfig lora;  // on W1 and W2 of every expert, which are frozen (nn/moe/lora_ffn.h)
  // Of model.lora.frozen, which sets it: W1 and W2 are frozen in few bits. No key of its own.
  std::optional<LowBitFormat> low_bit = {};
  ExpertsInit init;

  static void visit(auto& c, auto&& f) {
    f("hidden", c.hidden, "Hidden width of an expert, F.");
    FfnForm::visit(c.form, f);
    f("bias", c.bias, "Biases of the experts.");
    f("score_on_input", c.score_on_input,
      "Multiplies the expert's input by the router weight, not its output; top_k 1 only.");
    f("impl", c.impl, "grouped (fused), block_sparse (as MegaBlocks) or loop (reference).");
    f("recompute", c.recompute,
      "Activations recomputed in backward to save memory; impl grouped always recomputes act.");
    f("quantize", c.quantize,
      "Quantized activations kept for backward; the forward pass is unchanged.");
    f("lora", c.lora, "Low-rank adapters on every expert; the experts are frozen.");
    f("init", c.init, "Expert initialization; model.init_std takes precedence.");
  }
};

void validate(const ExpertsConfig& config, int64_t top_k);  // throws with what is wrong

struct ExpertsShape {
  int64_t width;                    // D, or the latent width
  int64_t experts;                  // E, over all ranks
  int64_t layers;                   // of the model: scales W2's initial values
  HeldExperts held = std::nullopt;  // absent: all
  // Hidden sharding (H2): of each expert's F columns this rank has part `slice` of `slices`.
  int64_t slices = 1, slice = 0;
};

struct ExpertsOutput {
  at::Tensor y_SD;  // the sum of each source row's rows, scores applied
  // int64 [1], undefined where nothing is kept in fewer bits: groups of kept values that fp16
  // scales cannot hold (Q2). Counted as they are quantized, which under Recompute::kLayer is in
  // backward.
  at::Tensor saturated = {};
};

class Experts {
 public:
  Experts(const ExpertsConfig& config, const ExpertsShape& shape);

  // Of rows in parts, each part's products by themselves: to late gradients (ops/support/late.h) each
  // adds its own. `context` is that of the tokens: adapters read it for their dropout, which needs
  // all experts here, with the tokens as source rows.
  ExpertsOutput forward(const ExpertRows& rows, const Context& context = {}) const;
  // From now on products have 8-bit operands (ops/moe_ffn/moe_ffn_fp8.h). Refuses experts that this
  // does not take: train/recipe/fp8.h names them.
  void compute_in_fp8(const Fp8Options& fp8);
  // Keeps weights in 8 bits from call to call, or stops doing so; drops those kept until now. The
  // weights must not change while they are kept. Does nothing without fp8.
  void keep_rounded_weights(bool keep);
  void for_each_fp8(const VisitFp8& f) { f(fp8_); }
  int64_t row_alignment() const {  // what a dispatcher must round segments to
    return config_.impl == ExpertsImpl::kBlockSparse ? kExpertBlock : 1;
  }

  static void visit(auto& m, auto&& f) {
    f("w1", m.w1);
    f("w2", m.w2);
    f("b1", m.b1);
    f("b2", m.b2);
    f("w1_lora_a", m.w1_lora_a);
    f("w1_lora_b", m.w1_lora_b);
    f("w2_lora_a", m.w2_lora_a);
    f("w2_lora_b", m.w2_lora_b);
    f("fp8", m.fp8_);
  }

  Param w1, w2;
  std::optional<Param> b1, b2;
  std::optional<Param> w1_lora_a, w1_lora_b, w2_lora_a, w2_lora_b;

 private:
  ExpertWeights weights() const;
  ExpertsOutput forward_in_parts(const ExpertRows& rows, const Context& context) const;
  at::Tensor frozen_forward(const ExpertRows& rows, const FfnOptions& options,
                            const Context& context) const;
  Context dropped_rows(const ExpertRows& rows, const Context& context) const;
  void add_adapters(const ExpertsShape& shape);

  ExpertsConfig config_;
  int64_t slices_;  // of each expert's hidden width, over ranks
  Fp8Products fp8_;
};

// A dense feed-forward over all T rows: one expert, score 1, so that a layer of one expert is it
// bit for bit (L5). Weights as ExpertWeights with E = 1. With `fp8`: moe_ffn_fp8 of that expert.
at::Tensor dense_ffn(const at::Tensor& x_TD, const ExpertWeights& weights,
                     const FfnOptions& options, const std::optional<Fp8Options>& fp8 = {});

// Refuses weights of a dense feed-forward, w1 [G, F, D] and w2 [D, F] as this rank has them, whose
// sides are no whole groups that share a scale in 8 bits.
void require_fp8_sides(const Param& w1, const Param& w2, const char* what);

// The reference: plain ATen with its own gradients, expert by expert. Reads counts on the host.
at::Tensor loop_ffn(const ExpertRows& rows, const ExpertWeights& weights, const FfnOptions& options,
                    Recompute again = Recompute::kNone);

// The MegaBlocks form, over segments of whole blocks; scores are applied to y, which is the same
// except for rounding. Waits for no device.
at::Tensor block_sparse_ffn(const ExpertRows& rows, const ExpertWeights& weights,
                            const FfnOptions& options, Recompute again = Recompute::kNone);

}  // namespace troupe
