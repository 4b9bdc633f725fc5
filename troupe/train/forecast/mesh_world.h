// The ranks of a mesh as the proof of a step sees them (schedule/step_world.h): in which groups each
// is, and what a unit calls. Nothing here needs torch: the program `prove` proves all meshes.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/schedule/step_world.h"
#include "troupe/schedule/work.h"

namespace troupe {

// What a unit is made of, as far as it calls groups.
struct UnitParts {
  bool attention = false;  // of a block: its ranks exchange keys
  bool experts = false;
  bool sums_over_all = false;  // a balance loss over all ranks of the stage
  int states = 1;              // StepWorld::Unit::states
};

struct MeshWorld {
  bool whole_state = false;                     // shard: none
  std::vector<UnitParts> units = {};            // by chunk
  std::vector<std::vector<int64_t>> rows = {};  // of each data index's microbatches
};

StepWorld world_of(const ProcessMesh& mesh, const StepWork& work, const MeshWorld& parts);

}  // namespace troupe
