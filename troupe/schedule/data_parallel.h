// Replicas of the model, one a rank, each with microbatches of its own. Each chunk's gradients are
// summed over the replicas as soon as its last microbatch's backward is issued, so that the sum
// runs beside the backward of the chunks below. Between steps every rank has all values.
//   2 chunks, 2 microbatches, sharded = false (DDP):
//   0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 A1 B0.1 A0 U
// sharded (ZeRO-1): a rank receives the summed gradients of its own shard only, updates it, and
// gathers the others' values; the next step waits for a chunk's values where it first uses them.
//   0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 A1 B0.1 A0 U G0 G1
#pragma once

#include <string_view>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

struct DataParallel {
  static constexpr std::string_view kKind = "replicas";
  bool sharded = true;
  static void visit(auto& c, auto&& f) { f("sharded", c.sharded); }
  Schedule build(const StepWork& work) const;
};

}  // namespace troupe
