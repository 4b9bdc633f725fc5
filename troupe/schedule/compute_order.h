// The first pass of every builder: the computations of each rank, in order. Each microbatch runs
// forward through all chunks and back; a recomputed chunk runs a light forward (no graph) and its
// full forward just before its backward. One rank:
//   0: F0.0 L1.0 F2.0 B2.0 F1.0 B1.0 B0.0 F0.1 ...
// Two ranks with a stage each, 1f1b:
//   0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
//   1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
// With work.beside the first chunk forward stands behind the last chunk backward, and so on:
//   0: F0.0 F1.0 F2.0 B2.0& F0.1 B1.0& F1.1 B0.0& F2.1 B2.1 B1.1 B0.1
#pragma once

#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

// Throws where work.order does not fit the stages. Without training: light forwards alone.
Schedule compute_order(const StepWork& work);

// For each stage of that order how many microbatches' graphs wait there for their backward at a
// time, at most.
std::vector<int> graphs_held(const StepWork& work);

}  // namespace troupe
