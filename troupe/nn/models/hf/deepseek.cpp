#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {
namespace {

void add_block(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at, bool fused) {
  add_norms(t, c, at);
  add_mla(t, c, l, at);
  if (!l.moe) return add_ffn(t, c, l, at);
  add_experts(t, c, l, {}, at, fused);
  if (l.moe->router.kind() == "sigmoid_bias") {
    t.same(at.ours + "moe.router.balance_bias", {l.moe->experts},
           at.theirs + "mlp.gate.e_score_correction_bias");
    t.last().fp32 = true;
  }
  if (l.moe->shared.experts == 0) return;
  const int64_t F = l.moe->shared.width_for(l.moe->ffn.hidden), D = c.width;
  const std::string shared = at.theirs + "mlp.shared_experts.";
  t.joined(at.ours + "moe.shared.w1", {2, F, D},
           {shared + "gate_proj.weight", shared + "up_proj.weight"});
  t.same(at.ours + "moe.shared.w2", {D, F}, shared + "down_proj.weight");
}

}  // namespace

std::vector<HfTensor> deepseek_names(const ModelConfig& c, bool fused) {
  std::vector<HfTensor> all = layered_names(
      c, [&](Table& t, const LayerConfig& l, const Prefix& at) { add_block(t, c, l, at, fused); });
  // An MTP module is one more layer, with copies of the embedding and of the head.
  for (int64_t d = 0; d < c.mtp.depth; ++d) {
    const std::string ours = "head.mtp." + std::to_string(d) + ".";
    const std::string theirs = "model.layers." + std::to_string(c.layers + d) + ".";
    Table m;
    m.same(ours + "token_norm.weight", {c.width}, theirs + "enorm.weight");
    m.same(ours + "hidden_norm.weight", {c.width}, theirs + "hnorm.weight");
    m.same(ours + "proj.weight", {c.width, 2 * c.width}, theirs + "eh_proj.weight");
    m.same(ours + "norm.weight", {c.width}, theirs + "shared_head.norm.weight");
    add_block(m, c, layer_config(c, c.layers + d), {ours + "block.", theirs}, fused);
    for (HfTensor& x : m.take()) all.push_back(std::move(x));
    for (HfTensor& x : all) {
      if (x.name == "embed.tokens") x.copies.push_back(theirs + "embed_tokens.weight");
      const bool head = x.name == (c.tie_embeddings ? "embed.tokens" : "head.weight");
      if (head) x.copies.push_back(theirs + "shared_head.head.weight");
    }
  }
  return all;
}

}  // namespace troupe::hf
