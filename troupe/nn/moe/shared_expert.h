// The shared expert: a feed-forward that every token passes, beside the routed ones.
//   sum       y = routed + shared                        (SH1)
//   weighted  y = shared / (k + 1) + routed k / (k + 1)  (SH2, MegaBlocks)
//   gate      y = routed + shared sigmoid(x w)           (SH3, Qwen2-MoE)
// With train.fp8.ffn its products have 8-bit operands; the gate stays as it is.
#pragma once

#include "troupe/nn/moe/lora_ffn.h"
#include "troupe/nn/parts/tensor_parts.h"

namespace troupe {

enum class SharedForm { kSum, kWeighted, kGate };
constexpr auto names_of(SharedForm) {
  return std::array{Named{"sum", SharedForm::kSum}, Named{"weighted", SharedForm::kWeighted},
                    Named{"gate", SharedForm::kGate}};
}

struct SharedConfig {
  int64_t experts = 0;  // n_s experts are one of n_s times the width; 0: none
  int64_t hidden = 0;   // f_s, of all together; 0: n_s times the routed experts' width
  SharedForm form = SharedForm::kSum;
  // Computed while the dispatcher moves rows, instead of after the combine; no bit changes (SH4).
  bool overlap = true;
  LoraConfig lora = {};                      // of model.lora, which sets it: no key of its own
  std::optional<LowBitFormat> low_bit = {};  // of model.lora.frozen, likewise

  static void visit(auto& c, auto&& f) {
    f("experts", c.experts, "Width of the shared expert as a multiple of moe.hidden; 0: off.");
    f("hidden", c.hidden, "Width of the shared expert; 0: experts times moe.hidden.");
    f("form", c.form, "sum, weighted (1 / (K + 1)) or with a sigmoid gate.");
    f("overlap", c.overlap, "Computes it while rows are dispatched; results do not change.");
  }
  int64_t width_for(int64_t routed_hidden) const {
    return experts == 0 ? 0 : hidden > 0 ? hidden : experts * routed_hidden;
  }
};

class SharedExpert {
 public:
  // The routed experts' form and initial values; full width, no biases.
  SharedExpert(const SharedConfig& config, const ExpertsConfig& routed, int64_t width,
               int64_t layers, const TensorParts& parts = {});

  // Gated, if it is; not weighted. x: own tokens; `all`: the tokens of all ranks that share them.
  // `context` is that of the own tokens.
  at::Tensor forward(const at::Tensor& x_tD, int64_t all, const Context& context = {}) const;
  // y of routed and shared, by the form.
  at::Tensor add(const at::Tensor& routed_TD, const at::Tensor& shared_TD, int64_t top_k) const;
  // From now on with 8-bit operands (ops/moe_ffn/moe_ffn_fp8.h). Refuses sides that are no
  // multiples of 128: train/recipe/fp8.h names them.
  void compute_in_fp8(const Fp8Options& fp8);
  void keep_rounded_weights(bool keep);  // as Experts'
  void for_each_fp8(const VisitFp8& f) { f(fp8_); }

  static void visit(auto& m, auto&& f) {
    f("w1", m.w1);
    f("w2", m.w2);
    f("gate", m.gate);
    if (m.lora) FfnLora::visit(*m.lora, f);
    f("fp8", m.fp8_);
  }

  Param w1, w2;               // [2 f_s, D] or [f_s, D], [D, f_s]
  std::optional<Param> gate;  // [1, D]
  std::optional<FfnLora> lora;

 private:
  // Of the tokens of all ranks, summed over none and not gated.
  at::Tensor of_gathered(const at::Tensor& x_TD, const FfnOptions& options,
                         const Context& context) const;

  SharedForm form_;
  FfnForm ffn_;
  TokenSharding sharding_;  // alone where the expert is whole on each rank
  Fp8Products fp8_;
};

}  // namespace troupe
