// The second half of load(): a state's parts, filled from the slices of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/load_plan.h"

namespace troupe {

class Filling {
 public:
  using Part = CheckpointState::Part;

  Filling(const CheckpointReader& reader, const LoadOptions& options, const CheckpointGroup& group,
          const Faults& faults);

  // All ranks call it, each with its own parts, which the checkpoint has: shapes and types fit. An
  // Error of one is thrown on all.
  void run(const std::vector<const Part*>& parts);

  int64_t bytes_read() const { return bytes_; }
  // Parts with numbers that are not finite, a line each.
  const std::vector<std::string>& unsound() const { return unsound_; }

 private:
  using Round = std::vector<SharedSlice>;
  // A part on its way: where it is put together, on the host and of the stored type.
  struct Target {
    const Part* part = nullptr;
    size_t tensor = 0;
    size_t missing = 0;  // cuts of shared slices that are still to come
    at::Tensor host = {};
  };
  struct Source {
    const std::string* name;
    const CheckpointReader::Tensor* tensor;
    std::vector<char> shared;  // of each slice
  };

  void begin(Target& target);  // reads what no other part needs
  void finish(Target& target);
  void read_round(const Round& round, std::vector<std::vector<std::byte>>& slices);
  void send_round(const Round& round, std::vector<std::vector<std::byte>>& slices);
  int64_t read(const Source& source, size_t slice, const Box& box, std::span<std::byte> out);

  const CheckpointReader& reader_;
  const LoadOptions& options_;
  const CheckpointGroup& group_;
  const Faults& faults_;
  std::vector<Source> sources_;      // by the tensors' order
  std::vector<StoredBoxes> stored_;  // likewise
  std::vector<Target> targets_;      // by the parts' order
  std::atomic<int64_t> bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::string> unsound_;
};

}  // namespace troupe
