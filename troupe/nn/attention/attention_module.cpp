#include "troupe/nn/attention/attention_module.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/core/check.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/attention/delta_net.h"
#include "troupe/nn/attention/kv_cache.h"
#include "troupe/nn/attention/mla.h"
#include "troupe/nn/parts/dropout.h"
#include "troupe/nn/parts/linear_product.h"
#include "troupe/ops/attention/attention.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

Init up_init(const ModelConfig& c) {
  return {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
}

Linear projection(const ModelConfig& c, int64_t rows, DropPlace place) {
  return Linear({rows, c.width, up_init(c), c.qkv_bias.value_or(c.bias),
                 c.lora.of(LoraTarget::kAttention), c.lora.bits_of(LoraTarget::kAttention), place});
}

std::optional<NormModule> qk_norm(const ModelConfig& c, int64_t heads, int64_t dim) {
  if (c.qk_norm == QkNorm::kNone) return std::nullopt;
  NormConfig config = c.norm;
  if (config.kind == NormForm::kLayer) config.bias = false;
  return NormModule(config, c.qk_norm == QkNorm::kWhole ? heads * dim : dim);
}

// w [n, H, n] of own heads, by the key of each head among all.
at::Tensor dropped_weights(const at::Tensor& w, const DropoutOfHeads& drop, const Context& here) {
  const int64_t n = w.size(0), H = w.size(1);
  if (H == drop.heads.all) {
    return dropout(w.reshape({n, H * n}), drop.p, DropPlace::kWeights, here).view({n, H, n});
  }
  const at::Tensor all = at::ones({n, drop.heads.all * n}, w.options().requires_grad(false));
  const at::Tensor factor = dropout(all, drop.p, DropPlace::kWeights, here);
  return w * factor.view({n, drop.heads.all, n}).narrow(1, drop.heads.first, H);
}

int64_t turned_dims(const ModelConfig& c, const LayerConfig& l) {
  return static_cast<int64_t>(static_cast<double>(l.head_dim) * c.rope.fraction);
}

}  // namespace

Attention::Attention(const ModelConfig& c, const LayerConfig& l, const TensorParts& parts)
    : layer_(l),
      sharding_(parts.sharding),
      keys_(parts.keys),
      head_exchange_(parts.head_exchange),
      ring_(parts.ring),
      heads_{l.heads, parts.sharding.rank() * parts.heads(l.heads)},
      qk_norm_(c.qk_norm),
      clip_(c.clip_qkv),
      dropout_(c.attn_dropout),
      q_(projection(c, l.heads * l.head_dim, DropPlace::kQuery)),
      k_(projection(c, l.kv_heads * l.head_dim, DropPlace::kKey)),
      v_(projection(c, l.kv_heads * l.head_dim, DropPlace::kValue)),
      out_({c.width, l.heads * l.head_dim, residual_init(c), c.out_bias.value_or(c.bias),
            c.lora.of(LoraTarget::kAttention), c.lora.bits_of(LoraTarget::kAttention),
            DropPlace::kOut}),
      q_norm_(qk_norm(c, l.heads, l.head_dim)),
      k_norm_(qk_norm(c, l.kv_heads, l.head_dim)),
      max_positions_(c.max_positions) {
  if (c.attn_gate) {  // without adapters (nn/config/config.cpp)
    gate_.emplace(
        LinearShape{l.heads * l.head_dim, c.width, up_init(c), c.qkv_bias.value_or(c.bias)});
  }
  if (c.sinks) sinks_ = Param::of({l.heads}, {.kind = Init::kZero}, Group::kNoDecay);
  if (c.positions == PositionForm::kRope) rope_.emplace(c.rope, turned_dims(c, l));
  require_whole(c.lora.bits_of(LoraTarget::kAttention), sharding_.ranks(), "attention");
  if (sharding_.alone()) return;
  layer_.heads = parts.heads(l.heads);
  layer_.kv_heads = parts.key_heads(l.kv_heads);
  parts.cut(q_.weight, 0);
  parts.cut(q_.lora, 0);
  if (q_.bias) parts.cut(*q_.bias, 0);
  if (gate_) {
    parts.cut(gate_->weight, 0);
    if (gate_->bias) parts.cut(*gate_->bias, 0);
  }
  for (Linear* part : {&k_, &v_}) {
    parts.cut_key_heads(part->weight, l.kv_heads);
    parts.cut_key_heads(part->lora, l.kv_heads);
    if (part->bias) parts.cut_key_heads(*part->bias, l.kv_heads);
  }
  parts.cut(out_.weight, 1);
  parts.cut(out_.lora, 1);
  if (sinks_) parts.cut(*sinks_, 0);
  if (qk_norm_ != QkNorm::kWhole) return;
  parts.cut(q_norm_->weight, 0);
  parts.cut_key_heads(k_norm_->weight, l.kv_heads);
}

