#include "troupe/nn/attention_module.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/core/check.h"
#include "troupe/nn/dropout.h"
#include "troupe/nn/kv_cache.h"
#include "troupe/nn/mla.h"
#include "troupe/ops/attention/attention.h"

namespace troupe {
namespace {

Init up_init(const ModelConfig& c) {
  return {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
}

Linear projection(const ModelConfig& c, int64_t rows) {
  return Linear({rows, c.width, up_init(c), c.qkv_bias.value_or(c.bias)});
}

std::optional<Norm> qk_norm(const ModelConfig& c, int64_t heads, int64_t dim) {
  if (c.qk_norm == QkNorm::kNone) return std::nullopt;
  NormConfig config = c.norm;
  if (config.kind == NormForm::kLayer) config.bias = false;
  return Norm(config, c.qk_norm == QkNorm::kHead ? dim : heads * dim);
}

int64_t turned_dims(const ModelConfig& c, const LayerConfig& l) {
  return static_cast<int64_t>(static_cast<double>(l.head_dim) * c.rope.fraction);
}

}  // namespace

Attention::Attention(const ModelConfig& c, const LayerConfig& l)
    : layer_(l),
      qk_norm_(c.qk_norm),
      clip_(c.clip_qkv),
      dropout_(c.attn_dropout),
      q_(projection(c, l.heads * l.head_dim)),
      k_(projection(c, l.kv_heads * l.head_dim)),
      v_(projection(c, l.kv_heads * l.head_dim)),
      out_({c.width, l.heads * l.head_dim, residual_init(c), c.out_bias.value_or(c.bias)}),
      q_norm_(qk_norm(c, l.heads, l.head_dim)),
      k_norm_(qk_norm(c, l.kv_heads, l.head_dim)),
      max_positions_(c.max_positions) {
  if (c.sinks) sinks_ = Param::of({l.heads}, {.kind = Init::kZero}, Group::kNoDecay);
  if (c.positions == PositionForm::kRope) rope_.emplace(c.rope, turned_dims(c, l));
}

at::Tensor Attention::forward(const at::Tensor& x_TD, const AttentionCall& call) {
  const at::Tensor qkv = joined_linear(x_TD, {&q_, &k_, &v_});
  const bool plain = !clip_ && call.cache == nullptr && !(dropout_ > 0 && call.context.training);
  const at::Tensor o = plain ? core(qkv, call) : apart(qkv, call);
  return out_.forward(o.flatten(1));
}

// Nothing but norms stands between the product and the rotation.
at::Tensor Attention::core(const at::Tensor& qkv_TN, const AttentionCall& call) {
  PackedForm packed{.heads = {layer_.heads, layer_.kv_heads, layer_.head_dim}};
  if (q_norm_) {
    packed.norm = {q_norm_->weight.value, k_norm_->weight.value, q_norm_->options};
  }
  if (rope_) {
    packed.rotary = {rope_->tables(positions_needed(call, max_positions_), qkv_TN),
                     positions_of(call, qkv_TN), rope_->options()};
  }
  AttentionForm form = {.scale = 1 / std::sqrt(static_cast<double>(layer_.head_dim)),
                        .window = layer_.window,
                        .lengths = segment_lengths(call)};
  if (sinks_) form.sinks_H = sinks_->value;
  return packed_attention(qkv_TN, packed, form);
}

at::Tensor Attention::prepared(const at::Tensor& x_Tn, const std::optional<Norm>& norm,
                               const AttentionCall& call) {
  at::Tensor x = x_Tn;
  if (norm && qk_norm_ == QkNorm::kWhole) x = norm->forward(x);
  x = x.unflatten(1, {-1, layer_.head_dim});
  if (norm && qk_norm_ == QkNorm::kHead) x = norm->forward(x);
  if (clip_) x = at::clamp(x, -*clip_, *clip_);
  if (!rope_) return x;
  const RotaryTables& tables = rope_->tables(positions_needed(call, max_positions_), x);
  const std::optional<at::Tensor> position = positions_of(call, x);
  if (position) return rotary(x, tables, position, rope_->options());
  return rotary(x.unflatten(0, {call.rows, call.tokens}), tables, {}, rope_->options())
      .flatten(0, 1);
}

at::Tensor Attention::apart(const at::Tensor& qkv_TN, const AttentionCall& call) {
  const int64_t d = layer_.head_dim, n = layer_.heads * d, kv = layer_.kv_heads * d;
  const auto parts = qkv_TN.split_with_sizes({n, kv, kv}, 1);
  const at::Tensor q = prepared(parts[0], q_norm_, call);
  at::Tensor k = prepared(parts[1], k_norm_, call), v = parts[2].unflatten(1, {-1, d});
  if (clip_) v = at::clamp(v, -*clip_, *clip_);
  AttentionForm form = {.scale = 1 / std::sqrt(static_cast<double>(d)),
                        .window = layer_.window,
                        .lengths = segment_lengths(call)};
  if (sinks_) form.sinks_H = sinks_->value;
  if (call.cache != nullptr) {
    form.past = call.cache->length();
    const auto [keys, values] =
        call.cache->extend(layer_.index, k.unflatten(0, {call.rows, call.tokens}),
                           v.unflatten(0, {call.rows, call.tokens}));
    k = keys.flatten(0, 1);
    v = values.flatten(0, 1);
  }
  if (dropout_ > 0 && call.context.training) {
    return attention_with_dropout({q, k, v}, form, dropout_, call.context);
  }
  return attention(q, k, v, form);
}

Init residual_init(const ModelConfig& c) {
  Init init = up_init(c);
  if (c.scaled_init) init.std /= std::sqrt(2.0 * static_cast<double>(c.layers));
  return init;
}

std::vector<int64_t> segment_lengths(const AttentionCall& call) {
  if (!call.packing.lengths.empty()) return call.packing.lengths;
  return std::vector<int64_t>(call.rows, call.tokens);
}

int64_t positions_needed(const AttentionCall& call, int64_t max_positions) {
  const int64_t past = call.cache != nullptr ? call.cache->length() : 0;
  const bool given = call.packing.positions_BS.defined() && call.packing.lengths.empty();
  return given ? std::max(max_positions, past + call.tokens) : past + call.tokens;
}

std::optional<at::Tensor> positions_of(const AttentionCall& call, const at::Tensor& like) {
  if (call.packing.positions_BS.defined()) return call.packing.positions_BS.reshape({-1});
  if (call.cache == nullptr || call.cache->length() == 0) return std::nullopt;
  const int64_t past = call.cache->length();
  return at::arange(past, past + call.tokens, like.options().dtype(at::kLong).requires_grad(false))
      .unsqueeze(0)
      .expand({call.rows, call.tokens})
      .reshape({-1});
}

at::Tensor attention_with_dropout(const CoreInputs& in, const AttentionForm& form, double p,
                                  const Context& context) {
  const int64_t H = in.q_THd.size(1), G = in.k_TGd.size(1);
  const auto heads = [&](const at::Tensor& x, int64_t from, int64_t n) {  // [H, n, d]
    return x.narrow(0, from, n).transpose(0, 1).repeat_interleave(H / x.size(1), 0);
  };
  TROUPE_CHECK(form.past == 0 && H % G == 0, "attention dropout is for training");
  std::vector<at::Tensor> out;
  Context here = context;
  int64_t from = 0;
  for (const int64_t n : form.lengths) {
    const at::Tensor i = at::arange(n, in.q_THd.device()).unsqueeze(1), j = i.t();
    at::Tensor hidden = j > i;
    if (form.window > 0) hidden = hidden.logical_or(j <= i - form.window);
    at::Tensor s =
        at::matmul(heads(in.q_THd, from, n), heads(in.k_TGd, from, n).transpose(1, 2)) * form.scale;
    s = s.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    if (form.sinks_H) s = at::cat({s, form.sinks_H->view({H, 1, 1}).expand({H, n, 1})}, 2);
    const at::Tensor w = at::softmax(s, 2).narrow(2, 0, n).transpose(0, 1);  // [n, H, n]
    here.first_token = context.first_token + from;
    const at::Tensor kept =
        dropout(w.reshape({n, H * n}), p, DropPlace::kWeights, here).view({n, H, n});
    out.push_back(at::matmul(kept.transpose(0, 1), heads(in.v_TGe, from, n)).transpose(0, 1));
    from += n;
  }
  return at::cat(out);
}

std::unique_ptr<AttentionModule> build_attention(const ModelConfig& c, const LayerConfig& layer) {
  if (c.mla) return std::make_unique<Mla>(c, layer);
  return std::make_unique<Attention>(c, layer);
}

}  // namespace troupe
