#include "troupe/nn/moe/routers/sigmoid_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "troupe/core/check.h"
#include "troupe/nn/moe/routers/select.h"

namespace troupe {
namespace {

class SigmoidBiasRouter : public Router {
 public:
  SigmoidBiasRouter(const SigmoidBiasRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    balance_bias_ = Param::of({shape.experts}, {.kind = Init::kZero}).as_state();
    options_.top_k = shape.top_k;
    options_.score = config.score == IndependentScore::kSigmoid   ? RouterScore::kSigmoid
                     : config.score == IndependentScore::kSoftmax ? RouterScore::kSoftmax
                                                                  : RouterScore::kSqrtSoftplus;
    options_.weighting = config.p_norm > 0 ? RouterWeighting::kNorm : RouterWeighting::kSum;
    options_.p_norm = config.p_norm;
    options_.scale = config.scale;
    options_.balance = config.balance.balances();
    options_.limit = config.limit;
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    SelectOptions options = options_;
    const Gated gated = gate_.logits(x_TD, context);
    if (config_.score != IndependentScore::kSoftmax) {
      options.bias_E = balance_bias_.value;
    } else if (!tokens.replay_TK.defined()) {
      options.given_ids_TK = softmax_choices(gated.z_TE, tokens);
    }
    RouterOutput out = route_logits(gate_, gated, tokens, context, options);
    if (context.records())
      counts_E_ = counts_E_.defined() ? counts_E_ + out.counts_E : out.counts_E;
    return out;
  }

  void end_of_step(const SumOver& all_sum, bool skipped) override {
    const at::Tensor own =
        counts_E_.defined()
            ? counts_E_
            : at::zeros({shape_.experts}, balance_bias_.value.options().dtype(at::kLong));
    counts_E_ = at::Tensor();
    const at::Tensor all = summed(all_sum, own);  // also when skipped: every rank joins
    if (!skipped) update_bias(balance_bias_.value, all, config_.bias_rate, config_.center);
  }

  void for_each_of_step(const VisitTensor& f) override { f(counts_E_); }
  const BalanceConfig& balance() const override { return config_.balance; }
  GroupsConfig limit() const override { return config_.limit; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return true; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
    f(detail::dotted(prefix, "balance_bias"), balance_bias_);
  }

 private:
  // The kernel that routes adds a bias to scores of single logits alone. Ties go to the lower expert.
  at::Tensor softmax_choices(const at::Tensor& z_TE, const Tokens& tokens) const {
    const at::NoGradGuard no_grad;
    const at::Tensor scores = at::softmax(z_TE, -1) + balance_bias_.value;
    const at::Tensor order =
        std::get<1>(at::sort(scores, /*stable=*/true, -1, /*descending=*/true));
    const at::Tensor ids = order.narrow(-1, 0, shape_.top_k).to(at::kInt).contiguous();
    return tokens.valid_T.defined()
               ? ids.masked_fill(~tokens.valid_T.to(at::kBool).unsqueeze(1), -1)
               : ids;
  }

  SigmoidBiasRouting config_;
  Gate gate_;
  RouterShape shape_;
  SelectOptions options_;
  Param balance_bias_;
  at::Tensor counts_E_;  // of the step so far, this rank; undefined before its first microbatch
};

}  // namespace

void update_bias(at::Tensor bias_E, const at::Tensor& counts_E, double rate, bool center) {
  const at::NoGradGuard no_grad;
  if (rate == 0) return;
  const at::Tensor over = counts_E.sum() - counts_E * counts_E.size(0);  // E (mean - N_e), exact
  bias_E.add_(over.sign().to(bias_E.scalar_type()), rate);
  if (center) bias_E.sub_(bias_E.mean());
}

std::unique_ptr<Router> SigmoidBiasRouting::build(const RouterShape& shape) const {
  validate(shape);
  validate(limit, shape);
  TROUPE_CHECK(score != IndependentScore::kSoftmax || limit.groups == 1,
               "router.score softmax chooses among all experts: router.limit.groups is",
               limit.groups);
  return std::make_unique<SigmoidBiasRouter>(*this, shape);
}

}  // namespace troupe
