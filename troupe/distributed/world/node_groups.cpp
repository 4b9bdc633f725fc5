#include "troupe/distributed/world/node_groups.h"

#include <utility>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {

NodeGroups node_groups(World& world, std::shared_ptr<ProcessGroup> all, int64_t ranks_per_node,
                       const std::string& channel, const GroupOptions& how) {
  const int64_t W = all->size(), R = ranks_per_node;
  if (R < 1 || W % R != 0) {
    fail(Code::kBadValue, "parallel.node_ranks", W, "ranks cannot be cut into nodes of", R);
  }
  const int64_t node = all->rank() / R, place = all->rank() % R;
  std::vector<int64_t> across, within;
  for (int64_t n = 0; n < W / R; ++n) {
    across.push_back(all->ranks()[static_cast<size_t>(n * R + place)]);
  }
  for (int64_t r = 0; r < R; ++r) {
    within.push_back(all->ranks()[static_cast<size_t>(node * R + r)]);
  }
  if (W == 1) return {all, all, all};
  NodeGroups out{.all = std::move(all), .across = world.group(across, channel, how), .within = {}};
  out.within = world.group(within, channel, how);
  return out;
}

}  // namespace troupe
