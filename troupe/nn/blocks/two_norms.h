// What the blocks share that have a norm for each of their two parts; where it stands is their own.
#pragma once

#include <optional>
#include <string>

#include "troupe/nn/blocks/block.h"

namespace troupe {

class TwoNorms : public Block {
 public:
  explicit TwoNorms(const BlockShape& s) : parts_(s), norm2_(s.model.norm, s.model.width) {
    if (s.layer.attention) norm1_.emplace(s.model.norm, s.model.width);
  }

  MoeLayer* moe() override { return parts_.moe.get(); }
  AttentionModule* attention() override { return parts_.attention.get(); }
  DenseFfn* ffn() override { return parts_.dense_ffn(); }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_member_param(*this, prefix, f);
  }

  static void visit(auto& m, auto&& f) {
    f("norm1", m.norm1_);
    f("attention", m.parts_.attention);
    f("norm2", m.norm2_);
    f("ffn", m.parts_.ffn);
    f("moe", m.parts_.moe);
  }

 protected:
  BlockParts parts_;
  std::optional<NormModule> norm1_;  // absent: the feed-forward alone
  NormModule norm2_;
};

}  // namespace troupe
