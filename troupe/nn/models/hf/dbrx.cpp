#include "troupe/distributed/params/param.h"
#include "troupe/nn/models/hf/table.h"

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

}  // namespace

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

}  // namespace troupe::hf
