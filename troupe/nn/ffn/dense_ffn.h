// The dense feed-forward: W2 (act(W1 x + b1)) + b2, one expert that every token takes. With
// train.fp8.ffn its products have 8-bit operands (ops/moe_ffn/moe_ffn_fp8.h), without b1 and b2.
#pragma once

#include "troupe/nn/config/config.h"
#include "troupe/nn/moe/lora_ffn.h"
#include "troupe/nn/parts/tensor_parts.h"

namespace troupe {

FfnForm form_of(FfnAct act);

class DenseFfn {
 public:
  DenseFfn(const ModelConfig& config, int64_t hidden, const TensorParts& parts = {});

  // x: this rank's tokens, of `context`; `all`: the tokens of all ranks that share the weights.
  at::Tensor forward(const at::Tensor& x_tD, int64_t all, const Context& context = {}) const;
  // From now on with 8-bit operands. Refuses biases and sides that are no multiples of 128:
  // train/recipe/fp8.h names them.
  void compute_in_fp8(const Fp8Options& fp8);
  void keep_rounded_weights(bool keep);  // as Experts'
  void for_each_fp8(const VisitFp8& f) { f(fp8_); }

  static void visit(auto& m, auto&& f) {
    f("w1", m.w1);
    f("w2", m.w2);
    f("b1", m.b1);
    f("b2", m.b2);
    if (m.lora) FfnLora::visit(*m.lora, f);
    f("fp8", m.fp8_);
  }

  Param w1, w2;                 // [2 F, D] (gate, then up) or [F, D]; [D, F]
  std::optional<Param> b1, b2;  // [2 F] or [F]; [D]
  std::optional<FfnLora> lora;

 private:
  // Of the tokens of all ranks, summed over none; b2 where no sum follows.
  at::Tensor of_gathered(const at::Tensor& x_TD, const FfnOptions& options,
                         const Context& context) const;

  FfnForm form_;
  TokenSharding sharding_;
  Fp8Products fp8_;
};

}  // namespace troupe
