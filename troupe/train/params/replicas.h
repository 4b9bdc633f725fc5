// Checks that replicas of the weights are bitwise equal, before a checkpoint or at an interval
// (run.check_replicas), by hashes that each device computes of its tensors (hash_bits.h).
//
// Compared are values that several ranks hold whole, what is not trained (frozen weights, the
// routers' state), and the masters of ranks that own the same shard; not the optimizer's moments.
// A bit that memory, a device or a bug has changed on one rank would otherwise enter every later
// sum, and the checkpoint of the rank that writes that part. Ranks add up four numbers; texts with
// their hashes go to all of them only where that sum says that copies differ.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

// Each rank calls, with no step under way. Throws E9001 on all ranks; rank 0's names the tensor and
// which ranks have what.
void require_equal_replicas(ParamStore& store, const ParallelState& parallel);

// What rank `index` of the `count` that hold a copy of `key` adds to the sum: c_i h_i mod 2^64, where
// c_1, c_2, .. are odd numbers drawn from the key, and c_0 = -(c_1 + c_2 + ..). Equal hashes add up
// to 0, others to anything.
uint64_t term_of_copy(const std::string& key, int64_t index, int64_t count, uint64_t hash);

}  // namespace troupe
