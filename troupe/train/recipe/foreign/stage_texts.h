// Megatron-LM's and torchtitan's ways to say which layers a pipeline's stages have, in the notation
// of schedule/stage_map.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// A layout: its letters as they are, or Python's list of lists of "embedding", "decoder", "mtp" and
// "loss", with a list for each stage. Empty: it is neither.
std::string stages_of_layout(const std::string& layout);

struct StageCounts {
  int64_t layers = 0, mtp = 0, pipeline = 1;
  std::optional<int64_t> first = {}, last = {};  // blocks of these stages
  bool embedding = false, loss = false;          // count as a block
};
// "Et*3|(t*4|)*4,t*3,L": one stage a rank. Empty: what is left does not divide.
std::string stages_of_counts(const StageCounts& counts);

// torchtitan's. Empty: what is given has not all of the layers, in order.
//   of modules   the names in each stage: tok_embeddings, layers.0 .., norm, output
//   of points    the names that begin all stages but the first
//   of weights   layers, and `in` and `out` for embedding and head, dealt evenly to so many stages,
//                the first ones one more; the first stage has `in` layers less, the last `out`
std::string stages_of_modules(const std::vector<std::vector<std::string>>& stages, int64_t layers);
std::string stages_of_points(const std::vector<std::string>& points, int64_t layers);
std::string stages_of_weights(int64_t layers, int64_t stages, int64_t in, int64_t out);

}  // namespace troupe
