// Gated DeltaNet in place of attention (Qwen3-Next): linear attention whose cost a token does not
// grow with the sequence. G key heads of d dimensions, H = r G value heads of e; of x [T, D]:
//
//   q, k, v, z = x Wqkvz^T     rows by key head: q and k of d, then v and z of r value heads
//   b, a = x Wba^T             rows by key head: r of b, r of a
//   q, k, v = ops/short_conv over [q, k, v], documents apart
//   beta = sigmoid(b);  g = -exp(a_log) softplus(a + dt_bias)     a value head and token
//   o = ops/gated_delta(q, k, v, g, beta), documents apart
//   y = (norm(o) silu(z)) Wo^T                                    RMSNorm over e
//
// Decays, the state and the gate are in f32 (f64 for f64). Position reaches it through the recurrence
// alone: there is no rotation. Generation keeps two states a row: the last inputs of the convolution
// and S.
//
// Tensor and context parallelism are refused: a rank has all heads and whole rows.
#pragma once

#include <string>

#include "troupe/nn/attention/attention_module.h"

namespace troupe {

class DeltaNet : public AttentionModule {
 public:
  DeltaNet(const ModelConfig& config, const TensorParts& parts, int64_t layer);

  at::Tensor forward(const at::Tensor& x_tD, const AttentionCall& call) override;
  void for_each(const std::string& prefix,
                const std::function<void(const std::string&, Param&)>& f) override {
    for_each_member_param(*this, prefix, f);
  }
  [[noreturn]] void compute_in_fp8(const Fp8Options& fp8) override;
  void keep_rounded_weights(bool /*keep*/) override {}
  void for_each_fp8(const VisitFp8& /*f*/) override {}

  static void visit(auto& m, auto&& f) {
    f("qkvz", m.qkvz_);
    f("ba", m.ba_);
    f("conv", m.conv_);
    f("a_log", m.a_log_);
    f("dt_bias", m.dt_bias_);
    f("norm", m.norm_);
    f("out", m.out_);
  }

 private:
  DeltaConfig config_;
  int64_t index_;
  Linear qkvz_, ba_, out_;
  Param conv_;             // [2 G d + H e, K]
  Param a_log_, dt_bias_;  // [H]
  NormModule norm_;        // [e]
};

}  // namespace troupe
