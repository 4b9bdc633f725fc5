// Reads a checkpoint's tensors, in any cut: a box asked for is put together from the stored boxes
// that it overlaps (shard_files.h). For one process: it knows all tensors. Ranks that load together
// divide the index files among them (checkpoint/state/load_plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/checkpoint/files/shard_files.h"
#include "troupe/checkpoint/files/tensor_table.h"
#include "troupe/core/file/fault.h"

namespace troupe {

class CheckpointReader {
 public:
  using Tensor = WholeTensor;

  // Reads manifest and indexes, those of its base too (base.h), and compares their checksums;
  // throws E4002, E4004, E4010.
  explicit CheckpointReader(std::string folder);
  // Of the manifest's shards alone: with_base() adds those of a base.
  CheckpointReader(std::string folder, Manifest manifest);

  const std::string& folder() const { return files_.folder(); }
  const Manifest& manifest() const { return files_.manifest(); }
  const TensorTable& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  std::vector<std::string> extra_files() const { return files_.extra_files(); }

  // Fills `out` (row-major, of `box` and the tensor's element) from the files; returns the bytes
  // read. Several threads may call it at once.
  int64_t read(const Tensor& tensor, const std::string& name, const Box& box,
               std::span<std::byte> out, const Faults& faults) const;

 private:
  ShardFiles files_;
  TensorTable tensors_;
};

}  // namespace troupe