at::Tensor Attention::forward(const at::Tensor& x_tD, const AttentionCall& call) {
  const GatheredTokens x = sharding_.all_gather(x_tD, call.rows * call.tokens);
  JoinedOptions joined{.weights_order = x.beside, .context = call.context};
  std::optional<Fp8Linear> out_fp8;
  if (const auto& fp8 = fp8_.options()) {
    joined.fp8 = {*fp8, Fp8Weights::kIn};
    out_fp8 = {*fp8, Fp8Weights::kOut};
  }
  const at::Tensor qkv = joined_linear(x.x_T, {&q_, &k_, &v_}, joined);
  const bool split_norm = qk_norm_ == QkNorm::kWhole && !sharding_.alone();
  const bool plain = !clip_ && call.cache == nullptr && call.slice == nullptr && !split_norm &&
                     qk_norm_ != QkNorm::kHeadTurned && !(dropout_ > 0 && call.context.training);
  at::Tensor o = (plain ? core(qkv, call) : apart(qkv, call)).flatten(1);
  if (gate_) o = o * at::sigmoid(joined_linear(x.x_T, {&*gate_}));
  return out_of_heads(out_, {sharding_, call.context}, o, out_fp8);
}

void Attention::compute_in_fp8(const Fp8Options& fp8) {
  TROUPE_CHECK(!gate_, "fp8: the projections of attention with an output gate stay as they are");
  for (const Linear* part : {&q_, &k_, &v_, &out_}) {
    TROUPE_CHECK(!part->weight.low_bit, "fp8: projections in few bits stay in bf16");
    const int64_t rows = part->weight.size[0], columns = part->weight.size[1];
    TROUPE_CHECK(rows % kFp8Tile == 0 && columns % kFp8Tile == 0,
                 "fp8: this rank would have a projection of", rows, "x", columns,
                 "which cuts groups of", kFp8Tile,
                 "that share a scale: use fewer ranks of parallel.tensor");
  }
  fp8_.use(fp8, /*products=*/2);
}

void Attention::keep_rounded_weights(bool keep) {
  fp8_.keep_weights(keep);
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
                        .window = layer_.window};
  set_segments(call, form);
  if (sinks_) form.sinks_H = sinks_->value;
  return packed_attention(qkv_TN, packed, form);
}

at::Tensor Attention::prepared(const at::Tensor& x_Tn, const std::optional<NormModule>& norm,
                               const AttentionCall& call) {
  at::Tensor x = x_Tn;
  if (norm && qk_norm_ == QkNorm::kWhole) {
    x = sharding_.alone() ? norm->forward(x) : whole_norm(x, *norm);
  }
  x = x.unflatten(1, {-1, layer_.head_dim});
  if (norm && qk_norm_ == QkNorm::kHead) x = norm->forward(x);
  if (clip_) x = at::clamp(x, -*clip_, *clip_);
  x = turned(x, call);
  return norm && qk_norm_ == QkNorm::kHeadTurned ? norm->forward(x) : x;
}

at::Tensor Attention::turned(const at::Tensor& x, const AttentionCall& call) {
  if (!rope_) return x;
  const RotaryTables& tables = rope_->tables(positions_needed(call, max_positions_), x);
  const std::optional<at::Tensor> position = positions_of(call, x);
  if (position) return rotary(x, tables, position, rope_->options());
  return rotary(x.unflatten(0, {call.rows, call.tokens}), tables, {}, rope_->options())
      .flatten(0, 1);
}

