// Which parts of a model each stage of a pipeline has, and which rank each stage is on.
//
// A model is a chain of parts: E the embedding, t a block each, m an MTP module each, L the head
// with the loss. A map cuts it into stages, in the notation of Megatron's
// --pipeline-model-parallel-layout: the letters in order, | between stages, x*n for n times the
// letter or bar x, (..)*n for n times what is inside, which has no brackets itself; commas and
// spaces are for the eye. A stage may be empty.
//   Et*3|(tt|)*29,m|L    61 blocks on 32 stages: 3 with the embedding, 29 x 2, m alone, L alone
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/schedule/work.h"

namespace troupe {

enum class StagePath : uint8_t {
  kLoop,  // stage s on rank s % ranks
  kVee,   // two stages a rank: s and 2 ranks - 1 - s
};

// What is cut, and over how many ranks.
struct PipelineShape {
  int layers = 0, mtp = 0;
  int ranks = 1;
  StagePath path = StagePath::kLoop;
  int parts() const { return layers + mtp + 2; }
};

struct StageMap {
  std::vector<int> sizes;  // parts of the chain in each stage
  bool operator==(const StageMap&) const = default;
};

// A map from its text. Reports all faults at once, each with its position, counted from 1, where
// it has one; the last is the nearest map that fits. `map` is whole where there are none:
//   E first and once, L last and once, t = layers, m = mtp and behind the last t, stages a multiple
//   of ranks.
struct StageMapText {
  StageMap map = {};
  std::vector<std::string> faults = {};
};
StageMapText read_stage_map(std::string_view text, const PipelineShape& shape);

// The shortest text of the map whose brackets hold whole stages; read_stage_map() of it gives the
// map.
std::string stage_text(const StageMap& map, const PipelineShape& shape);

// `work`, of all parts of a model in one rank, cut by the map. A value that goes over empty stages
// is sent as much earlier than it is asked for: `depth` is 2 and the most empty stages between two
// others.
StepWork with_stages(StepWork work, const StageMap& map, const PipelineShape& shape);

// What a unit costs.
struct UnitLoad {
  double seconds = 0;  // of a microbatch, forward and backward
  double state = 0;    // bytes that stay
  double saved = 0;    // bytes of each graph that waits for its backward
};

// The split of the parts, of which `units` are the loads, into `stages` neighboring ones, none of
// them empty: the least seconds of the slowest stage; of those splits the least bytes of the
// fullest, where stage s holds graphs[s] graphs; of those the least sum of squared seconds, which
// evens out the rest. Throws where there are more stages than units. Time: units^2 stages.
StageMap choose_stages(const std::vector<UnitLoad>& units, const std::vector<int>& graphs,
                       const PipelineShape& shape);

}  // namespace troupe
