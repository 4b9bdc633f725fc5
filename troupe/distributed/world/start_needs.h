// What the start of a run of N ranks needs of a machine, beside what its model does:
//   files   of a rank    kOwnFiles + 2 to the store + its connections on the host
//           of rank 0    2 N more, where it serves the store (srun, mpirun, RANK and WORLD_SIZE)
//   ports   of a rank    2 to the store + its connections + kGroups, where groups listen
//   store   in rank 0    N kKeysOfRank kBytesOfKey
// A rank's connections on the host are N - 1 up to WorldOptions::most_in_mesh ranks, then those of
// the tree of sums (17) and of a ring (2).
#pragma once

#include <cstdint>

namespace troupe {

// Room for a rank's data files, libraries, devices and the groups of its layout.
inline constexpr int64_t kOwnFiles = 256, kGroups = 16;
// Heartbeat, rendezvous, texts of a dozen topics, addresses in its groups. PyTorch 2.11's server
// takes 345 bytes for a key of 150 with a value of 100, measured.
inline constexpr int64_t kKeysOfRank = 40, kBytesOfKey = 350;

struct StartNeeds {
  int64_t ranks = 1;
  int64_t files = 0, files_of_first = 0;
  int64_t ports = 0;  // of each rank
  int64_t store_bytes = 0;
};
StartNeeds start_needs(int64_t ranks);

// The most ranks whose rank 0 has enough with so many files; 0: not even one.
int64_t most_ranks_with(int64_t files);

}  // namespace troupe