// Neighbors that have the same key head count its squares once between them.
at::Tensor Attention::whole_norm(const at::Tensor& x_Tn, const NormModule& norm) const {
  const double share =
      1.0 / static_cast<double>(norm.weight.tensor_repeat(1) * norm.weight.global[0]);
  const auto mean = [&](const at::Tensor& x) {
    return sharding_.all_reduce(x.sum(1, true) * share);
  };
  at::Tensor x = x_Tn.to(wide_type(x_Tn));
  if (norm.options.kind == to_text(NormForm::kLayer)) x = x - mean(x);
  x = x * at::rsqrt(mean(x * x) + norm.options.eps);
  if (norm.options.kind == to_text(NormForm::kRmsRounded)) x = x.to(x_Tn.scalar_type());
  return (x * norm.weight.value).to(x_Tn.scalar_type());
}

at::Tensor Attention::apart(const at::Tensor& qkv_TN, const AttentionCall& call) {
  const int64_t d = layer_.head_dim, n = layer_.heads * d, kv = layer_.kv_heads * d;
  const auto parts = qkv_TN.split_with_sizes({n, kv, kv}, 1);
  const at::Tensor q = prepared(parts[0], q_norm_, call);
  at::Tensor k = prepared(parts[1], k_norm_, call), v = parts[2].unflatten(1, {-1, d});
  if (clip_) v = at::clamp(v, -*clip_, *clip_);
  AttentionForm form = {.scale = 1 / std::sqrt(static_cast<double>(d)), .window = layer_.window};
  if (sinks_) form.sinks_H = sinks_->value;
  if (call.slice != nullptr) {
    require_no_dropout(dropout_, call);
    if (head_exchange_) return over_heads({q, k, v}, form, *call.slice);
    if (ring_) return over_ring({q, k, v}, form, *call.slice);
    return over_keys({q, k, v}, form, *call.slice);
  }
  set_segments(call, form);
  if (call.cache != nullptr) {
    call.cache->extend(layer_.index, k.unflatten(0, {call.rows, call.tokens}),
                       v.unflatten(0, {call.rows, call.tokens}));
    return attention_over_cache(q, call, form, [&](int64_t row) {
      return call.cache->row(layer_.index, row, call.tokens);
    });
  }
  if (dropout_ > 0 && call.context.training) {
    return attention_with_dropout({q, k, v}, form, {dropout_, heads_}, call.context);
  }
  return attention(q, k, v, form);
}

at::Tensor Attention::over_keys(const CoreInputs& in, const AttentionForm& given,
                                const ContextSlice& slice) {
  const auto& [q, k, v] = in;
  AttentionForm form = given;
  const auto rows = slice.keys(form.window);
  form.segments = rows->segments;
  const at::Tensor kv = keys_.fetched(at::cat({k.flatten(1), v.flatten(1)}, 1), rows);
  return joined_attention(q, kv, layer_.kv_heads, form);
}

at::Tensor Attention::over_heads(const CoreInputs& in, AttentionForm form,
                                 const ContextSlice& slice) {
  const auto& [q, k, v] = in;
  const int64_t T = q.size(0), R = head_exchange_->ranks(), d = layer_.head_dim;
  const int64_t H = layer_.heads / R, G = layer_.kv_heads / R;
  TROUPE_CHECK(layer_.kv_heads % R == 0, layer_.kv_heads, "key heads cannot be dealt to", R,
               "ranks");
  const at::Tensor order = slice.order(TokenSharding());
  const at::Tensor own =
      at::cat({q.reshape({T, R, H * d}), k.reshape({T, R, G * d}), v.reshape({T, R, G * d})}, 2);
  const auto parts =
      head_exchange_->to_heads(own, order).split_with_sizes({H * d, G * d, G * d}, 1);
  form.lengths = slice.lengths();
  if (form.sinks_H) form.sinks_H = form.sinks_H->narrow(0, head_exchange_->rank() * H, H);
  const at::Tensor o = attention(parts[0].unflatten(1, {H, d}), parts[1].unflatten(1, {G, d}),
                                 parts[2].unflatten(1, {G, d}), form);
  return head_exchange_->to_tokens(o.flatten(1), order).view({T, R * H, d});
}

