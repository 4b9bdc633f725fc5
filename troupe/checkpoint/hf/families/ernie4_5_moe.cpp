#include <algorithm>
#include <iterator>

#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

std::vector<HfTensor> ernie_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    if (!l.moe) return add_ffn(t, c, l, at);
    add_experts(t, c, l, {}, at, fused);
    const std::string bias = fused ? "mlp.gate.moe_statics.e_score_correction_bias"
                                   : "mlp.moe_statics.e_score_correction_bias";
    const int64_t E = l.moe->experts;
    t.add(at.ours + "moe.router.balance_bias", {E},
          {piece(at.theirs + bias, {1, E}, 0, E, {0, 1, 1})});
    t.last().fp32 = true;
    if (l.moe->shared.experts > 0) add_shared(t, c, l, at, "mlp.shared_experts.");
  });
}

// Layers from the first to the last one whose number, counted from 1, the interval divides.
bool is_spaced(const std::vector<bool>& moe, int64_t first, int64_t last, int64_t interval) {
  for (int64_t i = 0; i < std::ssize(moe); ++i) {
    const bool has = first <= i && i <= last && (i + 1) % interval == 0;
    if (moe[static_cast<size_t>(i)] != has) return false;
  }
  return true;
}

void ernie_layers(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  int64_t first = c.layers, last = -1, interval = 1;
  std::vector<bool> moe;
  for (int64_t i = 0; !f.keys.reads() && i < c.layers; ++i) {
    moe.push_back(layer_config(c, i).moe.has_value());
    if (moe.back()) first = std::min(first, i), last = i;
  }
  while (!moe.empty() && interval < c.layers && !is_spaced(moe, first, last, interval)) ++interval;
  if (!moe.empty() && !is_spaced(moe, first, last, interval)) {
    f.keys.refuse("moe_layer_interval", "this family has its experts in evenly spaced layers");
  }
  f.keys.field({"moe_layer_start_index"}, first, int64_t{1});
  f.keys.field({"moe_layer_end_index"}, last, int64_t{-1});
  f.keys.field({"moe_layer_interval"}, interval, int64_t{1});
  if (!f.keys.reads()) return;
  if (interval < 1) f.keys.refuse("moe_layer_interval", "at least 1 is expected");
  if (last == -1) last = c.layers - 1;
  for (int64_t i = 0; i < c.layers; ++i) {
    moe.push_back(first <= i && i <= last && (i + 1) % interval == 0);
  }
  c.moe.layers = moe.empty() ? "1" : pattern_of(moe);
}

void ernie_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({103424, 2560, 28, 20, 131072, 1e-5});
  if (f.keys.reads() && f.keys.is_missing("tie_word_embeddings")) c.tie_embeddings = true;
  f.no_padding();
  f.kv_heads(4);
  f.head_dim(0);
  f.keys.only("use_bias", false);
  if (f.keys.reads()) c.qkv_bias = c.out_bias = false;
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{12288});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1536});
  f.keys.field({"moe_num_experts", "num_experts"}, c.moe.experts, int64_t{64});
  f.keys.field({"moe_k", "num_experts_per_tok"}, c.moe.top_k, int64_t{6});
  if (c.moe.top_k < 2 || c.moe.top_k > c.moe.experts) {
    f.keys.refuse("moe_k", "2 to " + std::to_string(c.moe.experts) +
                               " is expected: a lone expert's weight would always be 1");
  }
  f.keys.field({"moe_num_shared_experts"}, c.moe.shared.experts, int64_t{2});
  f.keys.only("moe_norm_min", 1e-12);
  ernie_layers(f);
  SigmoidBiasRouting& router = f.biased_router(IndependentScore::kSoftmax);
  f.aux_loss(f.keys, "router_aux_loss_coef", router.balance, 0.001);
  f.keys.pass({"num_nextn_predict_layers"}, f.passed);
  c.rope.interleaved = true;
  f.rope(500000);
}

// Its class has no prediction modules; the hub's files may have them.
bool is_mtp(const ModelConfig&, std::string_view name) {
  return name.starts_with("model.mtp_");
}

}  // namespace

extern constinit const HfFamily kErnie45Moe = {
    .model_type = "ernie4_5_moe",
    .architecture = "Ernie4_5_MoeForCausalLM",
    .form = {.mixed_layers = true,
             .interleaved = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind,
             .plain_bias = true,
             .score = IndependentScore::kSoftmax},
    .read_or_write = ernie_config,
    .names = ernie_names,
    .skippable = is_mtp,
};

}  // namespace troupe::hf
