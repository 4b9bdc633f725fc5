#include "troupe/nn/attention/mla.h"

#include <ATen/ops/cat.h>

#include <cmath>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/attention/kv_cache.h"
#include "troupe/ops/attention/attention.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"

namespace troupe {
namespace {

LinearShape product(const ModelConfig& c, int64_t out, int64_t in, DropPlace place) {
  return {out,
          in,
          {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)},
          false,
          c.lora.of(LoraTarget::kAttention),
          c.lora.bits_of(LoraTarget::kAttention),
          place};
}

bool whole_groups(int64_t out, int64_t in) {
  return out % kFp8Tile == 0 && in % kFp8Tile == 0;
}

NormConfig latent_norm(const ModelConfig& c) {
  const bool rounded = c.norm.kind == NormForm::kRmsRounded;
  return {rounded ? NormForm::kRmsRounded : NormForm::kRms, c.mla->eps, false};
}

}  // namespace

bool MlaProduct::fits_fp8() const {
  return whole_groups(out, in);
}

MlaProduct MlaProduct::of_rank(int64_t ranks) const {
  return {name, cut == kRows ? out / ranks : out, cut == kColumns ? in / ranks : in, cut};
}

std::vector<MlaProduct> mla_products(const ModelConfig& c, const LayerConfig& l) {
  const MlaConfig& m = *c.mla;
  const int64_t q = l.heads * l.head_dim;
  std::vector<MlaProduct> out;
  if (m.q_rank == 0) {
    out.push_back({"q", q, c.width, MlaProduct::kRows});
  } else {
    out.push_back({"q_down", m.q_rank, c.width, MlaProduct::kWhole});
    out.push_back({"q_up", q, m.q_rank, MlaProduct::kRows});
  }
  out.push_back({"kv_down", m.kv_rank + m.rope_dim, c.width, MlaProduct::kWhole});
  out.push_back({"kv_up", l.heads * (m.nope_dim + m.value_dim), m.kv_rank, MlaProduct::kRows});
  out.push_back({"out", c.width, l.heads * m.value_dim, MlaProduct::kColumns});
  return out;
}

at::Tensor Mla::Product::forward(const at::Tensor& x, const Context& context) const {
  const std::optional<Fp8Linear> how = in_fp8();
  return how ? joined_linear(x, {this}, {.fp8 = how, .context = context})
             : Linear::forward(x, context);
}

std::optional<Fp8Linear> Mla::Product::in_fp8() const {
  const auto& options = fp8.options();
  if (!options) return std::nullopt;
  return Fp8Linear{*options, Fp8Weights::kIn};
}

Mla::Mla(const ModelConfig& c, const LayerConfig& l, const TensorParts& parts)
    : config_(*c.mla),
      sharding_(parts.sharding),
      keys_(parts.keys),
      all_heads_{l.heads, parts.sharding.rank() * parts.heads(l.heads)},
      heads_(parts.heads(l.heads)),
      index_(l.index),
      scale_(rope_softmax_factor(c.rope) / std::sqrt(static_cast<double>(l.head_dim))),
      dropout_(c.attn_dropout),
      kv_down_(product(c, config_.kv_rank + config_.rope_dim, c.width, DropPlace::kLatentDown)),
      kv_up_(product(c, l.heads * (config_.nope_dim + config_.value_dim), config_.kv_rank,
                     DropPlace::kLatentUp)),
      out_({c.width, l.heads * config_.value_dim, residual_init(c), false,
            c.lora.of(LoraTarget::kAttention), c.lora.bits_of(LoraTarget::kAttention),
            DropPlace::kOut}),
      kv_norm_(latent_norm(c), config_.kv_rank),
      rope_(c.rope, config_.rope_dim),
      max_positions_(c.max_positions) {
  TROUPE_CHECK(!parts.head_exchange && !parts.ring,
               "context ranks exchange the keys of latent attention");
  require_whole(c.lora.bits_of(LoraTarget::kAttention), sharding_.ranks(), "attention");
  parts.cut(kv_up_.weight, 0);
  parts.cut(kv_up_.lora, 0);
  parts.cut(out_.weight, 1);
  parts.cut(out_.lora, 1);
  if (config_.q_rank == 0) {
    q_.emplace(product(c, l.heads * l.head_dim, c.width, DropPlace::kQuery));
    parts.cut(q_->weight, 0);
    parts.cut(q_->lora, 0);
    return;
  }
  q_down_.emplace(product(c, config_.q_rank, c.width, DropPlace::kQueryDown));
  q_up_.emplace(product(c, l.heads * l.head_dim, config_.q_rank, DropPlace::kQueryUp));
  parts.cut(q_up_->weight, 0);
  parts.cut(q_up_->lora, 0);
  q_norm_.emplace(latent_norm(c), config_.q_rank);
}

