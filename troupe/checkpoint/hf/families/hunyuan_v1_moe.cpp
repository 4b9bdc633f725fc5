#include <algorithm>
#include <cmath>

#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> hunyuan_names(const ModelConfig& c, bool fused) {
  MoeStyle style;
  style.router = style.fused_router = "mlp.gate.wg.weight";
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at, {"query_layernorm", "key_layernorm"});
    add_experts(t, c, l, style, at, fused);
    add_shared(t, c, l, at, "mlp.shared_mlp.");
  });
}

// A number, or a list of the same for each layer.
void same_in_all(ConfigFields& f, const char* name) {
  Json& value = f.keys.at(name);
  if (!f.keys.reads() || !value.is_array() || value.empty()) return;
  const Json first = value[0];
  for (const Json& item : value) {
    if (item != first) f.keys.refuse(name, "one number for all layers is supported");
  }
  value = first;
}

// "dynamic" with an alpha is another theta: theta alpha^(n / (n - 2)) of n dimensions.
void alpha_rope(ConfigFields& f) {
  if (!f.keys.reads()) return;
  const ModelConfig& c = f.config.model;
  const int64_t n = c.head_dim > 0 ? c.head_dim : c.width / std::max<int64_t>(c.heads, 1);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!f.keys.has(name) || !f.keys.at(name).is_object()) continue;
    Json& scaling = f.keys.at(name);
    const std::string type = scaling.value("rope_type", scaling.value("type", std::string()));
    if (type != "dynamic" || !scaling.contains("alpha") || n < 4) continue;
    const Json& flat = f.keys.at("rope_theta");
    const double theta = scaling.value("rope_theta", flat.is_number() ? flat.get<double>() : 1e4);
    const double exponent = static_cast<double>(n) / static_cast<double>(n - 2);
    const double alpha = scaling["alpha"].get<double>();
    f.keys.at("rope_scaling") = nullptr;
    f.keys.at("rope_theta") = nullptr;
    f.keys.at("rope_parameters") =
        Json{{"rope_type", "default"}, {"rope_theta", theta * std::pow(alpha, exponent)}};
    f.config.notes.emplace_back("rope: alpha is part of theta, here and in exports");
    return;
  }
}

void hunyuan_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({290943, 4096, 32, 32, 2048, 1e-5});
  f.no_padding();
  f.kv_heads({});
  f.head_dim(0);
  f.attention_bias(false);
  f.keys.only("use_qk_norm", true);
  c.qk_norm = QkNorm::kHeadTurned;
  f.keys.field({"intermediate_size"}, c.moe.ffn.hidden, int64_t{11008});
  same_in_all(f, "num_experts");
  same_in_all(f, "moe_topk");
  f.keys.field({"num_experts", "num_local_experts"}, c.moe.experts, int64_t{1});
  f.keys.field({"moe_topk", "num_experts_per_tok"}, c.moe.top_k, int64_t{1});
  if (c.moe.experts < 1) f.keys.refuse("num_experts", "at least 1 is expected");
  if (c.moe.top_k < 1 || c.moe.top_k > c.moe.experts) {
    f.keys.refuse("moe_topk", "1 to " + std::to_string(c.moe.experts) + " is expected");
  }
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kBefore);
  if (f.keys.reads()) {
    router.p_norm = 1;
    router.balance = {};
    c.moe.shared.experts = 1;
  } else if (c.moe.shared.width_for(c.moe.ffn.hidden) != c.moe.ffn.hidden) {
    f.keys.refuse("intermediate_size", "this family's shared expert is as wide as the others");
  }
  f.always_sums_to_one(router, true);
  f.keys.pass({"eod_token_id", "sep_token_id"}, f.passed);
  alpha_rope(f);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kHunyuanMoe = {
    .model_type = "hunyuan_v1_moe",
    .architecture = "HunYuanMoEV1ForCausalLM",
    .form = {.qk_norm = QkNorm::kHeadTurned, .qkv_bias = true, .shared = true, .sums_to_one = true},
    .read_or_write = hunyuan_config,
    .names = hunyuan_names,
};

}  // namespace troupe::hf
