// The tensors of a checkpoint out of the lines of its index files: all of them, or those that a
// rank of a load looks after.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"

namespace troupe {

// A whole tensor as the checkpoint has it.
struct WholeTensor {
  struct Slice {
    size_t shard;  // of the manifest
    Box box;
    std::string hash;
    std::string stored_name;
  };
  Element element;
  Sizes global;
  std::vector<Slice> slices;  // they tile the tensor
};
using TensorTable = std::map<std::string, WholeTensor, std::less<>>;

// The lines of one shard's index, in the order of the data. E4002; E4004 where the checksum is not
// the manifest's, or the tensors are more than the shard holds.
std::vector<StoredTensor> read_index(const std::string& folder, const ShardInfo& info);

// E4004 where the shard's slice is of another type or size than those before, and where slices do
// not cover their tensor, once each.
void add_slice(TensorTable& table, const StoredTensor& stored, size_t shard,
               const std::string& index_path);
void require_covered(const TensorTable& table, const std::string& folder);

}  // namespace troupe
