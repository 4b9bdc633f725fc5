// The last unit: the final norm, the output table, and the loss, whose logits never exist together.
//
//   x = norm(h);  logits = x W^T;  loss_sum = sum_i w_i (nll_i + z_loss lse_i^2)
//
// W is a table of its own or the embedding's. Of a padded table only the vocabulary's rows are
// used. Multi-token prediction module d = 1 .. depth, with s_0 = x:
//   s_d = block(Wp [norm(embedding of token i + d), norm(s_{d-1})]) at position i, and its loss is
//   that of x = norm(s_d) against the target of position i + d (DeepSeek-V3). Positions whose
//   target lies beyond the row or the document do not count. The sum over d, times weight / depth,
//   is mtp_sum; its routers' losses are divided by the depth (A7).
#pragma once

#include <vector>

#include "troupe/nn/block.h"
#include "troupe/nn/embedding.h"

namespace troupe {

class MtpModule {
 public:
  MtpModule(const ModelConfig& config, int64_t depth, const BuildOptions& options);

  // state [B, S, D], token rows [B, S, D]; the result's h is s_d.
  UnitResult forward(const at::Tensor& state, const at::Tensor& tokens, const Batch& batch,
                     const Packing& packing, const Context& context);
  at::Tensor normed(const at::Tensor& state) const { return norm_.forward(state); }
  MoeLayer* moe() { return block_.moe(); }

  static void visit(auto& m, auto&& f) {
    f("token_norm", m.token_norm_);
    f("hidden_norm", m.hidden_norm_);
    f("proj", m.proj_);
    f("block", m.block_);
    f("norm", m.norm_);
  }

 private:
  Norm token_norm_, hidden_norm_;
  Linear proj_;
  Block block_;
  Norm norm_;
};

class Head {
 public:
  explicit Head(const ModelConfig& config);

  // `table`: the embedding, where it is tied or MTP modules read it.
  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context, const Embedding* table);
  at::Tensor logits(const at::Tensor& h, const Embedding* table) const;
  void add_mtp(const ModelConfig& config, const BuildOptions& options);
  std::vector<MtpModule>& mtp() { return mtp_; }

  static void visit(auto& m, auto&& f) {
    f("norm", m.norm_);
    f("weight", m.weight_);
    f("mtp", m.mtp_);
  }

 private:
  struct Targets {
    at::Tensor labels_BS, weights_BS;
  };
  at::Tensor table_of(const Embedding* table) const;
  at::Tensor loss(const at::Tensor& x_BSD, const Targets& targets, const at::Tensor& table) const;
  void predict_more(const at::Tensor& x, const Batch& batch, const Packing& packing,
                    const Context& context, const Embedding* table, UnitResult& result);

  int64_t vocab_;
  double z_loss_, mtp_weight_;
  Norm norm_;
  std::optional<Param> weight_;  // [V, D], V padded; absent: tied
  std::vector<MtpModule> mtp_;
};

}  // namespace troupe
