// What llama.cpp calls a family, and which of its models it computes.
#pragma once

#include <string>
#include <string_view>

#include "troupe/checkpoint/hf/hf_config.h"

namespace troupe::gguf {

struct Family {
  std::string_view model_type;    // of config.json
  std::string_view architecture;  // of theirs
  bool turned = false;            // queries' and keys' rows are interleaved
  bool own_expert_width = false;  // "expert_feed_forward_length"; else feed_forward_length is it
  bool joined_qkv = false;
  // "": llama.cpp computes it; else what it does not, with the key of the model first.
  std::string (*unlike)(const ModelConfig& c);
};

const Family& family_of(const HfConfig& config);  // E4008 where there is none
std::string model_types();

// Throws E4008 for a model that differs from what llama.cpp computes.
void require_computed(const Family& family, const ModelConfig& config);

bool sums_to_one(const ModelConfig& config);  // a token's weights do, before their scale

}  // namespace troupe::gguf
