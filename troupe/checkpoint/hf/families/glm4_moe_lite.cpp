#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> glm4_moe_lite_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_latent_block(t, c, l, at, fused);
  });
}

// "mlp_layer_types", dense or sparse each; where there are none the first alone is dense.
void sparse_layers(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  std::vector<bool> sparse;
  for (int64_t i = 0; !f.keys.reads() && i < c.layers; ++i) {
    sparse.push_back(layer_config(c, i).moe.has_value());
  }
  const auto read = f.words_of_layers("mlp_layer_types", {"sparse", "dense"}, sparse);
  if (!f.keys.reads()) return;
  if (!read) return void(c.first_dense = 1);
  c.moe.layers = pattern_of(*read);
}

void glm4_moe_lite_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({154880, 2048, 47, 20, 202752, 1e-5});
  if (f.keys.reads() && f.keys.is_missing("q_lora_rank")) f.keys.at("q_lora_rank") = 768;
  f.latent_attention({.kv_rank = 512, .nope_dim = 192, .rope_dim = 64, .value_dim = 256});
  f.keys.only("rope_interleave", true);
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{10240});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1536});
  f.experts({"n_routed_experts", "num_local_experts"}, 64, 4);
  f.keys.field({"n_shared_experts"}, c.moe.shared.experts, int64_t{1});
  f.at_least_one(c.moe.shared.experts, "model.moe.shared.experts");
  sparse_layers(f);
  f.keys.only("norm_topk_prob", true);
  // Its class has no prediction modules; files may have one more layer, which is left out.
  if (f.keys.reads()) f.keys.at("num_mtp_layers");
  f.keys.at("num_nextn_predict_layers") = 0;
  f.keys.pass({"pretraining_tp", "scoring_func", "topk_method", "first_k_dense_replace"}, f.passed);
  f.sigmoid_router(1.8, 1, 1);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kGlm4MoeLite = {
    .model_type = "glm4_moe_lite",
    .architecture = "Glm4MoeLiteForCausalLM",
    .form = {.mixed_layers = true,
             .mla = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind},
    .read_or_write = glm4_moe_lite_config,
    .names = glm4_moe_lite_names,
    .skippable = module_left_out,
};

}  // namespace troupe::hf
