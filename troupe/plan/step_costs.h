// Costs of the actions of a schedule: seconds and bytes per chunk, on the rank that runs it.
#pragma once

#include <cstddef>
#include <vector>

namespace troupe {

struct ChunkCosts {
  // Seconds; those that depend on the batch are for one microbatch.
  double forward = 0, backward = 0;
  double exchange = 0;     // expert-parallel transfers in forward, and again in backward
  double tokens = 0;       // transfers of tokens and keys between ranks that share a microbatch,
  double tokens_back = 0;  // in forward, and in backward
  double gather = 0, reduce = 0;
  double laying = 0;     // copy of gradients into the reduction buffer
  double replicate = 0;  // all-reduce over the replicas of a shard, after a step's last reduction
  double weight = 0;     // the part of backward that makes the parameters' gradients (Kind W)
  double update = 0;     // its part of StepCosts::update
  double send = 0;       // its input, sent to the rank that runs it, or its gradient, sent back
  // Bytes.
  double values = 0;    // full parameters in the compute type
  double owned = 0;     // the shard kept between uses, if they are freed
  double state = 0;     // masters, moments and frozen values: always resident
  double made = 0;      // gradient of one backward
  double gradient = 0;  // the same, or the accumulated one
  double summing = 0;   // reduction buffer
  double sum = 0;       // the shard that remains of it
  double saved = 0;     // activations of one microbatch, its input included
  double input = 0;     // kept by a forward that recomputes
  double late = 0;      // of `saved`, kept from the input half of backward to the weight half
  double border = 0;    // its input, or its gradient, while it is on the way from rank to rank
};

// Costs of one rank, though `chunks` has those of all.
struct StepCosts {
  std::vector<ChunkCosts> chunks;
  double update = 0;         // seconds for all chunks of a rank
  double update_memory = 0;  // extra bytes during the update
  double host = 0;           // bytes of masters and optimizer state in host memory
  double copies = 0;         // seconds in which an update brings them, and puts them back meanwhile
  double workspace = 0;      // extra bytes while a chunk is computed
  double runtime = 0;        // bytes of libraries and the device runtime
  double contention = 0;     // slowdown of computation during a collective: 1 + contention
};

// The sum over all chunks whose parameters are owned by `chunk` (schedule/work.h). In a rank's
// `owner` the chunks that it does not run are owned by -1.
inline double sum_of(const StepCosts& costs, const std::vector<int>& owner, int chunk,
                     double ChunkCosts::*what) {
  double out = 0;
  for (size_t c = 0; c < owner.size(); ++c) {
    if (owner[c] == chunk) out += costs.chunks[c].*what;
  }
  return out;
}

}  // namespace troupe