at::Tensor Attention::over_ring(const CoreInputs& in, const AttentionForm& form,
                                const ContextSlice& slice) {
  const auto& [q, k, v] = in;
  return ring_->attention(q, at::cat({k.flatten(1), v.flatten(1)}, 1), layer_.kv_heads, form,
                          slice.ring(form.window));
}

at::Tensor out_of_heads(const Linear& out, const HeadsOf& of, const at::Tensor& o_TN,
                        const std::optional<Fp8Linear>& fp8) {
  const auto& [sharding, context] = of;
  const auto in_fp8 = [&](bool biased) {
    return joined_linear(o_TN, {&out}, {.fp8 = fp8, .biased = biased, .context = of.context});
  };
  if (sharding.alone()) return fp8 ? in_fp8(true) : out.forward(o_TN, context);
  const auto part = [&] {
    const at::Tensor y = linear_product(o_TN, out.weight.value);
    return out.lora ? y + out.lora->delta(o_TN, context) : y;
  };
  const at::Tensor y_tD = sharding.reduce_scatter(fp8 ? in_fp8(false) : part());
  return out.bias ? y_tD + out.bias->value : y_tD;  // once, behind the sum
}

at::Tensor attention_over_cache(
    const at::Tensor& q_THd, const AttentionCall& call, AttentionForm form,
    const std::function<std::pair<at::Tensor, at::Tensor>(int64_t row)>& keys_values) {
  form.lengths = {call.tokens};
  std::vector<at::Tensor> out;
  for (int64_t row = 0; row < call.rows; ++row) {
    form.past = call.cache->past(row);
    const auto [k, v] = keys_values(row);
    out.push_back(attention(q_THd.narrow(0, row * call.tokens, call.tokens), k, v, form));
  }
  return out.size() == 1 ? out[0] : at::cat(out);
}

Init residual_init(const ModelConfig& c) {
  Init init = up_init(c);
  if (c.scaled_init) init.std /= std::sqrt(2.0 * static_cast<double>(c.layers));
  return init;
}

void set_segments(const AttentionCall& call, AttentionForm& form) {
  if (!call.packing.lengths.empty()) {
    form.lengths = call.packing.lengths;
  } else {
    form.lengths.assign(static_cast<size_t>(call.rows), call.tokens);
  }
}

void require_no_dropout(double p, const AttentionCall& call) {
  TROUPE_CHECK(p == 0 || !call.context.training,
               "attention dropout needs whole rows: rows are cut over", call.slice->ranks(),
               "ranks");
}

int64_t positions_needed(const AttentionCall& call, int64_t max_positions) {
  if (call.cache != nullptr) return call.cache->capacity();
  if (call.slice != nullptr) return call.slice->row_tokens();
  const bool given = call.packing.positions_BS.defined() && call.packing.lengths.empty();
  return given ? std::max(max_positions, call.tokens) : call.tokens;
}

std::optional<at::Tensor> positions_of(const AttentionCall& call, const at::Tensor& like) {
  if (call.packing.positions_BS.defined()) return call.packing.positions_BS.reshape({-1});
  if (call.cache == nullptr) return std::nullopt;
  return call.cache->positions(call.tokens).reshape({-1}).to(like.device());
}

at::Tensor attention_with_dropout(const CoreInputs& in, const AttentionForm& form,
                                  const DropoutOfHeads& drop, const Context& context) {
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
    const at::Tensor kept = dropped_weights(w, drop, here);
    out.push_back(at::matmul(kept.transpose(0, 1), heads(in.v_TGe, from, n)).transpose(0, 1));
    from += n;
  }
  return at::cat(out);
}

std::unique_ptr<AttentionModule> build_attention(const ModelConfig& c, const LayerConfig& layer,
                                                 const TensorParts& parts) {
  if (layer.delta) return std::make_unique<DeltaNet>(c, parts, layer.index);
  if (c.mla) return std::make_unique<Mla>(c, layer, parts);
  return std::make_unique<Attention>(c, layer, parts);
}

}  // namespace troupe
