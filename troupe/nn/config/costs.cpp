#include "troupe/nn/config/costs.h"

#include <algorithm>
#include <numeric>

#include "troupe/nn/moe/moe_counts.h"
#include "troupe/ops/gated_delta.h"

namespace troupe {
namespace {

int64_t norm_params(const ModelConfig& c) {
  return c.width * (c.norm.kind == NormForm::kLayer && c.norm.bias ? 2 : 1);
}

bool gated(FfnAct act) {
  return act == FfnAct::kSwiglu || act == FfnAct::kGeglu || act == FfnAct::kGegluTanh ||
         act == FfnAct::kReglu;
}

// A product's weights: all of them are met by each token.
void add_product(UnitCosts& u, int64_t count) {
  u.params.dense += count;
  u.product_params += count;
}

void add_mla(const ModelConfig& c, UnitCosts& u) {
  const MlaConfig& m = *c.mla;
  const int64_t H = c.heads, dk = m.nope_dim + m.rope_dim;
  if (m.q_rank > 0) {
    add_product(u, c.width * m.q_rank + m.q_rank * H * dk);
    u.params.replicated += m.q_rank;
  } else {
    add_product(u, c.width * H * dk);
  }
  add_product(u, c.width * (m.kv_rank + m.rope_dim) + m.kv_rank * H * (m.nope_dim + m.value_dim));
  u.params.replicated += m.kv_rank;
  add_product(u, H * m.value_dim * c.width);
  u.core_dims = H * (dk + m.value_dim);
  u.saved_bytes += 2 * (2 * m.q_rank + 2 * m.kv_rank + m.rope_dim + 4 * H * dk +
                        2 * H * (m.nope_dim + m.value_dim));
}

// In chunks of C tokens (ops/gated_delta.h): k k^T, q k^T and P N; half of the solved system; and
// three products with the state. The convolution beside them.
void add_delta(const ModelConfig& c, UnitCosts& u) {
  const DeltaConfig& m = *c.delta;
  const int64_t k = m.key_heads * m.key_dim, v = m.value_heads * m.value_dim;
  const int64_t d = m.key_dim, e = m.value_dim, C = kDeltaChunk, H = m.value_heads;
  add_product(u, c.width * (2 * k + 2 * v + 2 * H) + v * c.width);
  u.params.dense += (2 * k + v) * m.conv;
  u.params.replicated += 2 * H + e;  // decays and their biases, the norm
  u.state_products = H * (3 * d * e + C * (2 * d + e) + C * (d + e) / 2) + (2 * k + v) * m.conv;
  // q, k, v before and behind the convolution; gates; the result, normed and gated. In f32: decays,
  // and the state before each chunk.
  u.saved_bytes += 2 * (2 * (2 * k + v) + 4 * v) + 4 * 4 * H + 4 * H * d * e / C;
}

void add_attention(const ModelConfig& c, const LayerConfig& l, UnitCosts& u) {
  if (l.delta) return add_delta(c, u);
  if (c.mla) return add_mla(c, u);
  const int64_t q = l.heads * l.head_dim, kv = l.kv_heads * l.head_dim;
  add_product(u, c.width * (q + 2 * kv) + q * c.width);
  if (c.qkv_bias.value_or(c.bias)) u.params.replicated += q + 2 * kv;
  if (c.out_bias.value_or(c.bias)) u.params.replicated += c.width;
  if (c.qk_norm != QkNorm::kNone) {
    u.params.replicated += c.qk_norm == QkNorm::kWhole ? q + kv : 2 * l.head_dim;
  }
  if (c.sinks) u.params.replicated += l.heads;
  if (c.attn_gate) {
    add_product(u, c.width * q);
    if (c.qkv_bias.value_or(c.bias)) u.params.replicated += q;
    u.saved_bytes += 2 * 3 * q;  // the product, its sigmoid and what both scale
  }
  u.core_dims = l.heads * 2 * l.head_dim;
  // q, k, v, turned; the core's result and its log-sum; beside a norm also what it was taken of.
  u.saved_bytes += 2 * (q + 2 * kv + q) + 4 * l.heads;
  if (c.qk_norm != QkNorm::kNone) u.saved_bytes += 2 * (q + kv);
}

void add_ffn(const ModelConfig& c, const LayerConfig& l, UnitCosts& u) {
  if (!l.moe) {
    const int64_t in = (gated(c.act) ? 2 : 1) * l.ffn;
    add_product(u, (in + l.ffn) * c.width);
    if (c.ffn_bias.value_or(c.bias)) u.params.replicated += in + c.width;
    u.saved_bytes += 2 * in;
    return;
  }
  const MoeSizes s = sizes_of(*l.moe, moe_shape(c, l));
  const int64_t all = moe_params(s), routed = s.experts * expert_params(s);
  const int64_t shared = (s.gated ? 3 : 2) * s.width * s.shared_hidden + 2 * s.width * s.latent;
  u.params.experts += routed;
  u.params.dense += shared;
  u.params.replicated += all - routed - shared;
  u.active_params -= (s.experts - s.top_k) * expert_params(s);
  u.product_params += moe_forward_flops(s).total() / 2;
  const int64_t in = s.gated ? 2 : 1;
  // H of the routed and the shared experts, routing (ids, scores, the row map), logits in f32.
  u.saved_bytes += 2 * in * (s.top_k * s.hidden + s.shared_hidden) + 24 * s.top_k + 4 * s.experts;
}

UnitCosts block(const ModelConfig& c, const LayerConfig& l) {
  UnitCosts u;
  u.window = l.window;
  const int64_t norms = norms_of(c.block, l.attention);
  u.params.replicated += norms * norm_params(c);
  u.saved_bytes += norms * 2 * 2 * c.width;  // a norm's input, and the products'
  if (l.attention) add_attention(c, l, u);
  add_ffn(c, l, u);
  u.active_params += u.params.total();
  return u;
}

UnitCosts embedding(const ModelConfig& c) {
  UnitCosts u;
  u.params.embedding = padded_vocab(c) * c.width;
  if (c.positions == PositionForm::kLearned) u.params.embedding += c.max_positions * c.width;
  u.active_params = u.params.total();
  u.saved_bytes = 8;  // the ids
  return u;
}

UnitCosts head(const ModelConfig& c) {
  UnitCosts u;
  if (c.mtp.depth == 0) u.params.replicated = norm_params(c);
  if (!c.tie_embeddings) u.params.embedding = padded_vocab(c) * c.width;
  u.active_params = u.params.total();
  u.product_params = c.vocab * c.width;
  u.mtp_product_params = c.mtp.depth * u.product_params;
  // The norm's input and result, and the gradient made on the way; of a module's state the latter
  // two.
  u.saved_bytes = 2 * (3 + 2 * c.mtp.depth) * c.width;
  return u;
}

// MTP module d, of the `depth`, and in the first the final norm.
UnitCosts mtp_module(const ModelConfig& c, int64_t d) {
  UnitCosts u = block(c, layer_config(c, c.layers + d - 1));
  add_product(u, 2 * c.width * c.width);
  u.params.replicated += 3 * norm_params(c);  // of the token, the state, before the head
  u.is_mtp = true;
  u.active_params = 0;
  if (d == 1) {
    u.active_params = norm_params(c);
    u.params.replicated += norm_params(c);
  }
  u.saved_bytes += 2 * 4 * c.width;
  return u;
}

}  // namespace

ParamCount& ParamCount::operator+=(const ParamCount& o) {
  embedding += o.embedding;
  dense += o.dense;
  replicated += o.replicated;
  experts += o.experts;
  return *this;
}

int64_t ModelCosts::params() const {
  int64_t total = -mtp_params;
  for (const UnitCosts& u : units) total += u.params.total();
  return total;
}

int64_t ModelCosts::active_params() const {
  int64_t total = 0;
  for (const UnitCosts& u : units) total += u.active_params;
  return total;
}

int64_t ModelCosts::product_params() const {
  int64_t total = 0;
  for (const UnitCosts& u : units) total += u.is_mtp ? 0 : u.product_params;
  return total;
}

double ModelCosts::flops_per_token(int64_t sequence, bool full) const {
  const double causal = static_cast<double>(sequence) / (full ? 1 : 2);
  return flops_with_keys(causal);
}

double ModelCosts::flops_with_keys(double mean_keys) const {
  double flops = 6.0 * static_cast<double>(product_params());
  for (const UnitCosts& u : units) {
    if (u.is_mtp) continue;
    const double keys =
        u.window > 0 ? std::min(mean_keys, static_cast<double>(u.window)) : mean_keys;
    flops +=
        6.0 * (static_cast<double>(u.core_dims) * keys + static_cast<double>(u.state_products));
  }
  return flops;
}

ModelCosts costs_of(const ModelConfig& c) {
  ModelCosts costs;
  costs.units.push_back(embedding(c));
  for (int64_t i = 0; i < c.layers; ++i) costs.units.push_back(block(c, layer_config(c, i)));
  for (int64_t d = 1; d <= c.mtp.depth; ++d) {
    costs.units.push_back(mtp_module(c, d));
    const UnitCosts& u = costs.units.back();
    costs.mtp_params += u.params.total() - u.active_params;
  }
  costs.units.push_back(head(c));
  return costs;
}

}  // namespace troupe
