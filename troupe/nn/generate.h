// Text from a model, token by token, with a KV cache: what is drawn is what the training forward
// gives at the same place.
#pragma once

#include <functional>
#include <vector>

#include "troupe/nn/models/model.h"
#include "troupe/nn/sampler.h"

namespace troupe {

struct GenerateConfig {
  SampleConfig sample;
  int64_t max_tokens = 128;
  std::vector<int64_t> stop = {};  // ids that end the text; they are not part of it

  static void visit(auto& c, auto&& f) {
    SampleConfig::visit(c.sample, f);
    f("max_tokens", c.max_tokens);
    f("stop", c.stop);
  }
};

// The tokens that follow `prompt`, which is not empty. `on_token` gets each as it comes and may end
// the text by returning false. `sequence` tells several texts of one seed apart.
std::vector<int64_t> generate(Model& model, const std::vector<int64_t>& prompt,
                              const GenerateConfig& config,
                              const std::function<bool(int64_t token)>& on_token = {},
                              uint32_t sequence = 0);

}  // namespace troupe
