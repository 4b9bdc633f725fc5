#include "cosine_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include "troupe/nn/moe/routers/select.h"

namespace {

class CosineRouter : public troupe::Router {
 public:
  CosineRouter(const troupe::RouterShape& shape, double aux_loss) : shape_(shape) {
    balance_.aux_loss = aux_loss;
    weight_ = troupe::Param::of({shape.experts, shape.width},
                                {.kind = troupe::Init::kNormal, .std = 0.02});
    scale_ = troupe::Param::of({1}, {.kind = troupe::Init::kOne});
  }

  troupe::RouterOutput forward(const at::Tensor& x_TD, const troupe::Tokens& tokens,
                               const troupe::Context&) override {
    const auto unit = [](const at::Tensor& rows) {
      return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-6);
    };
    const at::Tensor z_TE = 10 * scale_.value * at::linear(unit(x_TD), unit(weight_.value));
    return troupe::select(z_TE, tokens,
                          {.top_k = shape_.top_k, .weighting = troupe::Weighting::kChosen});
  }

  const troupe::BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return true; }
  void for_each(const std::string& prefix, const troupe::VisitParam& f) override {
    f(prefix + ".weight", weight_);
    f(prefix + ".scale", scale_);
  }

 private:
  troupe::RouterShape shape_;
  troupe::BalanceConfig balance_;
  troupe::Param weight_, scale_;
};

}  // namespace

std::unique_ptr<troupe::Router> cosine_router(const troupe::RouterShape& shape, double aux_loss) {
  troupe::validate(shape);
  return std::make_unique<CosineRouter>(shape, aux_loss);
}
