#include "troupe/nn/moe/routers/select.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>
#include <vector>

namespace troupe {
namespace {

// Neighboring tokens of one sequence each. Own tokens that are a part of all may begin and end
// inside a sequence: pieces of so many tokens as divide what both hold.
struct Pieces {
  int64_t count = 1;
  std::vector<int64_t> sequence = {};  // that each is of; empty: piece b is sequence b
};

Pieces pieces_of(const Tokens& tokens, int64_t T) {
  if (tokens.all == 0 || T == 0) return {.count = tokens.all == 0 ? tokens.sequences : 1};
  const int64_t length = tokens.all / tokens.sequences;
  const int64_t piece = std::gcd(std::gcd(length, T), tokens.first);
  Pieces out{.count = T / piece};
  for (int64_t i = 0; i < out.count; ++i) {
    out.sequence.push_back((tokens.first + i * piece) / length);
  }
  return out;
}

// Sums of pieces to sums of sequences.
at::Tensor of_sequences(const at::Tensor& x, const Tokens& tokens, const at::Tensor& sequence) {
  if (!x.defined()) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = tokens.sequences;
  return at::zeros(sizes, x.options().requires_grad(false)).index_add(0, sequence, x);
}

RouteOptions route_options(const at::Tensor& z_TE, const Tokens& tokens, const SelectOptions& o) {
  RouteOptions out{.rule = {.choices = o.top_k,
                            .score = o.score,
                            .weighting = o.weighting,
                            .norm = static_cast<float>(o.p_norm > 0 ? o.p_norm : 1),
                            .scale = static_cast<float>(o.scale)},
                   .sequences = pieces_of(tokens, z_TE.size(0)).count,
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
  const RouteResult r = route(z_TE, route_options(z_TE, tokens, o));
  RouterOutput out{.ids_TK = r.ids_TK,
                   .weights_TK = r.weights_TK,
                   .counts_E = r.counts_E,
                   .balance = {.counts_BE = r.plain_counts_BE,
                               .probs_BE = r.probs_BE,
                               .tokens_B = r.tokens_B,
                               .ids_TK = r.ids_TK,
                               .lse_squares = r.lse_squares}};
  if (tokens.all > 0) {
    Pieces pieces = pieces_of(tokens, z_TE.size(0));
    if (pieces.sequence.empty()) pieces.sequence = {0};  // no tokens: sums of 0
    const at::Tensor sequence = at::tensor(pieces.sequence, at::kLong).to(z_TE.device());
    for (at::Tensor* x : {&out.balance.counts_BE, &out.balance.probs_BE, &out.balance.tokens_B}) {
      *x = of_sequences(*x, tokens, sequence);
    }
  }
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
