// The second half of load(): a state's parts, filled from the slices of a checkpoint as a plan says.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/shard_files.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/load_plan.h"

namespace troupe {

class Filling {
 public:
  using Part = CheckpointState::Part;

  // `plan`: of a want for each of `parts`, with the offers of all ranks. What it has no slices for
  // stays as it is.
  Filling(const ShardFiles& files, const LoadOptions& options, const CheckpointGroup& group,
          const Faults& faults, const LoadPlan& plan, const std::vector<Part>& parts);

  // All ranks call it. An Error of one is thrown on all.
  void run();

  int64_t bytes_read() const { return bytes_; }
  // Parts with numbers that are not finite, a line each.
  const std::vector<std::string>& unsound() const { return unsound_; }

 private:
  using Slices = std::vector<std::vector<std::byte>>;  // by the reads of a round
  // A part on its way: where it is put together, on the host and of the stored type.
  struct Target {
    const Part* part = nullptr;
    const LoadPlan::Part* plan = nullptr;
    size_t missing = 0;  // cuts that are still to come
    at::Tensor host = {};
  };

  // What is wanted of the part, of the stored type.
  TensorBox stored_box(const Target& target) const;
  void begin(Target& target);  // reads what no other part needs
  void finish(Target& target);
  void read_round(size_t round, Slices& slices);
  void send_round(size_t round, Slices& slices);

  const ShardFiles& files_;
  const LoadOptions& options_;
  const CheckpointGroup& group_;
  const Faults& faults_;
  const LoadPlan& plan_;
  std::vector<Target> targets_;  // by the parts' order
  std::atomic<int64_t> bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::string> unsound_;
};

}  // namespace troupe
