#include "troupe/train/recipe/offload_faults.h"

#include <algorithm>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

std::vector<std::string> offload_faults(const Recipe& r) {
  const int64_t layers = r.train.offload_layers;
  std::vector<std::string> out;
  if (layers <= 0) return out;
  if (layers > r.model.layers) {
    out.push_back("is " + std::to_string(layers) + ", and model.layers is " +
                  std::to_string(r.model.layers) + "; set it to that at most");
    return out;
  }
  const std::vector<bool> again = recomputed_blocks(r);
  const auto first = std::find(again.begin(), again.begin() + layers, true);
  if (first != again.begin() + layers) {
    out.push_back(
        "does not go with train.recompute of layer " + std::to_string(first - again.begin()) +
        ", which keeps nothing to offload; recompute layers from " + std::to_string(layers) +
        " on alone, or set it to " + std::to_string(first - again.begin()));
  }
  if (r.train.cuda_graph) {
    out.emplace_back(
        "does not go with train.cuda_graph, whose replays take memory as the captured step left "
        "it; leave one of them out");
  }
  if (r.parallel.overlap != Overlap::kNone) {
    out.emplace_back(
        "does not go with parallel.overlap, which runs the backward of one layer beside the "
        "forward of another; set parallel.overlap to none, or it to 0");
  }
  return out;
}

}  // namespace troupe
