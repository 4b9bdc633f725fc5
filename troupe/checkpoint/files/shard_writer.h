// Writes the tensors that one rank owns as shards of a checkpoint: safetensors files with an index
// beside each. Hashing, writing and syncing run on several threads, a shard at a time each; memory
// is bounded, as the tensors' bytes are the caller's.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/core/file/fault.h"
#include "troupe/core/file/publish.h"

namespace troupe {

struct ShardPiece {
  TensorBox tensor;
  std::span<const std::byte> bytes = {};  // tensor.bytes() of them, row-major
  // In place of `bytes`: gives them when they are written, in pieces of whole elements.
  std::function<void(const WriteBytes& write)> make = {};
};

struct ShardTask {
  std::string folder;  // exists; has none of the rank's files
  int rank = 0;
  std::string run;  // with the step in each shard: two checkpoints cannot be mixed
  int64_t step = 0;
  int threads = 4;  // writers at most; a shard for less than 64 MiB does not pay
  const std::atomic<bool>* abandon = nullptr;  // stops soon after it is set, with Abandoned
};

struct Abandoned {};  // thrown where the caller asked for it

// Every file is finished (synced) on return. A name that stands twice is E9001. Throws the first
// fault; the folder is then the caller's to remove.
std::vector<ShardInfo> write_shards(Fs& fs, const Faults& faults, const ShardTask& task,
                                    std::vector<ShardPiece> pieces);

// The rank that wrote a shard; -1 for a name that no rank gave.
int writer_of(const ShardInfo& shard);

}  // namespace troupe
