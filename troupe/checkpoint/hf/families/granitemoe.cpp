#include <algorithm>
#include <cmath>

#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"
#include "troupe/distributed/params/param.h"

namespace troupe::hf {
namespace {

// In files and in memory the experts stand joined: [E, 2 F, D] and [E, D, F].
void add_joined_experts(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                        bool fused) {
  const int64_t E = l.moe->experts, F = l.moe->ffn.hidden, D = c.width;
  const std::string b = at.theirs + "block_sparse_moe.", a = at.ours + "moe.experts.";
  t.same(at.ours + "moe.router.weight", {E, D},
         b + (fused ? "router.weight" : "router.layer.weight"));
  const std::string up = b + (fused ? "experts.gate_up_proj" : "input_linear.weight");
  const std::string down = b + (fused ? "experts.down_proj" : "output_linear.weight");
  for (int64_t e = 0; e < E; ++e) {
    t.add(expert_name(a + "w1", e), {2, F, D},
          {piece(up, {E, 2 * F, D}, 0, 2 * F, {e * 2 * F * D, D, 1})});
    t.add(expert_name(a + "w2", e), {D, F}, {piece(down, {E, D, F}, 0, D, {e * D * F, F, 1})});
  }
}

std::vector<HfTensor> granitemoe_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_joined_experts(t, c, l, at, fused);
  });
}

// A feed-forward for every token, its gate and up rows in one matrix.
void add_shared_mlp(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const int64_t F = l.moe->shared.width_for(l.moe->ffn.hidden), D = c.width;
  const std::string shared = at.theirs + "shared_mlp.";
  t.same(at.ours + "moe.shared.w1", {2, F, D}, shared + "input_linear.weight");
  t.same(at.ours + "moe.shared.w2", {D, F}, shared + "output_linear.weight");
}

std::vector<HfTensor> granitemoeshared_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_joined_experts(t, c, l, at, fused);
    if (l.moe->shared.experts > 0) add_shared_mlp(t, c, l, at);
  });
}

// Granite multiplies the embedding, what blocks add, the softmax's argument and divides the logits.
// All four are linear in weights, which have them here; an export has them so too.
void multipliers(ConfigFields& f) {
  const ModelConfig& c = f.config.model;
  const int64_t dim = c.head_dim > 0 ? c.head_dim : c.width / std::max<int64_t>(c.heads, 1);
  const double usual = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(dim, 1)));
  double embedding = 1, residual = 1, attention = usual, logits = 1;
  f.keys.field({"embedding_multiplier"}, embedding, 1.0);
  f.keys.field({"residual_multiplier"}, residual, 1.0);
  f.keys.field({"attention_multiplier"}, attention, 1.0);
  f.keys.field({"logits_scaling"}, logits, 1.0);
  if (!f.keys.reads()) return;
  if (logits == 0 || (c.tie_embeddings && embedding == 0)) {
    f.keys.refuse("logits_scaling", "logits without an end");
  }
  const auto multiply = [&](const char* part, double factor) {
    if (std::abs(factor - 1) > 1e-12) f.config.factors.emplace_back(part, factor);
  };
  multiply("embed.tokens", embedding);
  multiply("head.norm.weight", 1 / (c.tie_embeddings ? logits * embedding : logits));
  multiply(".attention.q.", attention / usual);
  multiply(".attention.out.", residual);
  multiply(".w2", residual);
  if (!f.config.factors.empty()) {
    f.config.notes.emplace_back(
        "the multipliers of embedding, residuals, attention and logits are multiplied into the "
        "weights, which are f32 then; logits are the same, and exports have multipliers of 1");
  }
}

void granitemoe_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({32000, 4096, 32, 32, 2048, 1e-6});
  f.kv_heads({});
  f.head_dim(0);
  f.attention_bias(false);
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{11008});
  f.experts({"num_local_experts", "num_experts"}, 8, 2);
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kAfter);
  f.always_sums_to_one(router, true);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.001);
  f.rope(10000);
  multipliers(f);
}

void granitemoeshared_config(ConfigFields& f) {
  granitemoe_config(f);
  SharedConfig& shared = f.config.model.moe.shared;
  int64_t width = shared.experts > 0 ? shared.width_for(f.config.model.moe.ffn.hidden) : 0;
  f.keys.field({"shared_intermediate_size"}, width, int64_t{0});
  if (!f.keys.reads()) return;
  shared.experts = width > 0 ? 1 : 0;
  shared.hidden = width;
}

}  // namespace

extern constinit const HfFamily kGraniteMoe = {
    .model_type = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .form = {.qkv_bias = true, .sums_to_one = true},
    .read_or_write = granitemoe_config,
    .names = granitemoe_names,
};

extern constinit const HfFamily kGraniteMoeShared = {
    .model_type = "granitemoeshared",
    .architecture = "GraniteMoeSharedForCausalLM",
    .form = {.qkv_bias = true, .shared = true, .shared_width = true, .sums_to_one = true},
    .read_or_write = granitemoeshared_config,
    .names = granitemoeshared_names,
};

}  // namespace troupe::hf
