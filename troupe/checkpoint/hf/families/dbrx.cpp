#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"
#include "troupe/distributed/params/param.h"

namespace troupe::hf {
namespace {

// All experts' rows stand in one matrix [E F, D]; W2 is stored as [F, D] an expert.
void add_joint_experts(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const int64_t E = l.moe->experts, F = l.moe->ffn.hidden, D = c.width;
  const std::string mlp = at.theirs + "ffn.experts.mlp.";
  const std::vector<int64_t> shape = {E * F, D};
  t.same(at.ours + "moe.router.weight", {E, D}, at.theirs + "ffn.router.layer.weight");
  for (int64_t e = 0; e < E; ++e) {
    const int64_t first = e * F * D;
    t.add(expert_name(at.ours + "moe.experts.w1", e), {2, F, D},
          {piece(mlp + "w1", shape, 0, F, {first, D, 1}),
           piece(mlp + "v1", shape, F, F, {first, D, 1})});
    t.add(expert_name(at.ours + "moe.experts.w2", e), {D, F},
          {piece(mlp + "w2", shape, 0, D, {first, 1, D})});
  }
}

std::vector<HfTensor> dbrx_names(const ModelConfig& c, bool /*fused*/) {
  Table t;
  t.same("embed.tokens", {c.vocab, c.width}, "transformer.wte.weight");
  t.same("head.norm.weight", {c.width}, "transformer.norm_f.weight");
  if (!c.tie_embeddings) t.same("head.weight", {c.vocab, c.width}, "lm_head.weight");
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    const int64_t D = c.width, q = l.heads * l.head_dim, kv = l.kv_heads * l.head_dim;
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "transformer.blocks." + std::to_string(i) + ".";
    const std::string both = theirs + "norm_attn_norm.", a = ours + "attention.";
    t.same(ours + "norm1.weight", {D}, both + "norm_1.weight");
    t.same(ours + "norm2.weight", {D}, both + "norm_2.weight");
    const auto rows = [&](const char* name, int64_t n, int64_t from) {
      t.add(a + name + ".weight", {n, D},
            {piece(both + "attn.Wqkv.weight", {q + 2 * kv, D}, 0, n, {from * D, D, 1})});
    };
    rows("q", q, 0);
    rows("k", kv, q);
    rows("v", kv, q + kv);
    t.same(a + "out.weight", {D, q}, both + "attn.out_proj.weight");
    add_joint_experts(t, c, l, {ours, theirs});
  }
  return t.take();
}

// Where transformers 5 reads theta; from attn_config, where 4 does, it no longer takes it.
void write_rope_parameters(ConfigFields& f) {
  Json flat = Json::object();
  HfKeys to(flat, /*reads=*/false, f.keys.place());
  f.write_rope(to);
  Json& out = f.keys.at("rope_parameters");
  out = flat["rope_scaling"].is_null() ? Json{{"rope_type", "default"}} : flat["rope_scaling"];
  out["rope_theta"] = flat["rope_theta"];
}

void dbrx_attention(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  HfKeys a = f.keys.section("attn_config");
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  a.field({"kv_n_heads"}, c.kv_heads, int64_t{1});
  f.at_least_one(c.kv_heads, "model.kv_heads");
  a.optional({"clip_qkv"}, c.clip_qkv);
  a.field({"attn_pdrop"}, c.attn_dropout, 0.0);
  a.field({"rope_theta"}, c.rope.theta, 10000.0);
  if (!f.keys.reads()) return write_rope_parameters(f);
  c.head_dim = 0;
  // transformers 5 moves it out of the section.
  if (f.keys.has("rope_parameters")) {
    HfKeys p = f.keys.section("rope_parameters");
    p.field({"rope_theta"}, c.rope.theta, 10000.0);
    f.read_scaling(p);
  }
}

void dbrx_experts(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  HfKeys k = f.keys.section("ffn_config");
  k.field({"ffn_hidden_size"}, c.moe.ffn.hidden, int64_t{3584});
  k.field({"moe_num_experts"}, c.moe.experts, int64_t{4});
  k.field({"moe_top_k"}, c.moe.top_k, int64_t{1});
  if (c.moe.experts < 1) k.refuse("moe_num_experts", "at least 1 is expected");
  if (c.moe.top_k < 1 || c.moe.top_k > c.moe.experts) k.refuse("moe_top_k", "is out of range");
  Json& act = k.at("ffn_act_fn");
  if (f.keys.reads() && !act.is_null() && act != Json{{"name", "silu"}}) {
    k.refuse("ffn_act_fn", "{\"name\": \"silu\"} is supported");
  }
  if (!f.keys.reads()) act = Json{{"name", "silu"}};
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kBefore);
  std::optional<double> jitter, norm;
  if (router.gate.jitter > 0) jitter = router.gate.jitter;
  if (router.p_norm > 0) {
    norm = router.p_norm;
  } else if (!f.keys.reads() && f.sums_to_one(router)) {
    norm = 1;
  }
  if (f.keys.reads() && !k.has("moe_normalize_expert_weights")) {
    k.at("moe_normalize_expert_weights") = 1.0;  // the class's default
  }
  k.optional({"moe_jitter_eps"}, jitter);
  k.optional({"moe_normalize_expert_weights"}, norm);
  router.gate.jitter = jitter.value_or(0);
  if (f.keys.reads()) router.p_norm = norm.value_or(0);
  f.aux_loss(k, "moe_loss_weight", router.balance, 0.01);
}

void dbrx_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.keys.field({"vocab_size"}, c.vocab, int64_t{32000});
  f.keys.field({"d_model"}, c.width, int64_t{2048});
  f.keys.field({"n_layers"}, c.layers, int64_t{24});
  f.keys.field({"n_heads"}, c.heads, int64_t{16});
  f.keys.field({"max_seq_len"}, c.max_positions, int64_t{2048});
  f.keys.field({"tie_word_embeddings"}, c.tie_embeddings, false);
  f.keys.field({"resid_pdrop"}, c.dropout, 0.0);
  f.keys.only("emb_pdrop", c.dropout);
  f.keys.pass({"num_key_value_heads"}, f.passed);
  f.init_std();
  f.check_sizes();
  c.norm = {.kind = NormForm::kLayer, .eps = 1e-5};
  dbrx_attention(f);
  dbrx_experts(f);
}

}  // namespace

extern constinit const HfFamily kDbrx = {
    .model_type = "dbrx",
    .architecture = "DbrxForCausalLM",
    .form = {.norm = NormForm::kLayer, .clip_qkv = true},
    .read_or_write = dbrx_config,
    .names = dbrx_names,
};

}  // namespace troupe::hf
