// The next token from one row of logits. In this order:
//   repetition_penalty r   logits of tokens seen before: divided by r where positive, else times r
//   temperature t          divided by t; 0: greedy, the largest logit, ties to the lower id
//   top_k                  the k largest alone; 0: all
//   top_p                  the fewest of largest probability whose sum reaches p, at least one
//   min_p                  those of at least min_p times the largest probability
// Then one draw from the softmax of what is left: a function of seed and place alone
// (core/number/rng.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

struct SampleConfig {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  uint64_t seed = 0;

  static void visit(auto& c, auto&& f) {
    f("temperature", c.temperature);
    f("top_k", c.top_k);
    f("top_p", c.top_p);
    f("min_p", c.min_p);
    f("repetition_penalty", c.repetition_penalty);
    f("seed", c.seed);
  }
};
void validate(const SampleConfig& config);  // throws with the field that is wrong

// `seen`: the tokens so far. `place`: number of the draw, and which of several sequences.
struct DrawPlace {
  int64_t index = 0;
  uint32_t sequence = 0;
};
int64_t sample(std::vector<float> logits_V, std::span<const int64_t> seen,
               const SampleConfig& config, const DrawPlace& place);

}  // namespace troupe
