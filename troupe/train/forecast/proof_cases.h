// Every step that `./dev prove` proves: all factorings of some ranks, each with the orders of a
// pipeline that fit, with replicas, shards of the optimizer and full shards, one to four
// microbatches of even and uneven sizes or fewer on some replicas, layers recomputed, tables tied.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"
#include "troupe/train/forecast/mesh_world.h"

namespace troupe {

struct ProofCase {
  std::string name;  // "8 ranks: tensor 2, pipeline 2 ..., 1f1b, zero1, 3 microbatches, uneven"
  Schedule schedule;
  StepWork work;
  StepWorld world;
};

// Calls `f` with every `each`-th of them; returns how many there were. Each list is built once.
int64_t for_each_proof_case(int ranks, int64_t each, const std::function<void(ProofCase&)>& f);

}  // namespace troupe
