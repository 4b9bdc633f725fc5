#include "troupe/nn/mla.h"

#include <ATen/ops/cat.h>

#include <cmath>

#include "troupe/nn/kv_cache.h"
#include "troupe/ops/attention/attention.h"

namespace troupe {
namespace {

Linear product(const ModelConfig& c, int64_t out, int64_t in) {
  return Linear({out, in, {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)}, false});
}

NormConfig latent_norm(const ModelConfig& c) {
  const bool rounded = c.norm.kind == NormForm::kRmsRounded;
  return {rounded ? NormForm::kRmsRounded : NormForm::kRms, c.mla->eps, false};
}

}  // namespace

Mla::Mla(const ModelConfig& c, const LayerConfig& l)
    : config_(*c.mla),
      heads_(l.heads),
      index_(l.index),
      scale_(rope_softmax_factor(c.rope) / std::sqrt(static_cast<double>(l.head_dim))),
      dropout_(c.attn_dropout),
      kv_down_(product(c, config_.kv_rank + config_.rope_dim, c.width)),
      kv_up_(product(c, heads_ * (config_.nope_dim + config_.value_dim), config_.kv_rank)),
      out_({c.width, heads_ * config_.value_dim, residual_init(c), false}),
      kv_norm_(latent_norm(c), config_.kv_rank),
      rope_(c.rope, config_.rope_dim),
      max_positions_(c.max_positions) {
  if (config_.q_rank == 0) {
    q_ = product(c, heads_ * l.head_dim, c.width);
    return;
  }
  q_down_ = product(c, config_.q_rank, c.width);
  q_up_ = product(c, heads_ * l.head_dim, config_.q_rank);
  q_norm_.emplace(latent_norm(c), config_.q_rank);
}

at::Tensor Mla::queries(const at::Tensor& x_TD) const {
  const at::Tensor q =
      q_ ? q_->forward(x_TD) : q_up_->forward(q_norm_->forward(q_down_->forward(x_TD)));
  return q.unflatten(1, {heads_, -1});
}

at::Tensor Mla::turned(const at::Tensor& x, int64_t first, const AttentionCall& call) {
  const RotaryTables& tables = rope_.tables(positions_needed(call, max_positions_), x);
  const std::optional<at::Tensor> position = positions_of(call, x);
  if (position) return rotary(x, tables, position, rope_.options(first));
  return rotary(x.unflatten(0, {call.rows, call.tokens}), tables, {}, rope_.options(first))
      .flatten(0, 1);
}

at::Tensor Mla::forward(const at::Tensor& x_TD, const AttentionCall& call) {
  const auto& [q_rank, kv_rank, nope, rope, value, eps] = config_;
  const at::Tensor q = turned(queries(x_TD), nope, call);
  const auto down = kv_down_.forward(x_TD).split_with_sizes({kv_rank, rope}, 1);
  at::Tensor latent = kv_norm_.forward(down[0]);
  at::Tensor shared = turned(down[1].unsqueeze(1), 0, call);  // [T, 1, rope]
  AttentionForm form = {.scale = scale_, .lengths = segment_lengths(call)};
  if (call.cache != nullptr) {
    form.past = call.cache->length();
    const auto [c, r] = call.cache->extend(index_, latent.unflatten(0, {call.rows, call.tokens}),
                                           shared.unflatten(0, {call.rows, call.tokens}));
    latent = c.flatten(0, 1);
    shared = r.flatten(0, 1);
  }
  const auto up =
      kv_up_.forward(latent).unflatten(1, {heads_, -1}).split_with_sizes({nope, value}, 2);
  const at::Tensor k = at::cat({up[0], shared.expand({-1, heads_, rope})}, 2);
  const bool drops = dropout_ > 0 && call.context.training;
  const at::Tensor o = drops ? attention_with_dropout({q, k, up[1]}, form, dropout_, call.context)
                             : attention(q, k, up[1], form);
  return out_.forward(o.flatten(1));
}

}  // namespace troupe
