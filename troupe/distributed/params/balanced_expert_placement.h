// Places experts so that all ranks compute about the same number of rows, given how many rows each
// expert had. Arithmetic on the host alone, the same on every rank that has the same numbers.
//
// Longest first: the experts by their rows, of equals the lower number first, each to the rank with
// the fewest rows so far that has room, of equals the lower rank. A rank has room for as many
// experts as it holds now. Then ranks take the sets so that few experts move: of all (set, rank)
// of one size the pair with the most experts in common first, of equals the lower set and rank.
//
// Placements here have one owner for each expert: neither replicas nor slices.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/distributed/params/expert_placement.h"

namespace troupe {

// The rows of the busiest rank over the mean of all; 1 where there are no rows.
double rank_load(const ExpertPlacement& placement, const std::vector<int64_t>& rows_E);

ExpertPlacement balanced_expert_placement(const ExpertPlacement& now,
                                          const std::vector<int64_t>& rows_E);

// How many experts are elsewhere.
int64_t moved_experts(const ExpertPlacement& from, const ExpertPlacement& to);

}  // namespace troupe
