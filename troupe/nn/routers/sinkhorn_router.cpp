#include "troupe/nn/routers/sinkhorn_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"
#include "troupe/nn/routers/select.h"

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
  }

  RouterOutput forward(const at::Tensor& x_TD, const Tokens& tokens,
                       const Context& context) override {
    const at::Tensor z_TE = gate_.logits(x_TD, context);
    SelectOptions options = options_;
    if (context.training) options.given_ids_TK = search(z_TE.detach(), tokens);
    return route_logits(gate_, z_TE, tokens, context, options);
  }
  const BalanceConfig& balance() const override { return balance_; }
  int64_t slots() const override { return shape_.top_k; }
  bool may_drop() const override { return false; }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_param(gate_, prefix, f);
  }

 private:
  at::Tensor search(const at::Tensor& z_TE, const Tokens& tokens) const {
    const at::Tensor v_E =
        sinkhorn_columns(z_TE, tokens.valid_T, config_.tolerance, config_.max_iterations);
    const at::Tensor by =
        z_TE - z_TE.amax({1}, true) + v_E;  // a shift of all logits changes no bit
    return std::get<1>(by.sort(/*stable=*/true, 1, /*descending=*/true))
        .narrow(1, 0, shape_.top_k)
        .to(at::kInt);
  }

  SinkhornRouting config_;
  Gate gate_;
  RouterShape shape_;
  BalanceConfig balance_;
  SelectOptions options_;
};

}  // namespace

// In the log domain: u = -ln n - lse_e(z + v), v = -ln E - lse_t(z + u), by turns. On the GPU
// nothing is copied to the host: a search that has converged goes on without effect.
at::Tensor sinkhorn_columns(const at::Tensor& z_TE, const at::Tensor& valid_T, double tolerance,
                            int64_t max_iterations) {
  const at::NoGradGuard no_grad;
  const at::Tensor& z = z_TE;
  const int64_t E = z.size(1);
  at::Tensor v_E = at::zeros({E}, z.options()), open = at::zeros({}, z.options()).eq(0);
  if (z.size(0) == 0) return v_E;
  const at::Tensor out_T1 = valid_T.defined() ? valid_T.logical_not().unsqueeze(1) : at::Tensor();
  for (int64_t i = 0; i < max_iterations; ++i) {
    at::Tensor y = z - at::logsumexp(z + v_E, {1}, /*keepdim=*/true);
    if (out_T1.defined()) y = y.masked_fill(out_T1, -std::numeric_limits<double>::infinity());
    at::Tensor next_E = -at::logsumexp(y, {0});
    // A column of -inf throughout keeps v = 0. The mean is ln n - ln E and all else that shifts
    // every column alike.
    const at::Tensor finite = next_E.isfinite();
    next_E = next_E - next_E.masked_fill(finite.logical_not(), 0).mean();
    next_E = next_E.where(finite.logical_and(open), v_E);
    const at::Tensor moved = (next_E - v_E).abs().mean();
    v_E = next_E;
    open = open.logical_and(moved > tolerance);
    if (z.is_cpu() && !open.item<bool>()) break;
  }
  return v_E;
}

std::unique_ptr<Router> SinkhornRouting::build(const RouterShape& shape) const {
  validate(shape);
  if (max_iterations < 1) {
    fail(Code::kBadValue, "model.moe.router", "max_iterations is", max_iterations,
         "; it must be 1 or more");
  }
  return std::make_unique<SinkhornRouter>(*this, shape);
}

}  // namespace troupe
