#include "troupe/nn/moe/moe_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"
#include "troupe/nn/parts/linear_product.h"
#include "troupe/nn/parts/recompute.h"

namespace troupe {
namespace {

constexpr const char* kMoePlace = "model.moe";

ExpertsShape experts_shape(const MoeConfig& c, const MoeShape& s, const Dispatcher& d) {
  ExpertsShape shape{
      .width = c.latent > 0 ? c.latent : s.width, .experts = c.experts, .layers = s.layers};
  const DispatcherInfo info = d.info();
  if (info.held) shape.held = *info.held;
  shape.slices = info.slices;
  shape.slice = info.slice;
  return shape;
}

at::Tensor flat(const at::Tensor& x, int64_t width) {
  TROUPE_CHECK(1 <= x.dim() && x.dim() <= 3 && x.size(-1) == width,
               "moe: x must be [D], [T, D] or [B, S, D] with D", width, "; it is", x.sizes());
  // E16: strides change no bit. What has its form already stays itself, not a view of itself.
  return (x.dim() == 2 ? x : x.reshape({-1, width})).contiguous();
}

}  // namespace

RouterConfig router_of(const MoeConfig& c, const MoeShape& s) {
  return s.moe_index < c.table_layers ? RouterConfig(c.table) : c.router;
}

void validate(const MoeConfig& c, const MoeShape& s) {
  validate(RouterShape{s.width, c.experts, c.top_k});
  validate(c.ffn, c.top_k);
  if (c.latent < 0 || c.shared.experts < 0 || c.shared.hidden < 0) {
    fail(Code::kBadValue, kMoePlace, "latent is", c.latent, ", shared.experts is", c.shared.experts,
         ", shared.hidden is", c.shared.hidden, "; none may be below 0");
  }
  if (c.table_layers < 0 || c.table_layers > s.moe_layers) {
    fail(Code::kBadValue, kMoePlace, "table_layers is", c.table_layers, "of", s.moe_layers,
         "MoE layers");
  }
  if (c.return_bias && !c.output_bias) {
    fail(Code::kBadValue, kMoePlace, "return_bias needs output_bias");
  }
}

MoeSizes sizes_of(const MoeConfig& c, const MoeShape& s) {
  const RouterConfig router = router_of(c, s);
  const GateConfig* const gate = gate_of(router);
  return {.width = s.width,
          .hidden = c.ffn.hidden,
          .experts = c.experts,
          .top_k = c.top_k,
          .gated = c.ffn.form.gated,
          .shared_hidden = c.shared.width_for(c.ffn.hidden),
          .latent = c.latent,
          .shared_gate = c.shared.experts > 0 && c.shared.form == SharedForm::kGate,
          .expert_bias = c.ffn.bias,
          .router_gate = gate != nullptr,
          .router_bias = gate != nullptr && gate->bias,
          .output_bias = c.output_bias};
}

MoeLayer::MoeLayer(const MoeConfig& config, const MoeShape& shape,
                   std::unique_ptr<Dispatcher> dispatcher, std::unique_ptr<Router> router,
                   const TensorParts& parts)
    : config_((validate(config, shape), config)),
      shape_(shape),
      router_(router ? std::move(router)
                     : build(router_of(config, shape),
                             {shape.width, config.experts, config.top_k, shape.vocab})),
      dispatcher_(dispatcher ? std::move(dispatcher) : local_dispatcher(config.experts)),
      experts_(config.ffn, experts_shape(config, shape, *dispatcher_)),
      fractions_(config.experts) {
  validate(config.capacity, *router_);
  if (config.shared.experts > 0) {
    shared_.emplace(config.shared, config.ffn, shape.width, shape.layers, parts);
  }
  if (config.latent > 0) {
    latent_in_ = Param::of({config.latent, shape.width}, config.ffn.init.up());
    latent_out_ = Param::of({shape.width, config.latent}, config.ffn.init.down(shape.layers));
  }
  if (config.output_bias) {
    bias_ = Param::of({shape.width}, {.kind = Init::kZero}, Group::kNoDecay);
  }
}

MoeOutput MoeLayer::forward(const at::Tensor& x, const Tokens& tokens, const Context& context) {
  const at::Tensor x_TD = flat(x, shape_.width);
  const bool twice = config_.ffn.recompute == Recompute::kLayer;
  const RouterOutput routed = router_->forward(x_TD, tokens, context);
  Kept kept = keep_within(config_.capacity, routed, tokens, context, experts_.row_alignment());
  // Padded capacities are of each rank's own tokens: ranks have to tell each other.
  if (!config_.capacity.pad) kept.routed.most = context.most_tokens;

  // Experts use the router's x, so that gradients are added as router + (experts + shared), also
  // where the latter two come from a recomputed graph.
  const at::Tensor& seen_TD = routed.x_TD.defined() ? routed.x_TD : x_TD;
  const Caller caller{tokens.all > 0 ? tokens.all : x_TD.size(0), context};
  const Mixture mixed =
      twice ? mixture_twice(seen_TD, kept.routed, caller) : mixture(seen_TD, kept.routed, caller);

  MoeOutput out{
      .y = mixed.y_TD,
      .bias = {},
      .losses = moe_losses(router_->balance(), routed.balance, loss_sizes(), context, fractions_),
      .stats = {routed.counts_E, kept.dropped, routed.score_sum, routed.forced, mixed.saturated},
      .ids_TK = routed.ids_TK,
      .logits_TE = routed.logits_TE};
  if (bias_ && config_.return_bias) out.bias = bias_->value;
  if (bias_ && !config_.return_bias) out.y = out.y + bias_->value;
  out.y = out.y.reshape(x.sizes());
  return out;
}

MoeLayer::Mixture MoeLayer::mixture(const at::Tensor& x_TD, const Routed& routed,
                                    const Caller& caller) {
  const auto& [all, context] = caller;
  const auto [sent_TD, read_TD] = shared_ ? forked(x_TD) : std::array{x_TD, at::Tensor()};
  const at::Tensor rows_TD = latent_in_ ? linear_product(sent_TD, latent_in_->value) : sent_TD;
  InFlight flying = dispatcher_->begin(rows_TD, routed);
  // SH4: the shared expert is computed while rows travel, and in backward while their gradients do.
  const bool overlap = shared_ && config_.shared.overlap;
  std::optional<BackwardOrder> before_shared;
  if (overlap) before_shared = take_backward_order();
  at::Tensor shared_TD = overlap ? shared_->forward(read_TD, all, context) : at::Tensor();
  const DispatchedRows rows = std::move(flying).finish();
  if (rows.lost.defined()) lost_ = lost_.defined() ? lost_ + rows.lost : rows.lost;
  const ExpertsOutput computed = experts_.forward(rows, context);
  at::Tensor y_TD = rows.combine(computed.y_SD, before_shared);
  if (latent_out_) y_TD = linear_product(y_TD, latent_out_->value);
  if (shared_ && !overlap) shared_TD = shared_->forward(read_TD, all, context);
  if (shared_) y_TD = shared_->add(y_TD, shared_TD, config_.top_k);
  return {y_TD, computed.saturated};
}

// Recompute::kLayer: keeps x and the choices, and runs the rest again in backward.
MoeLayer::Mixture MoeLayer::mixture_twice(const at::Tensor& x_TD, const Routed& routed,
                                          const Caller& caller) {
  TensorList leaves;
  for_each_param(*this, "", [&](const std::string&, Param& p) {
    if (p.trainable()) leaves.push_back(p.value);
  });
  const auto run = [this, routed, caller](const TensorList& in) {
    Routed again = routed;
    again.scores_TK = in[1];
    return mixture(in[0], again, caller).y_TD;
  };
  return {recomputed({x_TD, routed.scores_TK}, leaves, run), {}};
}

LossSizes MoeLayer::loss_sizes() const {
  const GroupsConfig limit = router_->limit();
  return {.top_k = config_.top_k,
          .moe_layers = shape_.moe_layers,
          .groups = limit.groups,
          .keep_groups = limit.keep,
          .group_ranks = shape_.group_ranks};
}

at::Tensor MoeLayer::lost_rows() {
  if (config_.capacity.budget == 0) return {};
  const at::Tensor lost = std::exchange(lost_, at::Tensor());
  return lost.defined() ? lost : at::zeros({}, at::kLong);
}

void MoeLayer::forget_step(const SumOver& all_sum) {
  router_->end_of_step(all_sum, /*skipped=*/true);
  fractions_.forget();
  lost_ = at::Tensor();
}

void MoeLayer::for_each_of_step(const VisitTensor& f) {
  router_->for_each_of_step(f);
  fractions_.for_each_of_step(f);
  f(lost_);
}

void MoeLayer::place(const ExpertPlacement& placement) {
  dispatcher_->place(placement);
  const std::vector<int64_t> held = dispatcher_->info().held.value_or(std::vector<int64_t>());
  for_each_param(experts_, "", [&](const std::string&, Param& p) {
    if (p.per_expert) p.experts = held;
  });
}

void MoeLayer::end_of_step(const SumOver& all_sum, bool skipped) {
  router_->end_of_step(all_sum, skipped);
  fractions_.end_of_step();
}

}  // namespace troupe
