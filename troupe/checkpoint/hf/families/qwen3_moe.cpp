#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void qwen3_moe_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({151936, 2048, 24, 32, 32768, 1e-6});
  f.kv_heads(4);
  f.head_dim(0);
  f.attention_bias(false);
  c.qk_norm = QkNorm::kHead;
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{6144});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{768});
  f.sparse_experts(128, 8);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kQwen3Moe = {
    .model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .form = {.mixed_layers = true, .window = true, .qk_norm = QkNorm::kHead, .qkv_bias = true},
    .read_or_write = qwen3_moe_config,
    .names = common_names,
};

}  // namespace troupe::hf
