// The names of a training state of DeepSeek-V3 with its module for multi-token prediction: 61 layers
// and one, 59 of them with 256 experts; of each tensor the weights and two moments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe::testing {

struct DeepSeekNames {
  static constexpr int64_t kLayers = 62, kDenseLayers = 3, kExperts = 256;
  static constexpr const char* kStates[] = {"model.", "optimizer.exp_avg.",
                                            "optimizer.exp_avg_sq."};

  // What is no expert's, of a layer: a weight's name in the model and its number of rows.
  static std::vector<std::string> dense_of(int64_t layer) {
    const std::string of = "layers." + std::to_string(layer) + '.';
    std::vector<std::string> out;
    for (const char* name : {"attention.norm", "attention.q_down", "attention.q_norm",
                             "attention.q_up", "attention.kv_down", "attention.kv_norm",
                             "attention.kv_up", "attention.out", "ffn.norm"}) {
      out.push_back(of + name);
    }
    const std::vector<const char*> ffn =
        layer < kDenseLayers ? std::vector<const char*>{"ffn.w1", "ffn.w2"}
                             : std::vector<const char*>{"moe.router.weight", "moe.router.bias",
                                                        "moe.shared.w1", "moe.shared.w2"};
    for (const char* name : ffn) out.push_back(of + name);
    if (layer == 0) out.push_back("embed.tokens");
    if (layer == kLayers - 1) {
      for (const char* name : {"head.norm", "head.weight"}) out.emplace_back(name);
    }
    return out;
  }
  static bool has_experts(int64_t layer) { return layer >= kDenseLayers; }
  static std::string expert_of(int64_t layer, int64_t expert, const char* weight) {
    return "layers." + std::to_string(layer) + ".moe.experts." + std::to_string(expert) + '.' +
           weight;
  }
  // All of the state, in the order of layers.
  static std::vector<std::string> all() {
    std::vector<std::string> out;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (const char* state : kStates) {
        for (const std::string& name : dense_of(layer)) out.push_back(state + name);
        for (int64_t e = 0; has_experts(layer) && e < kExperts; ++e) {
          for (const char* w : {"w1", "w2"}) out.push_back(state + expert_of(layer, e, w));
        }
      }
    }
    return out;
  }
};

}  // namespace troupe::testing
