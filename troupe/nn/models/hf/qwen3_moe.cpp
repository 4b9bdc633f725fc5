#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

// OLMoE has the same names; its q_norm and k_norm are of the whole projection.
std::vector<HfTensor> qwen3_moe_names(const ModelConfig& c, bool fused) {
  Table t;
  add_ends(t, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    const std::string ours = "layers." + std::to_string(i) + ".";
    const Prefix at = {ours, "model." + ours};
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    if (l.moe) {
      add_experts(t, c, l, {}, at, fused);
    } else {
      add_ffn(t, c, l, at);
    }
  }
  return t.take();
}

}  // namespace troupe::hf
