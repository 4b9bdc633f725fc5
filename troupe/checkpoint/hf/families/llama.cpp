#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void llama_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({32000, 4096, 32, 32, 2048, 1e-6});
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{11008});
  f.kv_heads({});
  f.head_dim(0);
  f.attention_bias(false);
  bool bias = c.ffn_bias.value_or(c.bias);
  f.keys.field({"mlp_bias"}, bias, false);
  c.ffn_bias = bias;
  if (f.keys.reads()) c.moe.experts = 0;
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kLlama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .form = {.moe = false, .qkv_bias = true, .ffn_bias = true},
    .read_or_write = llama_config,
    .names = common_names,
};

}  // namespace troupe::hf
