#include "troupe/train/parallel.h"

#include <algorithm>
#include <numeric>

#include "troupe/dist/mesh.h"

namespace troupe {

MeshShape shape_of(const ParallelConfig& c) {
  return {.tensor = c.tensor,
          .context = c.context,
          .pipeline = c.pipeline,
          .expert = c.expert,
          .shard = c.shard == ShardKind::kNone ? 1 : c.shard_ranks};
}

ParallelConfig resolved(const ParallelConfig& config, const LayoutNeeds& needs) {
  ParallelConfig out = config;
  if (out.shard == ShardKind::kAuto) {
    out.shard = needs.whole_matrices ? ShardKind::kNone : ShardKind::kZero1;
  }
  // As many ranks as share the experts evenly: the fewest bytes of weights, and of gradients sent.
  if (out.expert == 0) out.expert = needs.experts > 0 ? std::gcd(needs.world, needs.experts) : 1;
  return out;
}

std::vector<std::pair<std::string, std::string>> unbuilt_axes(const ParallelConfig& config) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, ranks] :
       {std::pair{"tensor", config.tensor}, std::pair{"pipeline", config.pipeline},
        std::pair{"context", config.context}}) {
    if (ranks == 1) continue;
    out.emplace_back("parallel." + std::string(name),
                     std::to_string(ranks) + ": this version runs one rank along this axis");
  }
  return out;
}

std::vector<std::string> layout_faults(const ParallelConfig& config, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  for (const auto& [field, why] : unbuilt_axes(config)) out.push_back(field + ": E2005 " + why);
  const ParallelConfig c = resolved(config, needs);
  if (out.empty()) out = Mesh::faults(needs.world, shape_of(c));
  if (config.data != 0 && config.data != needs.world) {
    out.push_back("parallel.data: E2005 " + std::to_string(config.data) + " replicas on " +
                  std::to_string(needs.world) + " ranks; leave it out, or start that many");
  }
  const int64_t low = std::min(c.expert, needs.experts), high = std::max(c.expert, needs.experts);
  if (c.expert > 1 && (low == 0 || high % low != 0)) {
    out.push_back("parallel.expert: E2005 " + std::to_string(needs.experts) + " experts on " +
                  std::to_string(c.expert) + " ranks: neither divides the other; nearest: " +
                  std::to_string(std::max<int64_t>(1, std::gcd(c.expert, needs.experts))));
  } else if (needs.whole_matrices && c.expert > needs.experts && c.expert > 1) {
    out.push_back("parallel.expert: E2005 " + std::to_string(c.expert) +
                  " ranks cut the matrices of " + std::to_string(needs.experts) +
                  " experts, which the optimizer needs whole: at most " +
                  std::to_string(needs.experts));
  }
  return out;
}

}  // namespace troupe
