#include <ATen/TensorOperators.h>

#include <tuple>

#include "troupe/nn/blocks/two_norms.h"
#include "troupe/nn/config/block_kinds.h"

namespace troupe {
namespace {

class PreNorm : public TwoNorms {
 public:
  using TwoNorms::TwoNorms;

  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context) override {
    const BlockCall call = parts_.call(batch, packing, context);
    at::Tensor state = h, x;
    if (norm1_) {
      const at::Tensor read = norm1_->forward(state);
      call.output("norm1", read);
      std::tie(x, state) = norm2_.add(parts_.attend(read, call), state);
    } else {
      x = norm2_.forward(state);
    }
    call.output("norm2", x);
    UnitResult result;
    const at::Tensor y = parts_.feed_forward(x, call, result);
    result.h = state + y;
    return result;
  }
};

}  // namespace

std::unique_ptr<Block> PreNormBlock::build(const BlockShape& shape) const {
  return std::make_unique<PreNorm>(shape);
}

}  // namespace troupe
