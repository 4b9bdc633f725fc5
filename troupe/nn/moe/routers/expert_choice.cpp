#include "troupe/nn/moe/routers/expert_choice.h"

#include <ATen/ops/full.h>

#include "troupe/core/check.h"
#include "troupe/ops/expert_choice.h"

namespace troupe {
namespace {

class ExpertChoiceRouter : public Router {
 public:
  ExpertChoiceRouter(const ExpertChoiceRouting& config, const RouterShape& shape)
      : config_(config), gate_(config.gate, shape), shape_(shape) {
    balance_.z_loss = config.z_loss;
    rule_ = {.score = config.score,
             .rho = config.rho > 0 ? config.rho : static_cast<double>(shape.top_k),
             .normalize = config.normalize,
             .scale = static_cast<float>(config.scale)};
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    const auto [z_TE, also_x_TD] = gate_.logits(x_TD, context);
    const ExpertChoiceResult r = expert_choice(
        z_TE,
        {.rule = rule_, .valid_T = tokens.valid_T, .given_ids_TE = given(z_TE, tokens, context)});
    RouterOutput out;
    out.ids_TK = r.ids_TE;
    out.weights_TK = r.weights_TE;
    out.counts_E = r.counts_E;
    out.balance.ids_TK = r.ids_TE;
    out.balance.tokens_B = number_of(tokens, z_TE);
    out.balance.lse_squares = r.lse_squares;
    out.forced = gate_.forced();
    out.logits_TE = z_TE.detach();
    out.x_TD = also_x_TD;
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
  // The choices, where they are not this rank's own to make: of a replay (R15), or of all of G.
  at::Tensor given(const at::Tensor& z_TE, const Tokens& tokens, const Context& context) const {
    if (tokens.replay_TK.defined()) return tokens.replay_TK;
    const GroupRows group(config_.scope, context, tokens, z_TE);
    if (!group.shared()) return {};
    return group.own(
        expert_choice(group.all(z_TE.detach()), {.rule = rule_, .valid_T = *group.valid()}).ids_TE);
  }

  static at::Tensor number_of(const Tokens& tokens, const at::Tensor& z_TE) {
    if (tokens.valid_T.defined()) return tokens.valid_T.sum().reshape({1});
    return at::full({1}, z_TE.size(0), z_TE.options().dtype(at::kLong).requires_grad(false));
  }

  ExpertChoiceRouting config_;
  ExpertChoiceRule rule_;
  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
};

}  // namespace

std::unique_ptr<Router> ExpertChoiceRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (rho < 0 || rho > static_cast<double>(shape.experts)) {
    fail(Code::kBadValue, "model.moe.router", "rho is", rho, "; it must be in [0,", shape.experts,
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