Mla::Inputs Mla::inputs(const at::Tensor& x_tD, const AttentionCall& call) const {
  const int64_t tokens = call.rows * call.tokens;
  const Context& all_here = call.context;
  Context here = all_here;  // of the own tokens
  here.first_token += sharding_.own(tokens).from;
  const int64_t q_rank = config_.q_rank, kv_rank = config_.kv_rank, rope = config_.rope_dim;
  const auto latents = [&] {
    const auto down = kv_down_.forward(x_tD, here).split_with_sizes({kv_rank, rope}, 1);
    return std::pair(kv_norm_.forward(down[0]), down[1]);
  };
  if (q_) {
    const at::Tensor q = q_->forward(sharding_.all_gather(x_tD, tokens).x_T, all_here);
    const auto [c, r] = latents();
    if (sharding_.alone()) return {q, c, r};
    const at::Tensor all = sharding_.all_gather(at::cat({c, r}, 1), tokens).x_T;
    return {q, all.narrow(1, 0, kv_rank), all.narrow(1, kv_rank, rope)};
  }
  const at::Tensor q = q_norm_->forward(q_down_->forward(x_tD, here));
  if (sharding_.alone()) {
    const at::Tensor up = q_up_->forward(q, all_here);
    const auto [c, r] = latents();
    return {up, c, r};
  }
  const auto [c, r] = latents();
  const auto all = sharding_.all_gather(at::cat({q, c, r}, 1), tokens)
                       .x_T.split_with_sizes({q_rank, kv_rank, rope}, 1);
  return {q_up_->forward(all[0], all_here), all[1], all[2]};
}

at::Tensor Mla::turned(const at::Tensor& x, int64_t first, const AttentionCall& call) {
  const RotaryTables& tables = rope_.tables(positions_needed(call, max_positions_), x);
  const std::optional<at::Tensor> position = positions_of(call, x);
  if (position) return rotary(x, tables, position, rope_.options(first));
  return rotary(x.unflatten(0, {call.rows, call.tokens}), tables, {}, rope_.options(first))
      .flatten(0, 1);
}

std::vector<Mla::Product*> Mla::products() {
  std::vector<Product*> out = {&kv_down_, &kv_up_, &out_};
  for (std::optional<Product>* part : {&q_, &q_down_, &q_up_}) {
    if (*part) out.push_back(&**part);
  }
  return out;
}

void Mla::compute_in_fp8(const Fp8Options& fp8) {
  for (Product* product : products()) {
    const Param& w = product->weight;
    TROUPE_CHECK(!w.low_bit, "fp8: projections in few bits stay in bf16");
    if (!whole_groups(w.global[0], w.global[1])) continue;
    TROUPE_CHECK(whole_groups(w.size[0], w.size[1]), "fp8: this rank would have a projection of",
                 w.size[0], "x", w.size[1], "which cuts groups of", kFp8Tile,
                 "that share a scale: use fewer ranks of parallel.tensor");
    product->fp8.use(fp8, /*products=*/1);
  }
}

void Mla::keep_rounded_weights(bool keep) {
  for (Product* product : products()) product->fp8.keep_weights(keep);
}

void Mla::for_each_fp8(const VisitFp8& f) {
  for (Product* product : products()) f(product->fp8);
}

at::Tensor Mla::forward(const at::Tensor& x_tD, const AttentionCall& call) {
  const auto& [q_rank, kv_rank, nope, rope, value, eps] = config_;
  const Inputs in = inputs(x_tD, call);
  const at::Tensor q = turned(in.q_TN.unflatten(1, {heads_, -1}), nope, call);
  at::Tensor latent = in.latent_Tc;
  at::Tensor shared = turned(in.r_Tr.unsqueeze(1), 0, call);  // [T, 1, rope]
  AttentionForm form = {.scale = scale_};
  if (call.slice == nullptr) {
    set_segments(call, form);
  } else {
    require_no_dropout(dropout_, call);
    const auto rows = call.slice->keys(0);
    form.segments = rows->segments;
    const at::Tensor all = keys_.fetched(at::cat({latent, shared.flatten(1)}, 1), rows);
    latent = all.narrow(1, 0, kv_rank);
    shared = all.narrow(1, kv_rank, rope).unsqueeze(1);
  }
  const auto keys_values = [&, nope = nope, value = value, rope = rope](const at::Tensor& c,
                                                                        const at::Tensor& r) {
    const at::Tensor up_TN = kv_up_.forward(c, call.context);
    const auto up = up_TN.unflatten(1, {heads_, -1}).split_with_sizes({nope, value}, 2);
    return std::pair(at::cat({up[0], r.expand({-1, heads_, rope})}, 2), up[1]);
  };
  if (call.cache != nullptr) {
    call.cache->extend(index_, latent.unflatten(0, {call.rows, call.tokens}),
                       shared.unflatten(0, {call.rows, call.tokens}));
    const at::Tensor o = attention_over_cache(q, call, form, [&](int64_t row) {
      const auto [c, r] = call.cache->row(index_, row, call.tokens);
      return keys_values(c, r);
    });
    return out_of_heads(out_, {sharding_, call.context}, o.flatten(1), out_.in_fp8());
  }
  const auto [k, v] = keys_values(latent, shared);
  const bool drops = dropout_ > 0 && call.context.training;
  const at::Tensor o =
      drops ? attention_with_dropout({q, k, v}, form, {dropout_, all_heads_}, call.context)
            : attention(q, k, v, form);
  return out_of_heads(out_, {sharding_, call.context}, o.flatten(1), out_.in_fp8());
}

}  // namespace troupe
