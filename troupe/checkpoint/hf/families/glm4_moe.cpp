#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void glm4_moe_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({151552, 4096, 46, 96, 131072, 1e-5});
  f.kv_heads(8);
  f.head_dim(0);
  f.qkv_bias_alone("attention_bias", false);
  bool norm = c.qk_norm == QkNorm::kHead;
  f.keys.field({"use_qk_norm"}, norm, false);
  c.qk_norm = norm ? QkNorm::kHead : QkNorm::kNone;
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{10944});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1408});
  f.experts({"n_routed_experts", "num_local_experts"}, 128, 8);
  f.keys.field({"n_shared_experts"}, c.moe.shared.experts, int64_t{1});
  f.keys.field({"first_k_dense_replace"}, c.first_dense, int64_t{1});
  // Its class has no prediction modules; files may have one more layer, which is left out.
  if (f.keys.reads()) f.keys.at("num_mtp_layers");
  f.keys.at("num_nextn_predict_layers") = 0;
  f.keys.only("norm_topk_prob", true);
  f.sigmoid_router(1.0, 1, 1);
  f.rope(10000, 0.5);
}

}  // namespace

extern constinit const HfFamily kGlm4Moe = {
    .model_type = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .form = {.mixed_layers = true,
             .partial_rope = true,
             .qk_norm = QkNorm::kHead,
             .qk_norm_or_none = true,
             .qkv_bias_alone = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind},
    .read_or_write = glm4_moe_config,
    .names = biased_moe_names,
    .skippable = module_left_out,
};

}  // namespace troupe::hf
