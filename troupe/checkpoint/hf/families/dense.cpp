// Dense models that differ from Llama in a few keys.
#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void dense_ffn(ConfigFields& f, int64_t absent) {
  f.keys.field({"intermediate_size"}, f.config.model.ffn, absent);
  if (f.keys.reads()) f.config.model.moe.experts = 0;
}

void mistral_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({32000, 4096, 32, 32, 131072, 1e-6});
  f.kv_heads(8);
  f.head_dim(0);
  dense_ffn(f, 14336);
  const int64_t window = f.window_size(c.window > 0, 4096);
  if (f.keys.reads()) c.window = window, c.window_layers = "1";
  for (int64_t i = 0; i < c.layers; ++i) {
    if (layer_config(c, i).window != c.window) {
      f.keys.refuse("sliding_window", "this family has it in all layers or in none");
    }
  }
  f.rope(10000);
}

void qwen2_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({151936, 4096, 32, 32, 32768, 1e-6});
  f.kv_heads(32);
  f.head_dim(0);
  dense_ffn(f, 22016);
  if (f.keys.reads()) c.qkv_bias = true, c.out_bias = false;
  if (!c.qkv_bias.value_or(c.bias)) {
    f.keys.refuse("model_type", "this family has biases of queries, keys and values");
  }
  f.sliding_window(4096, 28);
  f.rope(10000);
}

void qwen3_config(ConfigFields& f) {
  f.sizes({151936, 4096, 32, 32, 32768, 1e-6});
  f.kv_heads(32);
  f.head_dim(128);
  dense_ffn(f, 22016);
  f.attention_bias(false);
  f.config.model.qk_norm = QkNorm::kHead;
  f.sliding_window(4096, 28);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kMistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .form = {.moe = false, .window = true},
    .read_or_write = mistral_config,
    .names = common_names,
};

extern constinit const HfFamily kQwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .form = {.moe = false, .window = true, .qkv_bias_alone = true},
    .read_or_write = qwen2_config,
    .names = common_names,
};

extern constinit const HfFamily kQwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .form = {.moe = false, .window = true, .qk_norm = QkNorm::kHead, .qkv_bias = true},
    .read_or_write = qwen3_config,
    .names = common_names,
};

}  // namespace troupe::hf
