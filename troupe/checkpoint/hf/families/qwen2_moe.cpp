#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> qwen2_moe_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    if (!l.moe) return add_ffn(t, c, l, at);
    add_experts(t, c, l, {}, at, fused);
    add_shared(t, c, l, at, "mlp.shared_expert.");
    t.same(at.ours + "moe.shared.gate", {1, c.width}, at.theirs + "mlp.shared_expert_gate.weight");
  });
}

void qwen2_moe_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({151936, 2048, 24, 16, 32768, 1e-6});
  f.kv_heads(16);
  f.head_dim(0);
  f.qkv_bias_alone("qkv_bias", true);
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{5632});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1408});
  f.gated_shared_expert(5632);
  f.sparse_experts(60, 4);
  f.keys.pass({"layer_types"}, f.passed);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kQwen2Moe = {
    .model_type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .form = {.mixed_layers = true,
             .qkv_bias_alone = true,
             .gated_shared = true,
             .shared_width = true},
    .read_or_write = qwen2_moe_config,
    .names = qwen2_moe_names,
};

}  // namespace troupe::hf
