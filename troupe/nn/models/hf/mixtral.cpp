#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

std::vector<HfTensor> mixtral_names(const ModelConfig& c, bool fused) {
  const MoeStyle style = {"block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3",
                          "w2"};
  Table t;
  add_ends(t, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    const std::string ours = "layers." + std::to_string(i) + ".";
    const Prefix at = {ours, "model." + ours};
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_experts(t, c, l, style, at, fused);
  }
  return t.take();
}

}  // namespace troupe::hf
