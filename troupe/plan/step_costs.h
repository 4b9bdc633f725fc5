// What the actions of a schedule cost on one rank: seconds and bytes of each chunk.
#pragma once

#include <cstddef>
#include <vector>

namespace troupe {

struct ChunkCosts {
  // Seconds, of one microbatch where that counts.
  double forward = 0, backward = 0;
  double exchange = 0;  // that a forward waits for other expert ranks, and a backward again
  double gather = 0, reduce = 0;
  double laying = 0;     // before a reduction: gradients side by side, in the type of sums
  double replicate = 0;  // on top of a step's last reduction: the sum over replicas of a shard
  double send = 0;       // its input, to the rank that runs it
  // Bytes.
  double values = 0;    // whole, as computed with
  double owned = 0;     // the part of them that is here between uses, where they are dropped
  double state = 0;     // masters, moments, and what is not trained: always here
  double made = 0;      // a gradient as one backward makes it
  double gradient = 0;  // the same, or the sum of several
  double summing = 0;   // the buffer that is summed over ranks
  double sum = 0;       // what is left of it here
  double saved = 0;     // kept from forward to backward, of one microbatch; its input is in it
  double input = 0;     // kept by a light forward
};

struct StepCosts {
  std::vector<ChunkCosts> chunks;
  double update = 0;         // seconds, of all chunks
  double update_memory = 0;  // bytes, on top of the rest while it happens
  double workspace = 0;      // bytes, on top of the rest wherever a chunk is computed
  double runtime = 0;        // of libraries and the device
  double contention = 0;     // what computes beside a collective takes 1 + this times as long
};

// Of all chunks whose parameters go by the name of `chunk` (schedule/work.h).
inline double sum_of(const StepCosts& costs, const std::vector<int>& owner, int chunk,
                     double ChunkCosts::*what) {
  double out = 0;
  for (size_t c = 0; c < owner.size(); ++c) {
    if (owner[c] == chunk) out += costs.chunks[c].*what;
  }
  return out;
}

}  // namespace troupe
