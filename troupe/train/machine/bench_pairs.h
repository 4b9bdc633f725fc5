// What every pair of ranks reaches, so that a slow link is told by its ends.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "troupe/distributed/world/world.h"
#include "troupe/plan/pairs.h"

namespace troupe {

// All ranks call it; in each round each has one partner, and they send to each other at once. Every
// rank gets all pairs.
std::vector<PairRate> bench_pairs(const c10::Device& device, World& world);

// Who meets whom, by round: every pair once. -1: this rank has none in that round.
std::vector<int64_t> partners_of(int64_t rank, int64_t size);

}  // namespace troupe
