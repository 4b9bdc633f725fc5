// Reads a checkpoint's tensors, in any cut: a box asked for is put together from the stored boxes
// that it overlaps. Each stored tensor that is touched is read to its end, in pieces of bounded
// size, and its checksum compared before read() returns.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/core/file/fault.h"

namespace troupe {

class CheckpointReader {
 public:
  // A whole tensor as the checkpoint has it.
  struct Tensor {
    Element element;
    Sizes global;
    struct Slice {
      size_t shard;
      Box box;
      std::string hash;
      std::string stored_name;
    };
    std::vector<Slice> slices;  // they tile the tensor
  };

  // Reads manifest and indexes and compares their checksums; throws E4002, E4004. A shard's header
  // is looked at when the shard is first read: its own run and step, and its checksum.
  explicit CheckpointReader(std::string folder);
  CheckpointReader(std::string folder, Manifest manifest);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  std::vector<std::string> extra_files() const;  // shards in the folder that no manifest lists

  // Fills `out` (row-major, of `box` and the tensor's element) from the file; returns the bytes
  // read. A file that cannot be read is tried five times. Several threads may call it at once.
  int64_t read(const Tensor& tensor, const std::string& name, const Box& box,
               std::span<std::byte> out, const Faults& faults) const;
  // The same of one slice, which overlaps the box: the rest of `out` is left alone.
  int64_t read_slice(const Tensor& tensor, const std::string& name, const Tensor::Slice& slice,
                     const Box& box, std::span<std::byte> out, const Faults& faults) const;

 private:
  struct Shard {
    std::once_flag once;
    std::unique_ptr<SafetensorsFile> file;
  };

  const SafetensorsFile& shard(size_t i) const;
  int64_t try_slice(const Tensor& tensor, const std::string& name, const Tensor::Slice& slice,
                    const Box& box, std::span<std::byte> out) const;

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  mutable std::vector<Shard> shards_;
};

}  // namespace troupe
