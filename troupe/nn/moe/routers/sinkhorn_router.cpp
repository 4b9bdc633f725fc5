#include "troupe/nn/moe/routers/sinkhorn_router.h"

#include "troupe/core/check.h"
#include "troupe/nn/moe/routers/select.h"
#include "troupe/ops/sinkhorn.h"

namespace troupe {
namespace {

class SinkhornRouter : public Router {
 public:
  SinkhornRouter(const SinkhornRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    balance_.z_loss = config.z_loss;
    options_.top_k = shape.top_k;
    options_.score = shape.top_k == 1 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
    options_.weighting = RouterWeighting::kRaw;
    options_.scale = config.scale;
    options_.balance = false;
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    const Gated gated = gate_.logits(x_TD, context);
    SelectOptions options = options_;
    if (context.training && !tokens.replay_TK.defined()) {
      options.given_ids_TK = search(gated.z_TE.detach(), tokens, context);
    }
    return route_logits(gate_, gated, tokens, context, options);
  }
  const BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return false; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
  }

 private:
  at::Tensor search(const at::Tensor& z_TE, const Tokens& tokens, const Context& context) const {
    const GroupRows group(config_.scope, context, tokens, z_TE);
    const SinkhornOptions options{.top_k = shape_.top_k,
                                  .tolerance = config_.tolerance,
                                  .max_iterations = config_.max_iterations};
    return group.own(sinkhorn(group.all(z_TE), group.valid(), options).ids_TK);
  }

  SinkhornRouting config_;
  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
  SelectOptions options_;
};

}  // namespace

std::unique_ptr<Router> SinkhornRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (max_iterations < 1) {
    fail(Code::kBadValue, "model.moe.router", "max_iterations is", max_iterations,
         "; it must be 1 or more");
  }
  return std::make_unique<SinkhornRouter>(*this, shape);
}

}  // namespace troupe
