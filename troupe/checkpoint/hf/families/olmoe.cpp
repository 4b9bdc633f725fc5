#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void olmoe_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({50304, 2048, 16, 16, 4096, 1e-5});
  f.kv_heads({});
  f.head_dim_from_width();
  f.attention_bias(false);
  c.qk_norm = QkNorm::kWhole;
  f.keys.optional({"clip_qkv"}, c.clip_qkv);
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{2048});
  f.experts({"num_experts", "num_local_experts"}, 64, 8);
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kBefore);
  f.norm_topk(router);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.01);
  f.rope(10000);
}

}  // namespace

// Its q_norm and k_norm, of the whole projection, are called as Qwen3's.
extern constinit const HfFamily kOlmoe = {
    .model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .form = {.clip_qkv = true, .qk_norm = QkNorm::kWhole, .qkv_bias = true},
    .read_or_write = olmoe_config,
    .names = common_names,
};

}  // namespace troupe::hf
