// Bandwidth between every pair of ranks, to find slow links.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "troupe/distributed/world/world.h"
#include "troupe/plan/pairs.h"

namespace troupe {

// A collective. In each round each rank has one partner, and both send at once. Every rank gets the
// rates of all pairs.
std::vector<PairRate> bench_pairs(const c10::Device& device, World& world);

// The partner of each rank by round; every pair meets once. -1: no partner in that round.
std::vector<int64_t> partners_of(int64_t rank, int64_t size);

}  // namespace troupe
