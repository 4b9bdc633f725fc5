// Text from a model while it trains: enough to see whether it learns. No cache: each token is a
// forward pass over the last `window` tokens.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/train/learner.h"

namespace troupe {

struct SampleOptions {
  int64_t tokens = 64;
  double temperature = 0.8;  // 0: the most probable, the lowest id of equals
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 0;
  int64_t window = 1024;
};

// The prompt and its continuation; ends early at the tokenizer's end of text. Valid UTF-8; the same
// arguments and weights give the same text.
std::string sample(Learner& learner, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options);

}  // namespace troupe
