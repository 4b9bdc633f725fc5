#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

// Layers from "max_window_layers" on have the window, or those of "layer_types".
void windows(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  const int64_t window = f.window_size(c.window > 0, 4096);
  int64_t first = c.layers;
  f.keys.field({"max_window_layers"}, first, int64_t{62});
  if (!f.keys.reads()) return void(f.layer_types());
  c.window = window, c.window_layers = "1";
  if (f.layer_types()) return;
  std::vector<bool> have;
  for (int64_t i = 0; i < c.layers; ++i) have.push_back(i >= first);
  if (first >= c.layers) c.window = 0;
  if (c.window > 0) c.window_layers = pattern_of(have);
}

void dots1_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.sizes({152064, 4608, 62, 32, 2048, 1e-6});
  f.kv_heads(32);
  f.head_dim(0);
  f.attention_bias(false);
  c.qk_norm = QkNorm::kHead;
  windows(f);
  f.keys.field({"intermediate_size"}, c.ffn, int64_t{10944});
  f.keys.field({"moe_intermediate_size"}, c.moe.ffn.hidden, int64_t{1408});
  f.experts({"n_routed_experts", "num_local_experts"}, 0, 0);
  f.keys.field({"n_shared_experts"}, c.moe.shared.experts, int64_t{0});
  f.at_least_one(c.moe.shared.experts, "model.moe.shared.experts");
  f.keys.field({"first_k_dense_replace"}, c.first_dense, int64_t{0});
  bool sums = true;
  f.keys.field({"norm_topk_prob"}, sums, false);
  if (!sums) f.keys.refuse("norm_topk_prob", "is supported as true alone");
  // Files of the hub have them; the class reads none.
  f.keys.pass({"scoring_func", "topk_method", "moe_layer_freq", "use_sliding_window"}, f.passed);
  f.sigmoid_router(1.0, 1, 1);
  f.rope(10000);
}

}  // namespace

extern constinit const HfFamily kDots1 = {
    .model_type = "dots1",
    .architecture = "Dots1ForCausalLM",
    .form = {.mixed_layers = true,
             .window = true,
             .qk_norm = QkNorm::kHead,
             .qkv_bias = true,
             .shared = true,
             .router = SigmoidBiasRouting::kKind},
    .read_or_write = dots1_config,
    .names = biased_moe_names,
};

}  // namespace troupe::hf
