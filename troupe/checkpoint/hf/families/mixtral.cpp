#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> mixtral_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_experts(t, c, l, mixtral_style(), at, fused);
  });
}

void mixtral_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({32000, 4096, 32, 32, 131072, 1e-5});
  f.kv_heads(8);
  f.head_dim(0);
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{14336});
  f.experts({"num_local_experts", "num_experts"}, 8, 2);
  std::optional<int64_t> window;
  if (c.window > 0) window = c.window;
  f.keys.optional({"sliding_window"}, window);
  c.window = window.value_or(0);
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kAfter);
  f.always_sums_to_one(router, true);
  f.keys.field({"router_jitter_noise"}, router.gate.jitter, 0.0);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.001);
  f.rope(1e6);
}

}  // namespace

extern constinit const HfFamily kMixtral = {
    .model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .form = {.window = true, .sums_to_one = true},
    .read_or_write = mixtral_config,
    .names = mixtral_names,
};

}  // namespace troupe::hf
