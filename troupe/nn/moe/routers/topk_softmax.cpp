#include "troupe/nn/moe/routers/topk_softmax.h"

#include "troupe/core/check.h"
#include "troupe/nn/moe/routers/select.h"

namespace troupe {
namespace {

class TopkSoftmaxRouter : public Router {
 public:
  TopkSoftmaxRouter(const TopkSoftmaxRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    options_.top_k = shape.top_k;
    options_.weighting = softmax_weighting(config.order, config.p_norm, shape);
    options_.p_norm = config.p_norm;
    options_.scale = config.scale;
    options_.balance = config.balance.balances();
    options_.limit = config.limit;
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    return route_gated(gate_, x_TD, tokens, context, options_);
  }
  const BalanceConfig& balance() const override { return config_.balance; }
  GroupsConfig limit() const override { return config_.limit; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return true; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
  }

 private:
  TopkSoftmaxRouting config_;
  Gate gate_;
  RouterShape shape_;
  SelectOptions options_;
};

}  // namespace

// With one choice among several the weight of `after` is 1 whatever the logits are.
Weighting softmax_weighting(SoftmaxOrder order, double p_norm, const RouterShape& shape) {
  const bool one = shape.top_k == 1 && shape.experts > 1;
  if (order == SoftmaxOrder::kAfter) {
    if (one) {
      fail(Code::kBadValue, kRouterPlace,
           "order 'after' (R4) with top_k 1 gives weight 1 and the router",
           "no gradient; take order 'before' (R5) or the kind sigmoid_bias (R6)");
    }
    if (p_norm > 0) {
      fail(Code::kBadValue, kRouterPlace,
           "p_norm (R7) goes with order 'before'; with 'after' the weights", "sum to 1 already");
    }
    return Weighting::kChosen;
  }
  if (p_norm > 0) return Weighting::kNorm;
  const bool before = order == SoftmaxOrder::kBefore || shape.top_k == 1;
  return before ? Weighting::kRaw : Weighting::kChosen;
}

void validate(const RouterShape& shape) {
  if (shape.experts < 1 || shape.top_k < 1 || shape.top_k > shape.experts) {
    fail(Code::kBadValue, "model.moe", "top_k is", shape.top_k, "and experts is", shape.experts,
         "; 1 <= top_k <= experts must hold");
  }
}

void validate(const GroupsConfig& c, const RouterShape& s) {
  const auto refuse = [](const auto&... what) { fail(Code::kBadValue, kRouterPlace, what...); };
  if (c.groups < 1 || s.experts % c.groups != 0) {
    refuse(s.experts, "experts do not divide into", c.groups, "groups");
  }
  if (c.groups == 1) return;
  const int64_t each = s.experts / c.groups;
  if (c.keep < 1 || c.keep > c.groups) refuse("keep is", c.keep, "of", c.groups, "groups");
  if (c.keep * each < s.top_k) {
    refuse(c.keep, "groups of", each, "experts hold fewer than top_k", s.top_k);
  }
  const int64_t m = best_of_group(c, s.top_k);
  if (m < 1 || m > each) {
    refuse("a group's score sums its", m, "best of", each, "experts; set limit.top to 1 or more");
  }
}

int64_t best_of_group(const GroupsConfig& c, int64_t top_k) {
  return c.top > 0 ? c.top : top_k / c.keep;
}

std::unique_ptr<Router> TopkSoftmaxRouting::build(const RouterShape& shape) const {
  validate(shape);
  validate(limit, shape);
  return std::make_unique<TopkSoftmaxRouter>(*this, shape);
}

}  // namespace troupe
