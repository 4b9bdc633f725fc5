#include "troupe/nn/blocks/pre_norm.h"

#include <ATen/TensorOperators.h>

#include <tuple>

#include "troupe/nn/blocks/block.h"

namespace troupe {
namespace {

class PreNorm : public Block {
 public:
  explicit PreNorm(const BlockShape& s) : parts_(s), norm2_(s.model.norm, s.model.width) {
    if (s.layer.attention) norm1_.emplace(s.model.norm, s.model.width);
  }

  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context) override {
    const BlockCall call = parts_.call(batch, packing, context);
    at::Tensor state = h, x;
    if (norm1_) {
      std::tie(x, state) = norm2_.add(parts_.attend(norm1_->forward(state), call), state);
    } else {
      x = norm2_.forward(state);
    }
    UnitResult result;
    const at::Tensor y = parts_.feed_forward(x, call, result);
    result.h = state + y;
    return result;
  }
  MoeLayer* moe() override { return parts_.moe.get(); }
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

 private:
  BlockParts parts_;
  std::optional<NormModule> norm1_;  // absent: the feed-forward alone
  NormModule norm2_;
};

}  // namespace

std::unique_ptr<Block> PreNormBlock::build(const BlockShape& shape) const {
  return std::make_unique<PreNorm>(shape);
}

}  // namespace troupe
