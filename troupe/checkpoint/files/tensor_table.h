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
    int64_t at = 0;  // bytes of the shard's data before it
  };
  Element element;
  Sizes global;
  std::vector<Slice> slices;  // they tile the tensor
  int64_t depth = 0;          // of the shards' home
};
using TensorTable = std::map<std::string, WholeTensor, std::less<>>;

// Where a shard of the checkpoint `folder` stands: there, or in a base.
const std::string& place_of(const std::string& folder, const ShardInfo& info);

// The lines of one shard's index, in the order of the data. E4002; E4004 where the checksum is not
// the manifest's, or the tensors are more than the shard holds.
std::vector<StoredTensor> read_index(const std::string& folder, const ShardInfo& info);

// A slice of a shard: its number in the manifest, and the bytes of its data before the slice.
struct SlicePlace {
  size_t shard = 0;
  int64_t at = 0;
};

// E4004 where the shard's slice is of another type or size than those before, and where slices do
// not cover their tensor, once each. What a checkpoint has hides its base's; of a base, weights
// ("model.*") alone count.
void add_slice(TensorTable& table, const StoredTensor& stored, SlicePlace place,
               const std::string& folder, const ShardInfo& info);
void require_covered(const TensorTable& table, const std::string& folder);

}  // namespace troupe
