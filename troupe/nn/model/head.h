// What follows the blocks: the final norm, MTP modules, a unit each, and the head, whose logits
// never exist together.
//
//   x = norm(h);  logits = x W^T;  loss_sum = sum_i w_i (nll_i + z_loss lse_i^2)
//
// W is the head's own table or the embedding's (tied). Padding rows of a table are not used. With
// tensor parallelism each rank computes the loss of its own tokens; nn/model/split_cross_entropy.h does
// it for a table that is cut over the ranks. Multi-token prediction, modules d = 1 .. depth, with
// s_0 = x:
//   s_d = block(Wp [norm(embedding of token i + d), norm(s_{d-1})]) at position i, and its loss is
//   that of n_d = norm_d(s_d) against the target of position i + d (DeepSeek-V3). Positions whose
//   target is beyond the row or the document do not count. The sum over d, times weight / depth,
//   is mtp_sum; its routers' losses are divided by the depth (A7).
//
// Of preference pairs (Batch::preference) loss_sum is that of ops/preference_loss.h, without a z-loss
// and modules; of the reference, which has none beside it, the log-probabilities are all.
//
// With a teacher (Batch::soft) loss_sum is that of ops/soft_targets.h; mtp_sum stays as it is.
//
// The head computes all losses, and the first unit behind the blocks the final norm. What a unit
// passes on are tensors [t, D], one behind the other: x, n_1 .. n_d and, to another module, s_d.
// Without training the modules compute nothing, and x alone is passed on.
#pragma once

#include <memory>
#include <vector>

#include "troupe/nn/blocks/block.h"
#include "troupe/nn/model/embedding.h"
#include "troupe/nn/model/split_cross_entropy.h"

namespace troupe {

class MtpModule {
 public:
  MtpModule(const ModelConfig& config, int64_t depth, const BuildOptions& options);

  // h [t, D] is s_{d-1}, token rows [t, D]; the result's h is s_d.
  UnitResult forward(const at::Tensor& h, const at::Tensor& tokens, const Batch& batch,
                     const Packing& packing, const Context& context);
  at::Tensor normed(const at::Tensor& h) const { return norm_.forward(h); }
  MoeLayer* moe() { return block_->moe(); }

  static void visit(auto& m, auto&& f) {
    f("token_norm", m.token_norm_);
    f("hidden_norm", m.hidden_norm_);
    f("proj", m.proj_);
    f("block", m.block_);
    f("norm", m.norm_);
  }

 private:
  NormModule token_norm_, hidden_norm_;
  Linear proj_;
  std::unique_ptr<Block> block_;
  NormModule norm_;
};

class Head {
 public:
  // `here`: which units this rank has: MTP modules 1 .. depth, then the head.
  Head(const ModelConfig& config, const BuildOptions& options, const std::vector<bool>& here);

  // `table`: the embedding, if it is tied; else null.
  UnitResult forward(const at::Tensor& h, const Batch& batch, const Context& context,
                     const Embedding* table);
  at::Tensor logits(const at::Tensor& h, const Context& context, const Embedding* table) const;

  UnitResult predict(int64_t module, const at::Tensor& h, const BlockCall& call,
                     const Embedding& table);
  MoeLayer* moe(int64_t module);  // null: none here

  // Parameters of MTP module 1 .., or of the head, depth + 1.
  void for_each_param_of(int64_t unit, const ParamVisitor& f);
  static void visit(auto& m, auto&& f) {
    f("norm", m.norm_);
    f("weight", m.weight_);
    f("mtp", m.mtp_);
  }

 private:
  TableRows table_of(const Embedding* table) const;
  // Beside a teacher, on a rank that has the whole table and all tokens: the sums of the loss.
  void add_taught(const at::Tensor& x_TD, const Batch& batch, const TableRows& table,
                  UnitResult& result) const;
  // Of preference pairs, on such a rank: the sums of the loss, or the reference's part of it.
  void add_preference(const at::Tensor& x_TD, const Batch& batch, const TableRows& table,
                      UnitResult& result) const;
  // `targets` are of the whole batch; their ids are not read.
  at::Tensor loss(const at::Tensor& x_tD, const AheadTokens& targets, const TableRows& table) const;
  std::vector<AheadTokens> ahead(const Batch& batch) const;  // of each module

  int64_t vocab_, depth_;
  double z_loss_, mtp_weight_;
  TensorParts parts_;
  std::optional<NormModule> norm_;  // absent: the unit that computes it is another rank's
  std::optional<Param> weight_;     // [V, D], V padded, own rows where cut; absent: tied
  std::vector<std::unique_ptr<MtpModule>> mtp_;  // null: another rank's
};

}  // namespace troupe
