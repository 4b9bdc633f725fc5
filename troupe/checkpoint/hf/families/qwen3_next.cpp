#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"
#include "troupe/nn/config/moe_pattern.h"

namespace troupe::hf {
namespace {

// Their weight is 0 where ours is 1.
void add_centered(Table& t, const std::string& ours, int64_t width, const std::string& theirs) {
  t.same(ours, {width}, theirs);
  t.last().offset = 1;
}

// A head's rows of q_proj: its query, then its gate.
void add_gated_attention(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const std::string a = at.ours + "attention.", b = at.theirs + "self_attn.";
  const int64_t d = l.head_dim, q = l.heads * d, kv = l.kv_heads * d, D = c.width;
  const auto half = [&](const std::string& ours, int64_t first) {
    std::vector<HfPiece> pieces;
    for (int64_t h = 0; h < l.heads; ++h) {
      pieces.push_back(
          piece(b + "q_proj.weight", {2 * q, D}, h * d, d, {(2 * h * d + first) * D, D, 1}));
    }
    t.add(a + ours, {q, D}, pieces);
  };
  half("q.weight", 0);
  half("gate.weight", d);
  t.same(a + "k.weight", {kv, D}, b + "k_proj.weight");
  t.same(a + "v.weight", {kv, D}, b + "v_proj.weight");
  t.same(a + "out.weight", {D, q}, b + "o_proj.weight");
  add_centered(t, a + "q_norm.weight", d, b + "q_norm.weight");
  add_centered(t, a + "k_norm.weight", d, b + "k_norm.weight");
}

void add_delta_net(Table& t, const ModelConfig& c, const Prefix& at) {
  const std::string a = at.ours + "attention.", b = at.theirs + "linear_attn.";
  const DeltaConfig& m = *c.delta;
  const int64_t k = m.key_heads * m.key_dim, v = m.value_heads * m.value_dim, H = m.value_heads;
  t.same(a + "qkvz.weight", {2 * (k + v), c.width}, b + "in_proj_qkvz.weight");
  t.same(a + "ba.weight", {2 * H, c.width}, b + "in_proj_ba.weight");
  const int64_t channels = 2 * k + v;
  t.add(a + "conv", {channels, m.conv},
        {piece(b + "conv1d.weight", {channels, 1, m.conv}, 0, channels, {0, m.conv, 1})});
  t.same(a + "a_log", {H}, b + "A_log");
  t.same(a + "dt_bias", {H}, b + "dt_bias");
  t.same(a + "norm.weight", {m.value_dim}, b + "norm.weight");
  t.same(a + "out.weight", {c.width, v}, b + "out_proj.weight");
}

std::vector<HfTensor> qwen3_next_names(const ModelConfig& c, bool fused) {
  std::vector<HfTensor> out = layered_names(c, [&](Table& t, const LayerConfig& l,
                                                   const Prefix& at) {
    add_centered(t, at.ours + "norm1.weight", c.width, at.theirs + "input_layernorm.weight");
    add_centered(t, at.ours + "norm2.weight", c.width,
                 at.theirs + "post_attention_layernorm.weight");
    l.delta ? add_delta_net(t, c, at) : add_gated_attention(t, c, l, at);
    if (!l.moe) return add_ffn(t, c, l, at);
    add_experts(t, c, l, {}, at, fused);
    add_shared(t, c, l, at, "mlp.shared_expert.");
    t.same(at.ours + "moe.shared.gate", {1, c.width}, at.theirs + "mlp.shared_expert_gate.weight");
  });
  for (HfTensor& t : out) {
    if (t.name == "head.norm.weight") t.offset = 1;
  }
  return out;
}

// Prediction modules, which the class leaves out too.
bool qwen3_next_skips(const ModelConfig& /*c*/, std::string_view name) {
  return name.starts_with("mtp.");
}

// Which layers are linear: "layer_types", or all but each n-th.
void linear_layers(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  std::vector<bool> layers(static_cast<size_t>(c.layers));
  if (!f.keys.reads() && c.delta) {
    for (int64_t i = 0; i < c.layers; ++i)
      layers[static_cast<size_t>(i)] = layer_config(c, i).delta;
  }
  const auto read =
      f.words_of_layers("layer_types", {"linear_attention", "full_attention"}, layers);
  if (!f.keys.reads()) return;
  int64_t interval = 4;
  f.keys.field({"full_attention_interval"}, interval, int64_t{4});
  if (interval < 1) f.keys.refuse("full_attention_interval", "at least 1 is expected");
  for (int64_t i = 0; i < c.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    layers[at] = read ? (*read)[at] : (i + 1) % interval != 0;
  }
  c.delta->layers = pattern_of(layers);
  if (c.delta->layers == pattern_of(std::vector<bool>(layers.size(), false))) c.delta.reset();
}

void delta_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  DeltaConfig d = c.delta.value_or(DeltaConfig{});
  f.keys.field({"linear_conv_kernel_dim"}, d.conv, int64_t{4});
  f.keys.field({"linear_key_head_dim"}, d.key_dim, int64_t{128});
  f.keys.field({"linear_value_head_dim"}, d.value_dim, int64_t{128});
  f.keys.field({"linear_num_key_heads"}, d.key_heads, int64_t{16});
  f.keys.field({"linear_num_value_heads"}, d.value_heads, int64_t{32});
  const auto positive = [&](const char* key, int64_t value, int64_t least) {
    if (value < least) f.keys.refuse(key, "at least " + std::to_string(least) + " is expected");
  };
  positive("linear_conv_kernel_dim", d.conv, 2);
  positive("linear_key_head_dim", d.key_dim, 1);
  positive("linear_value_head_dim", d.value_dim, 1);
  positive("linear_num_key_heads", d.key_heads, 1);
  if (d.value_heads < 1 || d.value_heads % d.key_heads != 0) {
    f.keys.refuse("linear_num_value_heads", "a multiple of linear_num_key_heads is expected");
  }
  if (f.keys.reads()) c.delta = d;
  linear_layers(f);
}

void qwen3_next_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({151936, 2048, 48, 16, 32768, 1e-6});
  f.kv_heads(2);
  f.head_dim(256);
  f.keys.only("attention_bias", false);
  if (f.keys.reads()) {
    c.qkv_bias = c.out_bias = false;
    c.qk_norm = QkNorm::kHead;
    c.attn_gate = true;
    if (f.keys.is_missing("norm_topk_prob")) f.keys.at("norm_topk_prob") = true;
  }
  delta_config(f);
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{5632});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{512});
  f.gated_shared_expert(512);
  f.sparse_experts(512, 10);
  f.rope(10000, 0.25);
}

}  // namespace

extern constinit const HfFamily kQwen3Next = {
    .model_type = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .form = {.norm = NormForm::kRms,
             .mixed_layers = true,
             .delta = true,
             .partial_rope = true,
             .qk_norm = QkNorm::kHead,
             .gated_shared = true,
             .shared_width = true},
    .read_or_write = qwen3_next_config,
    .names = qwen3_next_names,
    .skippable = qwen3_next_skips,
};

}  // namespace troupe::hf
