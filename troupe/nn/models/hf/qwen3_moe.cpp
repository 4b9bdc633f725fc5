#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

// OLMoE has the same names; its q_norm and k_norm are of the whole projection.
std::vector<HfTensor> qwen3_moe_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    l.moe ? add_experts(t, c, l, {}, at, fused) : add_ffn(t, c, l, at);
  });
}

}  // namespace troupe::hf
