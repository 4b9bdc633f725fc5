// All ranks of a run in one step, as far as messages go: which list each executes, which groups it
// is in, how many rows its microbatches have, what a unit's forward calls. Plain numbers, so that a
// test can plant a fault; train/forecast/mesh_world.h makes them of a mesh.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

// What a rank calls a group for. A parameter is cut over tensor ranks, whole on each, or of experts;
// ranks of one shard hold a copy of its state together, replicas the same part of each copy. Tables
// are read by two stages, whose copies are replicas of each other.
enum class GroupRole : uint8_t {
  kTensor,
  kContext,
  kMicrobatch,
  kExperts,
  kStage,
  kWorld,
  kCutShard,
  kCutReplicas,
  kCutTableReplicas,
  kWholeShard,
  kWholeReplicas,
  kWholeTableReplicas,
  kExpertShard,
  kExpertReplicas,
};
inline constexpr int kGroupRoles = 14;
constexpr auto names_of(GroupRole) {
  return std::array{Named{"tensor", GroupRole::kTensor},
                    Named{"context", GroupRole::kContext},
                    Named{"microbatch", GroupRole::kMicrobatch},
                    Named{"experts", GroupRole::kExperts},
                    Named{"stage", GroupRole::kStage},
                    Named{"world", GroupRole::kWorld},
                    Named{"shard of cut parameters", GroupRole::kCutShard},
                    Named{"replicas of cut parameters", GroupRole::kCutReplicas},
                    Named{"replicas of cut tables", GroupRole::kCutTableReplicas},
                    Named{"shard of whole parameters", GroupRole::kWholeShard},
                    Named{"replicas of whole parameters", GroupRole::kWholeReplicas},
                    Named{"replicas of whole tables", GroupRole::kWholeTableReplicas},
                    Named{"shard of experts", GroupRole::kExpertShard},
                    Named{"replicas of experts", GroupRole::kExpertReplicas}};
}

// A collective that a unit's forward calls; its backward calls those with a gradient, the last first.
struct UnitCall {
  enum Size : uint8_t {
    kFixed,  // no rank's rows decide
    kRows,   // of the rank's microbatch
    kOwn,    // each rank sends its own number, and announces it before
  };
  GroupRole role;
  Size size = kFixed;
  bool gradient = false;
};

struct StepWorld {
  struct Rank {
    int list = 0;                             // of the schedule
    int data = 0;                             // which replica's microbatches
    std::vector<int> pipeline = {};           // the ranks of each list of this pipeline
    std::array<int, kGroupRoles> group = {};  // by role; -1: alone
    // All that have the same parameters of this stage: cut, whole, of experts.
    std::vector<int> cut_holders = {}, whole_holders = {}, expert_holders = {};
    int of(GroupRole role) const { return group[static_cast<size_t>(role)]; }
  };
  struct Unit {
    std::vector<UnitCall> calls = {};
    bool has_experts = false;
    bool cut = true;  // has parameters that tensor ranks cut
    int states = 1;   // rows of its input for each row of the microbatch
  };
  std::vector<Rank> ranks = {};
  std::vector<std::vector<int>> groups = {};    // ascending
  std::vector<Unit> units = {};                 // by chunk
  std::vector<std::vector<int64_t>> rows = {};  // of each replica's microbatches
};

}  // namespace troupe
