#include "troupe/distributed/world/start_needs.h"

#include <algorithm>

#include "troupe/distributed/world/world.h"

namespace troupe {
namespace {

constexpr int64_t kOfStore = 2, kOfTree = 17, kOfRing = 2;  // connections

}  // namespace

StartNeeds start_needs(int64_t ranks) {
  if (ranks <= 1) return {.ranks = ranks, .files = kOwnFiles, .files_of_first = kOwnFiles};
  const bool mesh = ranks <= WorldOptions().most_in_mesh;
  const int64_t others = mesh ? ranks - 1 : kOfTree + kOfRing;
  const int64_t files = kOwnFiles + kOfStore + others;
  return {.ranks = ranks,
          .files = files,
          .files_of_first = files + kOfStore * ranks,
          .ports = kOfStore + others + kGroups,
          .store_bytes = ranks * kKeysOfRank * kBytesOfKey};
}

// What rank 0 needs falls where the mesh ends, so of the two ranges the larger is asked first.
int64_t most_ranks_with(int64_t files) {
  const int64_t mesh = WorldOptions().most_in_mesh;
  const int64_t tree = (files - kOwnFiles - kOfStore - kOfTree - kOfRing) / kOfStore;
  if (tree > mesh) return tree;
  const int64_t few = (files - kOwnFiles - kOfStore + 1) / (kOfStore + 1);
  if (few >= 2) return std::min(few, mesh);
  return files >= kOwnFiles ? 1 : 0;
}

}  // namespace troupe
