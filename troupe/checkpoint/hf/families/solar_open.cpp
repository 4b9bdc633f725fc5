#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

void solar_open_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({196608, 4096, 48, 64, 131072, 1e-5});
  f.kv_heads(8);
  f.head_dim(128);
  f.qkv_bias_alone("attention_bias", false);
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1280});
  f.experts({"n_routed_experts", "num_local_experts"}, 128, 8);
  f.keys.field({"n_shared_experts"}, c.moe.shared.experts, int64_t{1});
  f.at_least_one(c.moe.shared.experts, "model.moe.shared.experts");
  f.keys.only("norm_topk_prob", true);
  // All its layers have experts: the class reads none of these.
  f.keys.pass({"intermediate_size", "first_k_dense_replace", "use_qk_norm", "num_mtp_layers",
               "num_nextn_predict_layers"},
              f.passed);
  f.sigmoid_router(1.0, 1, 1);
  f.rope(1000000);
}

}  // namespace

extern constinit const HfFamily kSolarOpen = {
    .model_type = "solar_open",
    .architecture = "SolarOpenForCausalLM",
    .form = {.partial_rope = true,
             .qkv_bias_alone = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind},
    .read_or_write = solar_open_config,
    .names = biased_moe_names,
    .skippable = module_left_out,
};

}  // namespace troupe::hf
