#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/config/moe_pattern.h"

namespace troupe::hf {
namespace {

// Transposed, [E, D, 2 F] and [E, F, D], gate in even columns and up in odd ones.
void add_transposed_experts(Table& t, const ModelConfig& c, const LayerConfig& l,
                            const Prefix& at) {
  const int64_t E = l.moe->experts, F = l.moe->ffn.hidden, D = c.width;
  const std::string a = at.ours + "moe.experts.", b = at.theirs + "mlp.experts.";
  t.same(at.ours + "moe.router.weight", {E, D}, at.theirs + "mlp.router.weight");
  t.same(at.ours + "moe.router.bias", {E}, at.theirs + "mlp.router.bias");
  for (int64_t e = 0; e < E; ++e) {
    const int64_t up_at = e * D * 2 * F, bias = e * 2 * F;
    const std::vector<int64_t> up = {E, D, 2 * F};
    t.add(expert_name(a + "w1", e), {2, F, D},
          {piece(b + "gate_up_proj", up, 0, F, {up_at, 2, 2 * F}),
           piece(b + "gate_up_proj", up, F, F, {up_at + 1, 2, 2 * F})});
    t.add(expert_name(a + "b1", e), {2, F},
          {piece(b + "gate_up_proj_bias", {E, 2 * F}, 0, 1, {bias, 1, 2}),
           piece(b + "gate_up_proj_bias", {E, 2 * F}, 1, 1, {bias + 1, 1, 2})});
    t.add(expert_name(a + "w2", e), {D, F},
          {piece(b + "down_proj", {E, F, D}, 0, D, {e * F * D, 1, D})});
    t.add(expert_name(a + "b2", e), {D},
          {piece(b + "down_proj_bias", {E, D}, 0, D, {e * D, 1, 1})});
  }
}

std::vector<HfTensor> gpt_oss_names(const ModelConfig& c, bool /*fused*/) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_transposed_experts(t, c, l, at);
  });
}

void gpt_oss_windows(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.keys.pass({"initial_context_length"}, f.passed);
  f.keys.field({"sliding_window"}, c.window, int64_t{128});
  if (!f.layer_types() || c.layers == 0) c.window_layers = "2";
}

// The class's default is a scaled one.
void gpt_oss_rope(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  if (f.keys.reads() && !f.keys.has("rope_parameters") && !f.keys.has("rope_scaling")) {
    f.keys.at("rope_scaling") = Json{
        {"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
        {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  }
  f.rope(150000);
  if (!f.keys.reads() && c.rope.scaling == RopeScaling::kNone) {
    f.keys.at("rope_scaling") = Json{{"rope_type", "default"}};
  }
}

void gpt_oss_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({201088, 2880, 36, 64, 131072, 1e-5});
  f.kv_heads(8);
  f.head_dim(64);
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{2880});
  f.experts({"num_local_experts", "num_experts"}, 128, 4);
  f.keys.only("attention_bias", true);
  double limit = c.moe.ffn.form.clamp.value_or(7);
  f.keys.field({"swiglu_limit"}, limit, 7.0);
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kAfter);
  f.always_sums_to_one(router, true);
  if (f.keys.reads()) {
    c.bias = c.sinks = c.moe.ffn.bias = router.gate.bias = true;
    c.moe.ffn.form = {.activation = "quick_gelu", .gated = true, .clamp = limit, .offset = 1};
  }
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.001);
  gpt_oss_windows(f);
  gpt_oss_rope(f);
}

}  // namespace

extern constinit const HfFamily kGptOss = {
    .model_type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .form = {.norm = NormForm::kRms,
             .sinks = true,
             .window = true,
             .qkv_bias = true,
             .ffn_bias = true,
             .biased_clamped_experts = true,
             .sums_to_one = true},
    .read_or_write = gpt_oss_config,
    .names = gpt_oss_names,
};

}  // namespace troupe::hf
