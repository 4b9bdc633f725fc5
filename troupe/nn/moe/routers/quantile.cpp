#include "troupe/nn/moe/routers/quantile.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "troupe/core/check.h"
#include "troupe/nn/moe/group_rows.h"
#include "troupe/ops/quantile.h"

namespace troupe {
namespace {

class QuantileRouter : public Router {
 public:
  QuantileRouter(const QuantileRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    beta_ = Param::of({shape.experts}, {.kind = Init::kZero}).as_state();
    balance_.z_loss = config.z_loss;
    options_.top_k = shape.top_k;
    options_.score = config.score;
    options_.weighting = config.score == RouterScore::kSoftmax
                             ? softmax_weighting(config.order, 0, shape)
                             : RouterWeighting::kSum;
    options_.scale = config.scale;
    options_.balance = false;
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    SelectOptions options = options_;
    options.beta_E = beta_.value;
    const Gated gated = gate_.logits(x_TD, context);
    RouterOutput out = route_logits(gate_, gated, tokens, context, options);
    if (context.records()) add(gated.z_TE.detach(), tokens, context);
    return out;
  }

  void end_of_step(const SumOver& all_sum, bool skipped) override {
    const at::NoGradGuard no_grad;
    const at::Tensor own =
        sums_.defined() ? sums_ : at::zeros({shape_.experts + 1}, beta_.value.options());
    sums_ = at::Tensor();
    const at::Tensor all = summed(all_sum, own);
    if (skipped) return;
    const at::Tensor count = all.select(0, shape_.experts);
    const at::Tensor mean = all.narrow(0, 0, shape_.experts) / count.clamp_min(1);
    const at::Tensor moved = beta_.value * config_.ema + mean * (1 - config_.ema);
    beta_.value.copy_((moved - moved.mean()).where(count > 0, beta_.value));
  }

  void for_each_of_step(const VisitTensor& f) override { f(sums_); }
  const BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return false; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
    f(detail::dotted(prefix, "beta"), beta_);
  }

 private:
  // Sums of the microbatches' new beta, and their number in the last element.
  void add(const at::Tensor& z_TE, const Tokens& tokens, const Context& context) {
    const at::NoGradGuard no_grad;
    const GroupRows group(RoutingScope::kGroup, context, tokens, z_TE);
    const at::Tensor all = group.all(z_TE);
    if (all.size(0) == 0) return;  // no microbatch, but what stands in for one
    const at::Tensor fresh = quantile(all, beta_.value, group.valid(), shape_.top_k);
    const at::Tensor with_count = at::cat({fresh, at::full({1}, 1, fresh.options())});
    sums_ = sums_.defined() ? sums_ + with_count : with_count;
  }

  QuantileRouting config_;
  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
  SelectOptions options_;
  Param beta_;
  at::Tensor sums_;  // [E + 1]; undefined before the step's first microbatch
};

}  // namespace

std::unique_ptr<Router> QuantileRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (shape.top_k == shape.experts || ema < 0 || ema >= 1) {
    fail(Code::kBadValue, "model.moe.router", "quantile balancing needs top_k", shape.top_k,
         "below experts", shape.experts, "and ema", ema, "in [0, 1)");
  }
  return std::make_unique<QuantileRouter>(*this, shape);
}

}  // namespace troupe
