#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

// What both families of OLMo have in common, with what each has where the keys are absent.
struct OlmoDefaults {
  int64_t hidden, experts, top_k;
  double theta;
};
void olmo_fields(ConfigFields& f, const OlmoDefaults& absent) {
  ModelConfig& c = f.config.model;
  f.kv_heads({});
  f.head_dim_from_width();
  f.attention_bias(false);
  c.qk_norm = QkNorm::kWhole;
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, absent.hidden);
  f.experts({"num_experts", "num_local_experts"}, absent.experts, absent.top_k);
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kBefore);
  f.norm_topk(router);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.01);
  f.rope(absent.theta);
}

void olmoe_config(ConfigFields& f) {
  f.sizes({50304, 2048, 16, 16, 4096, 1e-5});
  f.keys.optional({"clip_qkv"}, f.config.model.clip_qkv);
  olmo_fields(f, {.hidden = 2048, .experts = 64, .top_k = 8, .theta = 10000});
}

// Norms stand behind the parts, and none before them.
std::vector<HfTensor> flex_olmo_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    t.same(at.ours + "norm1.weight", {c.width}, at.theirs + "post_attention_layernorm.weight");
    t.same(at.ours + "norm2.weight", {c.width}, at.theirs + "post_feedforward_layernorm.weight");
    add_attention(t, c, l, at);
    add_experts(t, c, l, {}, at, fused);
  });
}

void flex_olmo_config(ConfigFields& f) {
  f.sizes({100352, 4096, 32, 32, 4096, 1e-6});
  f.no_padding();
  f.config.model.block = PostNormBlock();
  olmo_fields(f, {.hidden = 11008, .experts = 7, .top_k = 5, .theta = 500000});
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

extern constinit const HfFamily kFlexOlmo = {
    .model_type = "flex_olmo",
    .architecture = "FlexOlmoForCausalLM",
    .form = {.norm = NormForm::kRms,
             .block = PostNormBlock::kKind,
             .qk_norm = QkNorm::kWhole,
             .qkv_bias = true},
    .read_or_write = flex_olmo_config,
    .names = flex_olmo_names,
};

}  // namespace troupe::hf
