#include "troupe/nn/routers/select.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace troupe {
namespace {

RouteOptions route_options(const Tokens& tokens, const SelectOptions& o) {
  RouteOptions out{.rule = {.choices = o.top_k,
                            .score = o.score,
                            .weighting = o.weighting,
                            .norm = static_cast<float>(o.p_norm > 0 ? o.p_norm : 1),
                            .scale = static_cast<float>(o.scale)},
                   .sequences = tokens.sequences,
                   .balance = o.balance,
                   .valid_T = tokens.valid_T,
                   .given_ids_TK = o.given_ids_TK};
  if (o.given_ids_TK.defined()) return out;  // nothing is left to select
  out.bias_E = o.bias_E;
  out.beta_E = o.beta_E;
  if (o.limit.groups > 1) {
    out.rule.groups = o.limit.groups;
    out.rule.keep_groups = o.limit.keep;
    out.rule.group_best = best_of_group(o.limit, o.top_k);
  }
  return out;
}

// How often each expert is in ids [T, K], -1 excepted: int64 [E].
at::Tensor counts_of(const at::Tensor& ids_TK, int64_t experts) {
  const at::Tensor ids = ids_TK.reshape({-1}).to(at::kLong);
  const at::Tensor one = ids.ge(0).to(at::kLong);
  return at::zeros({experts}, ids.options()).scatter_add_(0, ids.clamp_min(0), one);
}

}  // namespace

RouterOutput select(const at::Tensor& z_TE, const Tokens& tokens, const SelectOptions& o) {
  const RouteResult r = route(z_TE, route_options(tokens, o));
  RouterOutput out{.ids_TK = r.ids_TK,
                   .weights_TK = r.weights_TK,
                   .counts_E = r.counts_E,
                   .balance = {.counts_BE = r.plain_counts_BE,
                               .probs_BE = r.probs_BE,
                               .tokens_B = r.tokens_B,
                               .ids_TK = r.ids_TK,
                               .lse_squares = r.lse_squares}};
  if (o.score != Score::kSoftmax) {
    out.score_sum = r.kept_scores.detach() / r.tokens_B.sum().clamp_min(1);
  }
  return out;
}

RouterOutput route_gated(const Gate& gate, const at::Tensor& x_TD, const Tokens& tokens,
                         const Context& context, SelectOptions options) {
  return route_logits(gate, gate.logits(x_TD, context), tokens, context, std::move(options));
}

RouterOutput route_logits(const Gate& gate, const Gated& gated, const Tokens& tokens,
                          const Context& context, SelectOptions options) {
  const at::Tensor& z_TE = gated.z_TE;
  if (tokens.replay_TK.defined()) options.given_ids_TK = tokens.replay_TK;
  options.balance = options.balance && context.records();
  RouterOutput out = select(z_TE, tokens, options);
  out.logits_TE = z_TE.detach();
  out.x_TD = gated.x_TD;
  out.forced = gate.forced();
  const at::Tensor forced = gate.forced_ids(z_TE, options.top_k, context);
  if (!forced.defined()) return out;
  out.ids_TK = forced.masked_fill(out.ids_TK.lt(0), -1);  // R3 uniform: the true weights are kept
  out.counts_E = counts_of(out.ids_TK, out.counts_E.size(0));
  out.balance.ids_TK = out.ids_TK;
  return out;
}

}  // namespace troupe
