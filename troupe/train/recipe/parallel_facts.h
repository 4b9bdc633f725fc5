// Facts of the keys of `parallel` (core/config/facts.h), beside their help in ParallelConfig::visit.
#pragma once

#include "troupe/core/config/facts.h"

namespace troupe {

inline constexpr AtMost kRanks{int64_t{1} << 20};

// In which layouts a key has something to do, and what a run that was given it says in others
// (without_effect of parallel.h).
struct ParallelConfig;
struct UsedIn {
  bool (*here)(const ParallelConfig& resolved);
  const char* otherwise;
};
bool sends_rows(const ParallelConfig& resolved);  // to experts of other ranks
bool counts_rows(const ParallelConfig& resolved);
bool knows_nodes(const ParallelConfig& resolved);
bool cuts_sequences(const ParallelConfig& resolved);
bool cuts_matrices(const ParallelConfig& resolved);
bool cuts_layers(const ParallelConfig& resolved);
bool cuts_all_state(const ParallelConfig& resolved);
inline constexpr UsedIn kOfRows{sends_rows,
                                "no rows go to other ranks: each has all experts (expert: 1)"};
inline constexpr UsedIn kOfRowsCounted{counts_rows, kOfRows.otherwise};
inline constexpr UsedIn kOfNodes{knows_nodes, "used only by dispatcher: two_level"};
inline constexpr UsedIn kOfContext{cuts_sequences,
                                   "no ranks share sequences: it is of context above 1"};
inline constexpr UsedIn kOfTensor{cuts_matrices,
                                  "no ranks share matrices: it is of tensor above 1"};
inline constexpr UsedIn kOfPipeline{cuts_layers,
                                    "one rank has all layers: it is of pipeline above 1"};
inline constexpr UsedIn kOfFullShard{cuts_all_state,
                                     "weights are whole on each rank: it is of shard: full"};

struct OfNccl {};  // Gloo has no use for it (without_nccl)
inline constexpr OfNccl kOfNccl{};

}  // namespace troupe
