#include "troupe/nn/routers/expert_choice.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Which pairs are taken: [T, E] bool.
at::Tensor taken(const at::Tensor& s_TE, const at::Tensor& valid_T, double rho) {
  const at::NoGradGuard no_grad;
  const int64_t T = s_TE.size(0), E = s_TE.size(1);
  const at::Tensor invalid = valid_T.logical_not().unsqueeze(1);
  const at::Tensor by =
      s_TE.nan_to_num(-1).masked_fill(invalid, -std::numeric_limits<double>::infinity());
  const at::Tensor order = std::get<1>(by.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  const at::Tensor place =
      at::zeros({T, E}, order.options())
          .scatter_(0, order, at::arange(T, order.options()).unsqueeze(1).expand({T, E}));
  const at::Tensor n = valid_T.sum();
  const at::Tensor C =
      (n.to(at::kDouble) * (rho / static_cast<double>(E)) - 1e-6).ceil().clamp_min(0).minimum(n);
  return place.lt(C).logical_and(valid_T.unsqueeze(1));
}

class ExpertChoiceRouter : public Router {
 public:
  ExpertChoiceRouter(const ExpertChoiceRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    balance_.z_loss = config.z_loss;
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    const at::Tensor z_TE = gate_.logits(x_TD, context);
    const at::Tensor valid_T = valid_or_all(tokens, z_TE);
    const at::Tensor s_TE =
        config_.score == RouterScore::kSoftmax ? z_TE.softmax(1) : z_TE.sigmoid();
    const at::Tensor mine = tokens.replay_TK.defined()
                                ? tokens.replay_TK.ge(0).logical_and(valid_T.unsqueeze(1))
                                : taken(s_TE.detach(), valid_T, rho());
    at::Tensor w = s_TE.masked_fill(mine.logical_not(), 0);
    if (config_.normalise) w = w / (w.sum(1, true) + 1e-20);
    RouterOutput out;
    out.weights_TK = config_.scale == 1 ? w : w * config_.scale;
    const at::Tensor expert =
        at::arange(shape_.experts, z_TE.options().dtype(at::kInt).requires_grad(false));
    out.ids_TK = expert.expand(mine.sizes()).masked_fill(mine.logical_not(), -1);
    out.counts_E = mine.sum(0);
    out.balance = select(z_TE, tokens, {.top_k = shape_.top_k, .score = config_.score}).balance;
    out.balance.ids_TK = out.ids_TK;
    out.forced = gate_.forced();
    return out;
  }

  const BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.experts; }
  bool may_drop() const override { return false; }
  bool is_causal() const override { return false; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
  }

 private:
  double rho() const { return config_.rho > 0 ? config_.rho : static_cast<double>(shape_.top_k); }

  ExpertChoiceRouting config_;
  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
};

}  // namespace

std::unique_ptr<Router> ExpertChoiceRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (rho < 0 || rho > static_cast<double>(shape.experts)) {
    fail(Code::kBadValue, "model.moe.router", "rho is", rho, "; it must lie in [0,", shape.experts,
         "]");
  }
  if (score == RouterScore::kSqrtSoftplus) {
    fail(Code::kBadValue, "model.moe.router", "expert choice scores by softmax or sigmoid");
  }
  if (gate.force == Force::kUniform) {
    fail(Code::kBadValue, "model.moe.router", "expert choice is uniform by itself: force uniform",
         "does not go with it");
  }
  return std::make_unique<ExpertChoiceRouter>(*this, shape);
}

}  // namespace troupe
