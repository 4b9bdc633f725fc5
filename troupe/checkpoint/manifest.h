// What a checkpoint says of itself. manifest.json is written last: a folder is a checkpoint if and
// only if it has a whole one and the files that it lists, in their sizes.
//
// manifest.json: {"checksum": XXH3 of this text with 16 zeros for the checksum, "format": 1,
//   "version", "run", "step", "bad", "score", "fingerprint", "scalars",
//   "shards": [{"file", "bytes", "header", "index", "index_hash", "tensors"}]}
// shard-00000.json, the index of a shard: one line a tensor,
//   {"name", "dtype", "global", "offset", "size", "hash"}, in the order of the shard's file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint/box.h"
#include "troupe/core/yaml.h"

namespace troupe {

inline constexpr int64_t kCheckpointFormat = 1;

using Fingerprint = std::vector<std::pair<std::string, std::string>>;

struct ShardInfo {
  std::string file;  // "shard-00000.safetensors"
  int64_t bytes = 0;
  std::string header;  // XXH3 of all that stands before the data
  std::string index;   // "shard-00000.json"
  int64_t index_bytes = 0;
  std::string index_hash;
  int64_t tensors = 0;
};

struct Manifest {
  int64_t format = kCheckpointFormat;
  std::string version;  // of the program that wrote it
  std::string run;
  int64_t step = 0;
  bool bad = false;
  std::optional<double> score = {};
  Fingerprint fingerprint = {};
  Yaml scalars = {};
  std::string scalars_text = "{}";
  std::vector<ShardInfo> shards = {};
};

}  // namespace troupe
