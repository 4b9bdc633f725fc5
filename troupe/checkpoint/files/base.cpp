#include "troupe/checkpoint/files/base.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

constexpr int64_t kMostBases = 16;  // one behind the other

std::vector<std::string> places_of(const BaseCheckpoint& base, const std::string& folder,
                                   const std::string& moved_to) {
  std::vector<std::string> out{base.folder};
  const auto add = [&](const std::string& place) {
    if (std::ranges::find(out, place) == out.end()) out.push_back(place);
  };
  if (!base.beside.empty()) {
    add((stdfs::path(folder) / ".." / base.beside).lexically_normal().string());
  }
  if (!moved_to.empty()) add(moved_to);
  return out;
}

// Fills `out` where that is the base; else says why it is not.
std::string why_not_base(const std::string& place, const std::string& hash, Manifest& out) {
  if (!is_there(place + '/' + kManifestName)) return "there is no checkpoint";
  try {
    out = read_manifest(place);
  } catch (const Error& e) {
    return e.what();
  }
  const std::string found = base_hash(out);
  return found == hash ? "" : "holds other weights, whose hash is " + found;
}

// Sets base->folder to where it is.
Manifest find_base(BaseCheckpoint& base, const std::string& folder, const std::string& moved_to) {
  std::string lines;
  for (const std::string& place : places_of(base, folder, moved_to)) {
    Manifest out;
    const std::string why = why_not_base(place, base.hash, out);
    if (why.empty()) {
      base.folder = place;
      return out;
    }
    lines += "\n  " + place + ": " + why;
  }
  fail(Code::kOtherBase, folder,
       "holds what was trained alone; its frozen weights are those of a base whose hash is",
       base.hash + ", and that is not to be found:" + lines +
           "\n  (a base that was moved: --set checkpoint.init_from=FOLDER, of train, generate and "
           "eval, or a link at the old place)");
}

Manifest opened(Manifest manifest, const std::string& folder, const std::string& moved_to,
                int64_t depth) {
  if (!manifest.base) return manifest;
  if (depth > kMostBases) {
    fail(Code::kOtherBase, folder, "is the base of", kMostBases, "checkpoints in a row");
  }
  Manifest base = find_base(*manifest.base, folder, moved_to);
  const std::string& place = manifest.base->folder;
  base = opened(std::move(base), place, "", depth + 1);
  for (ShardInfo& shard : base.shards) {
    if (shard.home.depth == 0) shard.home = {depth, place, base.run, base.step};
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

}  // namespace

std::string base_hash(const Manifest& manifest) {
  std::string text;
  for (const ShardInfo& shard : manifest.shards) text += shard.index_hash + '\n';
  if (manifest.base) text += manifest.base->hash;
  return hex(hash64(text));
}

BaseCheckpoint base_of(const std::string& folder, const Manifest& manifest,
                       const std::string& run) {
  std::error_code error;
  const stdfs::path beside = stdfs::relative(folder, run, error);
  return {.folder = folder,
          .beside = error ? std::string() : beside.string(),
          .hash = base_hash(manifest)};
}

Manifest with_base(Manifest manifest, const std::string& folder, const std::string& moved_to) {
  return opened(std::move(manifest), folder, moved_to, 1);
}

}  // namespace troupe
