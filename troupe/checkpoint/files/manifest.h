// What a checkpoint says of itself. manifest.json is written last: a folder is a checkpoint if and
// only if it has a whole one, and the files that it lists in their sizes.
//
//   {"checksum":"..", "format":1, "version", "run", "step", "bad", "score",
//    "fingerprint":[{"name","value"}], "scalars":{..},
//    "base":{"folder","beside","hash"},
//    "shards":[{"file","bytes","header","index","index_bytes","index_hash","tensors","unsound"}]}
// `base` (base.h) is there where the checkpoint lacks the frozen weights: format 2. `checksum` is
// XXH3 of the text with 16 zeros in its own place. A shard's index is a file of its own, so that
// ranks write theirs side by side: a line a tensor, in the order of the data,
//   {"name","dtype","global","offset","size","hash"}
// So every byte of the folder is under a checksum: `header` of what stands before a shard's data,
// `hash` of each tensor, `index_hash`, `checksum`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint/files/box.h"
#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"

namespace troupe {

inline constexpr int64_t kCheckpointFormat = 2;  // the newest; 1: without a base
inline constexpr char kManifestName[] = "manifest.json";

// What must not differ when a run resumes: ("data.train", its hash), ("model.moe.experts", "8").
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// Where a shard of a base stands, and whose it is.
struct ShardHome {
  int64_t depth = 0;  // 0: the checkpoint's own; 1: its base's; 2: that one's base's
  std::string folder = "", run = "";
  int64_t step = 0;
};

struct ShardInfo {
  std::string file;  // "shard-00000-000.safetensors"
  int64_t bytes = 0;
  std::string header;
  std::string index;  // "shard-00000-000.jsonl"
  int64_t index_bytes = 0;
  std::string index_hash;
  int64_t tensors = 0;
  int64_t unsound = 0;  // NaN and infinite numbers among its floats
  ShardHome home = {};  // not written: with_base() sets it

  static void visit(auto& s, auto&& f) {
    f("file", s.file);
    f("bytes", s.bytes);
    f("header", s.header);
    f("index", s.index);
    f("index_bytes", s.index_bytes);
    f("index_hash", s.index_hash);
    f("tensors", s.tensors);
    f("unsound", s.unsound);
  }
};

// The checkpoint that has the weights which this one lacks.
struct BaseCheckpoint {
  std::string folder = "";  // RUN/step-000000, as the run was told
  std::string beside = "";  // the same, from the folder of the run that names it
  std::string hash = "";    // base_hash()

  static void visit(auto& b, auto&& f) {
    f("folder", b.folder);
    f("beside", b.beside);
    f("hash", b.hash);
  }
};

struct Manifest {
  int64_t format = 1;        // at least 2 is written where there is a base
  std::string version = "";  // of the program that wrote it; 0.1.0 where it does not say
  std::string run = "";      // the run's id
  int64_t step = 0;
  bool bad = false;                  // saved with NaN in the weights: never resumed by itself
  std::optional<double> score = {};  // validation loss
  Fingerprint fingerprint = {};
  std::optional<BaseCheckpoint> base = {};
  Yaml scalars = {};                // the trainer's state: an object, as it was read
  std::string scalars_text = "{}";  // the same as JSON, as it is written
  std::vector<ShardInfo> shards = {};
};

std::string to_json(const Manifest& manifest);
// Throws E4002 for what is no manifest (with the place), E4004 for a wrong checksum, E4009 for a
// newer format.
Manifest parse_manifest(const std::string& text, const std::string& file);
Manifest read_manifest(const std::string& folder);

[[noreturn]] void fail_missing_scalars(const std::string& folder,
                                       const std::vector<std::string>& missing);  // E4005

// Reads `scalars` into a config. Every field of the config must be there: a counter that begins at
// its default would repeat data.
template <Config C>
void read_scalars(const Manifest& manifest, const std::string& folder, C& out) {
  const Sources found = read_config(manifest.scalars, out);
  std::vector<std::string> missing;
  for (const auto& [path, value] : flatten(out)) {
    if (!found.contains(path)) missing.push_back(path);
  }
  if (!missing.empty()) fail_missing_scalars(folder, missing);
}

// A tensor of a shard.
struct StoredTensor {
  TensorBox tensor;
  std::string hash;  // XXH3 of its bytes
};

std::string to_json(const StoredTensor& tensor);  // a line, with its end
std::vector<StoredTensor> parse_index(const std::string& text, const std::string& file);

// Its name inside the shard: "name" or, of a slice, "name@0,32", the offset.
std::string stored_name(const TensorBox& tensor);

// What an earlier program saved in another way.
struct EarlierKeys {
  // Values that need not have been saved: a program that did not know a name yet saved none, and
  // did what the default now says.
  Fingerprint defaults = {};
  Fingerprint renamed = {};  // (old name, name now)
};

// What differs, a line each: "moe.experts: 8 was saved, 4 is asked for".
std::vector<std::string> changes(const Fingerprint& saved, const Fingerprint& now,
                                 const EarlierKeys& earlier = {});

}  // namespace troupe
