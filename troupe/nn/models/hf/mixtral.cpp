#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

std::vector<HfTensor> mixtral_names(const ModelConfig& c, bool fused) {
  const MoeStyle style = {"block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3",
                          "w2"};
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_experts(t, c, l, style, at, fused);
  });
}

}  // namespace troupe::hf
