#include <ATen/TensorOperators.h>

#include "troupe/nn/blocks/two_norms.h"
#include "troupe/nn/config/block_kinds.h"

namespace troupe {
namespace {

class PostNorm : public TwoNorms {
 public:
  using TwoNorms::TwoNorms;

  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context) override {
    const BlockCall call = parts_.call(batch, packing, context);
    at::Tensor state = h;
    if (norm1_) {
      const at::Tensor a = norm1_->forward(parts_.attend(state, call));
      call.output("norm1", a);
      state = state + a;
    }
    UnitResult result;
    const at::Tensor y = parts_.feed_forward(state, call, result);
    const at::Tensor normed = norm2_.forward(y);
    call.output("norm2", normed);
    result.h = state + normed;
    return result;
  }
};

}  // namespace

std::unique_ptr<Block> PostNormBlock::build(const BlockShape& shape) const {
  return std::make_unique<PostNorm>(shape);
}

}  // namespace troupe
