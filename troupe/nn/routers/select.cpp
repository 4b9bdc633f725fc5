#include "troupe/nn/routers/select.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool chosen_first(const SelectOptions& o) {
  return o.weighting == RouterWeighting::kChosen;
}

at::Tensor scores_of(const at::Tensor& z_TE, RouterScore score) {
  switch (score) {
    case RouterScore::kSoftmax: return z_TE.softmax(1);
    case RouterScore::kSigmoid: return at::sigmoid(z_TE);
    case RouterScore::kSqrtSoftplus: return at::softplus(z_TE, 1, 1e9).sqrt();
  }
  fail(Code::kBrokenContract, "select", "unknown score");
}

// The k largest of each row, ties to the lower index.
at::Tensor top(const at::Tensor& x, int64_t k) {
  return std::get<1>(x.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true)).narrow(1, 0, k);
}

at::Tensor in_kept_groups(const at::Tensor& scores_TE, const GroupsConfig& limit, int64_t k) {
  const int64_t T = scores_TE.size(0), E = scores_TE.size(1), each = E / limit.groups;
  const int64_t m = best_of_group(limit, k);
  const at::Tensor by_group = scores_TE.reshape({T, limit.groups, each});
  const at::Tensor best = std::get<0>(by_group.sort(true, 2, true)).narrow(2, 0, m).sum(2);
  const at::Tensor kept = at::zeros({T, limit.groups}, scores_TE.options().dtype(at::kBool))
                              .scatter_(1, top(best, limit.keep), true);
  return by_group.masked_fill(kept.logical_not().unsqueeze(2), -kInf).reshape({T, E});
}

at::Tensor choose(const at::Tensor& z_TE, const at::Tensor& s_TE, const SelectOptions& o) {
  const at::NoGradGuard no_grad;
  at::Tensor by = chosen_first(o) ? z_TE : s_TE;
  if (o.bias_E.defined()) by = by + o.bias_E;
  if (o.limit.groups > 1) by = in_kept_groups(by, o.limit, o.top_k);
  return top(by, o.top_k);
}

at::Tensor weigh(const at::Tensor& z_TE, const at::Tensor& s_TE, const at::Tensor& ids,
                 const SelectOptions& o) {
  at::Tensor w = chosen_first(o) ? z_TE.gather(1, ids).softmax(1) : s_TE.gather(1, ids);
  if (o.weighting == RouterWeighting::kSum && o.top_k > 1) w = w / (w.sum(1, true) + 1e-20);
  if (o.weighting == RouterWeighting::kNorm) {
    const at::Tensor norm = w.norm(o.p_norm, {1}, true);
    w = w / norm.masked_fill(norm.eq(0), 1);
  }
  return o.scale == 1 ? w : w * o.scale;
}

at::Tensor count(const at::Tensor& ids_TK, const at::Tensor& valid_T, int64_t E) {
  const at::Tensor one = valid_T.to(at::kLong).unsqueeze(1).expand_as(ids_TK).contiguous();
  return at::zeros({ids_TK.size(0), E}, ids_TK.options()).scatter_add_(1, ids_TK, one);
}

}  // namespace

RouterOutput select(const at::Tensor& z_TE, const Tokens& tokens, const SelectOptions& o) {
  const int64_t T = z_TE.size(0), E = z_TE.size(1), B = tokens.sequences;
  TROUPE_CHECK(B >= 1 && T % B == 0, "tokens", T, "in sequences", B);
  const at::Tensor valid_T =
      tokens.valid_T.defined()
          ? tokens.valid_T
          : at::ones({T}, z_TE.options().dtype(at::kBool).requires_grad(false));
  const at::Tensor invalid_T1 = valid_T.logical_not().unsqueeze(1);
  const at::Tensor s_TE = scores_of(z_TE, o.score);
  const at::Tensor given = o.given_ids_TK;
  at::Tensor drop = invalid_T1;
  if (given.defined()) drop = drop.logical_or(given.lt(0));
  const at::Tensor ids = given.defined() ? given.to(at::kLong).clamp_min(0) : choose(z_TE, s_TE, o);

  RouterOutput out;
  out.weights_TK = weigh(z_TE, s_TE, ids, o).masked_fill(drop, 0);
  out.ids_TK = ids.masked_fill(drop, -1).to(at::kInt);
  out.counts_E = count(ids, valid_T, E).sum(0);
  if (o.score != RouterScore::kSoftmax) {
    const at::Tensor chosen = s_TE.detach().gather(1, ids).masked_fill(drop, 0).sum();
    out.score_sum = chosen / valid_T.sum().clamp_min(1);
  }
  const at::Tensor r_TE =
      o.score == RouterScore::kSoftmax ? s_TE : s_TE / (s_TE.sum(1, true) + 1e-20);
  const at::Tensor probs = r_TE.masked_fill(invalid_T1, 0);
  out.balance = {
      .counts_BE = count(top(r_TE.detach(), o.top_k), valid_T, E).reshape({B, T / B, E}).sum(1),
      .probs_BE = probs.reshape({B, T / B, E}).sum(1),
      .tokens_B = valid_T.to(at::kLong).reshape({B, T / B}).sum(1),
      .ids_TK = out.ids_TK,
      .lse_squares = at::logsumexp(z_TE, {1}).masked_fill(valid_T.logical_not(), 0).square().sum()};
  return out;
}

RouterOutput route_gated(const Gate& gate, const at::Tensor& x_TD, const Tokens& tokens,
                         const Context& context, SelectOptions options) {
  if (tokens.replay_TK.defined()) options.given_ids_TK = tokens.replay_TK;
  RouterOutput out = select(gate.logits(x_TD, context), tokens, options);
  out.forced = gate.forced();
  const at::Tensor forced = gate.forced_ids(x_TD, options.top_k, context);
  if (!forced.defined()) return out;
  out.ids_TK = forced.masked_fill(out.ids_TK.lt(0), -1);  // R3 uniform: the true weights are kept
  out.counts_E =
      count(forced.to(at::kLong), out.ids_TK.select(1, 0).ge(0), out.counts_E.size(0)).sum(0);
  out.balance.ids_TK = out.ids_TK;
  return out;
}

}  // namespace troupe
