// The groups of the two-level dispatcher, made of a world.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "troupe/distributed/dispatch/dispatcher_config.h"
#include "troupe/distributed/world/world.h"

namespace troupe {

// Cuts `all` into nodes of R of its ranks, one after another: hosts, or parts of one. E2005 where R
// does not divide them. Each rank of `all` makes this call.
NodeGroups node_groups(World& world, std::shared_ptr<ProcessGroup> all, int64_t ranks_per_node,
                       const std::string& channel = {}, const GroupOptions& how = {});

}  // namespace troupe
