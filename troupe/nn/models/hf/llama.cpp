#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {

std::vector<HfTensor> llama_names(const ModelConfig& c, bool /*fused*/) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_ffn(t, c, l, at);
  });
}

}  // namespace troupe::hf
