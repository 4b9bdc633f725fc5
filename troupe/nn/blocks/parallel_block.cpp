#include <ATen/TensorOperators.h>

#include "troupe/nn/blocks/block.h"
#include "troupe/nn/config/block_kinds.h"

namespace troupe {
namespace {

class Parallel : public Block {
 public:
  explicit Parallel(const BlockShape& s) : parts_(s), norm_(s.model.norm, s.model.width) {}

  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context) override {
    const BlockCall call = parts_.call(batch, packing, context);
    const at::Tensor x = norm_.forward(h);
    call.output("norm", x);
    UnitResult result;
    at::Tensor y = parts_.feed_forward(x, call, result);
    if (parts_.attention) y = parts_.attend(x, call) + y;
    result.h = h + y;
    return result;
  }
  MoeLayer* moe() override { return parts_.moe.get(); }
  AttentionModule* attention() override { return parts_.attention.get(); }
  DenseFfn* ffn() override { return parts_.dense_ffn(); }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_member_param(*this, prefix, f);
  }

  static void visit(auto& m, auto&& f) {
    f("norm", m.norm_);
    f("attention", m.parts_.attention);
    f("ffn", m.parts_.ffn);
    f("moe", m.parts_.moe);
  }

 private:
  BlockParts parts_;
  NormModule norm_;
};

}  // namespace

std::unique_ptr<Block> ParallelBlock::build(const BlockShape& shape) const {
  return std::make_unique<Parallel>(shape);
}

}  // namespace troupe
