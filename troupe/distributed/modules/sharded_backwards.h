// The backwards through units of one group (fully_shard.h): which collectives they make, in which
// order. The ranks' graphs may differ, so no rank decides this from its own.
//
// The first gradient that comes to a result of a unit begins a backward: the ranks agree on the
// calls whose results it reaches on any of them. It goes over these from the last that ended to the
// first, as every graph does. At each call, and at all before it that this rank's graph leaves out,
//   units are reduced all of whose calls began after this one's end, then
//   this call's unit is gathered, if it is not already.
// What is left comes when the backward ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/modules/sharded_unit.h"
#include "troupe/ops/support/torch_versions/graph_node.h"

namespace troupe {

// A call of a unit's forward. Every rank makes the same ones, in the same order.
struct ShardedCall {
  std::weak_ptr<ShardedUnit> unit;
  uint32_t version = 0;                // of the unit's values
  bool recorded = false;               // by autograd
  int64_t began = 0, ended = 0;        // in the order of all begins and ends
  std::vector<WeakNode> results = {};  // on this rank
};

class ShardedBackwards {
 public:
  explicit ShardedBackwards(ProcessGroup& group) : group_(group) {}

  int64_t add_unit() { return num_units_++; }
  std::shared_ptr<ShardedCall> begin_call(ShardedUnit& unit);
  void end_call(const std::shared_ptr<ShardedCall>& call);
  // The backward that runs has come to a result of this call.
  void come_to(const std::shared_ptr<ShardedCall>& call);

 private:
  struct Backward;
  static constexpr size_t kForgetAt = 4096;
  void forget_calls(const c10::Device& device);
  std::shared_ptr<Backward> begin(int task, const ShardedCall& first);

  ProcessGroup& group_;
  std::vector<std::shared_ptr<ShardedCall>> calls_;  // recorded, some rank has their graph
  std::map<int, std::weak_ptr<Backward>> running_;   // by autograd's number; the graph task's own
  size_t forget_at_ = kForgetAt;                     // calls
  int64_t num_units_ = 0;
  int64_t moment_ = 0;      // begins and ends of calls so far
  uint64_t all_calls_ = 0;  // a hash of them
};

}  // namespace troupe
