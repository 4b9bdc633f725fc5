#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> deepseek_names(const ModelConfig& c, bool fused) {
  std::vector<HfTensor> all =
      layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
        add_latent_block(t, c, l, at, fused);
      });
  // An MTP module is one more layer, with copies of the embedding and of the head.
  for (int64_t d = 0; d < c.mtp.depth; ++d) {
    const std::string ours = "head.mtp." + std::to_string(d) + ".";
    const std::string theirs = "model.layers." + std::to_string(c.layers + d) + ".";
    Table m;
    m.same(ours + "token_norm.weight", {c.width}, theirs + "enorm.weight");
    m.same(ours + "hidden_norm.weight", {c.width}, theirs + "hnorm.weight");
    m.same(ours + "proj.weight", {c.width, 2 * c.width}, theirs + "eh_proj.weight");
    m.same(ours + "norm.weight", {c.width}, theirs + "shared_head.norm.weight");
    add_latent_block(m, c, layer_config(c, c.layers + d), {ours + "block.", theirs}, fused);
    for (HfTensor& x : m.take()) all.push_back(std::move(x));
    for (HfTensor& x : all) {
      if (x.name == "embed.tokens") x.copies.push_back(theirs + "embed_tokens.weight");
      const bool head = x.name == (c.tie_embeddings ? "embed.tokens" : "head.weight");
      if (head) x.copies.push_back(theirs + "shared_head.head.weight");
    }
  }
  return all;
}

void v2_router(ConfigFields& f) {
  TopkSoftmaxRouting& router = f.softmax(SoftmaxOrder::kBefore);
  if (f.keys.reads()) router.balance = {};
  f.keys.only("scoring_func", std::string("softmax"));
  f.always_sums_to_one(router, false);
  f.keys.only("norm_topk_prob", false);
  f.keys.field({"routed_scaling_factor"}, router.scale, 1.0);
  std::string method = router.limit.groups > 1 ? "group_limited_greedy" : "greedy";
  f.keys.field({"topk_method"}, method, std::string("greedy"));
  const bool grouped = method == "group_limited_greedy";
  if (!grouped && method != "greedy") {
    f.keys.refuse("topk_method", "greedy and group_limited_greedy are supported");
  }
  std::optional<int64_t> groups, keep;
  if (grouped) groups = router.limit.groups, keep = router.limit.keep;
  f.keys.optional({"n_group"}, groups);
  f.keys.optional({"topk_group"}, keep);
  if (f.keys.reads() && grouped) {
    router.limit = {.groups = groups.value_or(1), .keep = keep.value_or(1), .top = 1};
  }
}

void v3_router(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.keys.only("rope_interleave", true);
  f.keys.only("scoring_func", std::string("sigmoid"));
  f.keys.only("topk_method", std::string("noaux_tc"));
  f.keys.only("norm_topk_prob", true);
  f.keys.field({"num_nextn_predict_layers"}, c.mtp.depth, int64_t{1});
  f.sigmoid_router(2.5, 8, 4);
}

void deepseek_config(ConfigFields& f, bool v3) {
  ModelConfig& c = f.config.model;
  v3 ? f.sizes({129280, 7168, 61, 128, 4096, 1e-6}) : f.sizes({102400, 4096, 32, 32, 2048, 1e-6});
  f.latent_attention(
      {.q_rank = 0, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128});
  f.keys.pass({"aux_loss_alpha", "mlp_bias"}, f.passed);
  f.keys.field({"intermediate_size"}, c.ffn, v3 ? int64_t{18432} : int64_t{11008});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, v3 ? int64_t{2048} : int64_t{1407});
  f.experts({"n_routed_experts", "num_local_experts"}, v3 ? 256 : 64, v3 ? 8 : 6);
  f.keys.field({"n_shared_experts"}, c.moe.shared.experts, v3 ? int64_t{1} : int64_t{2});
  f.keys.field({"first_k_dense_replace"}, c.first_dense, v3 ? int64_t{3} : int64_t{0});
  f.keys.only("moe_layer_freq", int64_t{1});
  v3 ? v3_router(f) : v2_router(f);
  f.rope(10000);
}

void deepseek_v2_config(ConfigFields& f) {
  deepseek_config(f, false);
}

void deepseek_v3_config(ConfigFields& f) {
  deepseek_config(f, true);
}

}  // namespace

extern constinit const HfFamily kDeepseekV2 = {
    .model_type = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .form = {.mixed_layers = true, .mla = true, .shared = true, .scaled_and_limited = true},
    .read_or_write = deepseek_v2_config,
    .names = deepseek_names,
};

extern constinit const HfFamily kDeepseekV3 = {
    .model_type = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .form = {.mixed_layers = true,
             .mla = true,
             .mtp = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind},
    .read_or_write = deepseek_v3_config,
    .names = deepseek_names,
    .skippable = module_left_out,
};

}  // namespace troupe::hf
