// One block:  h = h + attention(norm1(h));  h = h + ffn(norm2(h)), with the MoE layer or a dense
// feed-forward.
#pragma once

#include <memory>
#include <optional>

#include "troupe/nn/attention_module.h"
#include "troupe/nn/dense_ffn.h"
#include "troupe/nn/models/model.h"
#include "troupe/nn/moe_layer.h"

namespace troupe {

class Block {
 public:
  Block(const ModelConfig& config, const LayerConfig& layer, const BuildOptions& options);

  // h [B, S, D]. `context` is the caller's; the layer's number is put in here.
  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context);
  MoeLayer* moe() { return moe_.get(); }

  static void visit(auto& m, auto&& f) {
    f("norm1", m.norm1_);
    f("attention", m.attention_);
    f("norm2", m.norm2_);
    f("ffn", m.ffn_);
    f("moe", m.moe_);
  }

 private:
  at::Tensor feed_forward(const at::Tensor& x_TD, const Batch& batch, const Context& context,
                          UnitResult& result);

  int64_t index_;
  double dropout_;
  std::optional<Norm> norm1_;
  std::unique_ptr<AttentionModule> attention_;  // null: the feed-forward alone
  Norm norm2_;
  std::optional<DenseFfn> ffn_;
  std::unique_ptr<MoeLayer> moe_;
};

}  // namespace troupe
