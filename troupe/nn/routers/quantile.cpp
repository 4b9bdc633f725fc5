#include "troupe/nn/routers/quantile.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"

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
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    SelectOptions options = options_;
    options.beta_E = beta_.value;
    const at::Tensor z_TE = gate_.logits(x_TD, context);
    RouterOutput out = route_logits(gate_, z_TE, tokens, context, options);
    if (context.records()) add(z_TE.detach(), tokens, context);
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
    at::Tensor z = z_TE, valid = tokens.valid_T;
    if (context.group_rows) {
      if (!valid.defined()) valid = at::full({z.size(0)}, true, z.options().dtype(at::kBool));
      z = context.group_rows(z);
      valid = context.group_rows(valid);
    }
    const at::Tensor fresh = quantile_update(z, beta_.value, valid, shape_.top_k);
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

at::Tensor quantile_update(const at::Tensor& z_TE, const at::Tensor& beta_E,
                           const at::Tensor& valid_T, int64_t top_k) {
  const at::NoGradGuard no_grad;
  const int64_t T = z_TE.size(0), E = z_TE.size(1);
  if (T == 0) return beta_E.clone();
  const at::Tensor above = std::get<0>((z_TE - beta_E).topk(top_k + 1, 1)).select(1, top_k);
  at::Tensor left = z_TE - above.unsqueeze(1);
  at::Tensor n = at::full({}, T, z_TE.options().dtype(at::kLong));
  if (valid_T.defined()) {
    left = left.masked_fill(valid_T.logical_not().unsqueeze(1),
                            -std::numeric_limits<double>::infinity());
    n = valid_T.sum();
  }
  const at::Tensor rank = (n * top_k).div(E, "floor").expand({1, E});
  const at::Tensor fresh = std::get<0>(left.sort(/*dim=*/0, /*descending=*/true)).gather(0, rank);
  return fresh.select(0, 0).to(beta_E.scalar_type()).where(n > 0, beta_E);
}

std::unique_ptr<Router> QuantileRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (shape.top_k == shape.experts || ema < 0 || ema >= 1) {
    fail(Code::kBadValue, "model.moe.router", "quantile balancing needs top_k", shape.top_k,
         "below experts", shape.experts, "and ema", ema, "in [0, 1)");
  }
  return std::make_unique<QuantileRouter>(*this, shape);
}

}  // namespace troupe
