// The shards of a checkpoint, opened as they are first read from. Each slice that is touched is
// read to its end, in pieces of bounded size, and its checksum compared before a call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/checkpoint/files/tensor_table.h"
#include "troupe/core/file/fault.h"

namespace troupe {

class ShardFiles {
 public:
  // A shard's header is looked at when the shard is first read: its own run and step, and its
  // checksum.
  ShardFiles(std::string folder, Manifest manifest);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  std::vector<std::string> extra_files() const;  // shards in the folder that no manifest lists
  int64_t header_bytes() const;                  // read so far; not while a slice is read

  // Fills what `out` (row-major, of `box`) has of the slice, which overlaps it: the rest of `out`
  // is left alone. Returns the bytes read. A file that cannot be read is tried five times. Several
  // threads may call it at once.
  int64_t read_slice(const TensorBox& wanted, const WholeTensor::Slice& slice,
                     std::span<std::byte> out, const Faults& faults) const;

 private:
  struct Shard {
    std::once_flag once;
    std::unique_ptr<SafetensorsFile> file;
  };

  const SafetensorsFile& shard(size_t i) const;
  int64_t try_slice(const TensorBox& wanted, const WholeTensor::Slice& slice,
                    std::span<std::byte> out) const;

  std::string folder_;
  Manifest manifest_;
  mutable std::vector<Shard> shards_;
};

}  // namespace troupe
