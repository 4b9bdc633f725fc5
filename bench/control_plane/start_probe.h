// What Worlds that are whole ask of the system, which the ranks of simulated_world.h are not: their
// connections, and the keys of their groups.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/distributed/mesh/process_mesh.h"

namespace troupe::control_plane {

struct Connections {
  int64_t ranks = 0;
  int64_t descriptors = 0;  // of all ranks, when each has its groups
  int64_t longest_key = 0, keys = 0;
};
// So many Worlds with their ParallelStates, threads of this process that meet over TCP, on the CPU.
// `most_in_mesh`: as in WorldOptions.
Connections connections_of(int64_t ranks, const MeshShape& shape, int64_t most_in_mesh = 64);

struct GroupKey {
  std::string kind;         // the group of rank 0 whose list of ranks is the longest text
  int64_t ranks = 0;        // of it
  int64_t longest_key = 0;  // that the store holds once rank 0 has begun to make it
  bool is_stored = false;   // the store took a key of the group
  std::string said;         // how it ended: the other ranks are not there
};
// A whole World as rank 0 of so many, whose other ranks have written that they are there and do no
// more. It makes one group and waits for its peers for a second.
GroupKey group_key_of(int64_t ranks, const MeshShape& shape);

}  // namespace troupe::control_plane
