#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> minimax_m2_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_experts(t, c, l, mixtral_style(), at, fused);
    add_choice_bias(
        t, l, at,
        fused ? "mlp.e_score_correction_bias" : "block_sparse_moe.e_score_correction_bias");
  });
}

// Files of the hub say how many dimensions turn; the class has a fraction.
void turned_dimensions(ConfigFields& f) {
  if (!f.keys.reads() || !f.keys.has("rotary_dim")) return;
  int64_t turned = 0;
  f.keys.field({"rotary_dim"}, turned, int64_t{0});
  const int64_t all = f.config.model.head_dim;
  if (turned < 1 || turned > all) f.keys.refuse("rotary_dim", "is not of a head's dimensions");
  f.config.model.rope.fraction = static_cast<double>(turned) / static_cast<double>(all);
}

void minimax_m2_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({200064, 3072, 62, 48, 196608, 1e-6});
  f.kv_heads(8);
  f.head_dim(128);
  if (f.keys.reads()) c.qkv_bias = c.out_bias = false;
  f.keys.only("use_qk_norm", true);
  f.keys.only("qk_norm_type", std::string("per_layer"));
  c.qk_norm = QkNorm::kWhole;
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{1536});
  f.experts({"num_local_experts", "num_experts"}, 256, 8);
  f.keys.only("scoring_func", std::string("sigmoid"));
  f.keys.only("use_routing_bias", true);
  f.keys.only("shared_intermediate_size", int64_t{0});
  f.keys.only("router_jitter_noise", 0.0);
  SigmoidBiasRouting& router = f.biased_router(IndependentScore::kSigmoid);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.001);
  // Its class has no prediction modules; the hub's files may have them.
  f.keys.pass({"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}, f.passed);
  f.rope(5000000);
  turned_dimensions(f);
}

}  // namespace

extern constinit const HfFamily kMinimaxM2 = {
    .model_type = "minimax_m2",
    .architecture = "MiniMaxM2ForCausalLM",
    .form = {.partial_rope = true,
             .qk_norm = QkNorm::kWhole,
             .router = SigmoidBiasRouting::kKind,
             .plain_bias = true},
    .read_or_write = minimax_m2_config,
    .names = minimax_m2_names,
    .skippable = module_left_out,
};

}  // namespace troupe::hf
