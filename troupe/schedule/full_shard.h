// Values, gradients and moments are in shards (FSDP, HSDP); a chunk's values are gathered for its
// use. A *visit* is a run of computations with the same parameters: F2.0 B2.0 at the turn, F1.0
// B1.0 of a recomputed chunk. Before a visit come the gathers of those up to `prefetch` visits
// later; after it the chunk is freed, unless the gather of its next visit would follow at once.
//   3 chunks, prefetch 1:
//   0: G0 G1 F0.0 X0 G2 F1.0 F2.0 B2.0 X2 A2.0 G0 B1.0 X1 A1.0 B0.0 X0 A0.0 U
// So at most prefetch + 1 chunks are gathered at a time, and tied chunks, which stay from their
// first use in a microbatch to the last. reshard = false keeps every chunk so. Two computations
// that run beside each other are one visit, with the parameters of both.
#pragma once

#include <string_view>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

struct FullShard {
  static constexpr std::string_view kKind = "full_shard";
  int prefetch = 1;
  bool reshard = true;      // free after the forward and gather again for the backward
  bool reduce_each = true;  // sum each microbatch's gradients, so that none is kept whole;
                            // false: once a step, with 1 / microbatches of the traffic, as also
                            // where weights' gradients are late or tied chunks are in a pipeline
  static void visit(auto& c, auto&& f) {
    f("prefetch", c.prefetch);
    f("reshard", c.reshard);
    f("reduce_each", c.reduce_each);
  }
  Schedule build(const StepWork& work) const;
};

}  // namespace troupe
