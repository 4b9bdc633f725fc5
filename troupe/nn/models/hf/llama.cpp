#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

std::vector<HfTensor> llama_names(const ModelConfig& c, bool /*fused*/) {
  Table t;
  add_ends(t, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    const std::string ours = "layers." + std::to_string(i) + ".";
    const Prefix at = {ours, "model." + ours};
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_ffn(t, c, l, at);
  }
  return t.take();
}

}  // namespace troupe::hf
