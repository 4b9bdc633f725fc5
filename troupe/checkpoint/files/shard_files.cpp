#include "troupe/checkpoint/files/shard_files.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // stays in the cache from disk to hash to tensor
constexpr int kTries = 5;

// A stored tensor from front to end: what is asked for is copied out of the piece that just came.
class SliceStream {
 public:
  SliceStream(const SafetensorsFile& file, const SafetensorsEntry& entry)
      : file_(file), entry_(entry), buffer_(static_cast<size_t>(std::min(kChunk, entry.bytes()))) {}

  // Ascending, without overlap between calls.
  void copy(int64_t from, std::span<std::byte> out) {
    while (!out.empty()) {
      while (from >= end_) next();
      const auto n = std::min(static_cast<size_t>(end_ - from), out.size());
      std::memcpy(out.data(), buffer_.data() + (from - begin_), n);
      from += static_cast<int64_t>(n);
      out = out.subspan(n);
    }
  }

  uint64_t finish() {
    while (end_ < entry_.bytes()) next();
    return hasher_.digest64();
  }

 private:
  void next() {
    begin_ = end_;
    const int64_t n = std::min(kChunk, entry_.bytes() - begin_);
    const auto piece = std::span(buffer_).first(static_cast<size_t>(n));
    file_.read(entry_, begin_, piece);
    hasher_.update(piece);
    end_ = begin_ + n;
  }

  const SafetensorsFile& file_;
  const SafetensorsEntry& entry_;
  std::vector<std::byte> buffer_;
  int64_t begin_ = 0, end_ = 0;  // what the buffer holds
  Hasher hasher_;
};

uint64_t read_whole(const SafetensorsFile& file, const SafetensorsEntry& entry,
                    std::span<std::byte> out) {
  Hasher hasher;
  for (int64_t at = 0; at < entry.bytes(); at += kChunk) {
    const auto n = static_cast<size_t>(std::min(kChunk, entry.bytes() - at));
    const auto piece = out.subspan(static_cast<size_t>(at), n);
    file.read(entry, at, piece);
    hasher.update(piece);
  }
  return hasher.digest64();
}

}  // namespace

ShardFiles::ShardFiles(std::string folder, Manifest manifest)
    : folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      shards_(manifest_.shards.size()) {}

std::vector<std::string> ShardFiles::extra_files() const {
  std::set<std::string> known;
  for (const ShardInfo& shard : manifest_.shards) {
    if (shard.home.depth == 0) known.insert(shard.file);
  }
  std::vector<std::string> out;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.ends_with(".safetensors") && !known.contains(name)) out.push_back(name);
  }
  std::ranges::sort(out);
  return out;
}

int64_t ShardFiles::header_bytes() const {
  int64_t out = 0;
  for (const Shard& shard : shards_) out += shard.file ? shard.file->data_begin() : 0;
  return out;
}

const SafetensorsFile& ShardFiles::shard(size_t i) const {
  Shard& out = shards_[i];
  // Where it throws the flag stays unset, and the next try opens the file again.
  std::call_once(out.once, [&] {
    const ShardInfo& info = manifest_.shards[i];
    const std::string path = place_of(folder_, info) + '/' + info.file;
    std::unique_ptr<SafetensorsFile> file;
    try {
      file = std::make_unique<SafetensorsFile>(path);
    } catch (const Error& e) {
      if (e.code() != Code::kBadModelFile) throw;
      throw Error(std::string(e.what()) + " (" + to_text(Code::kDamagedCheckpoint) +
                      ": the file is not as it was written)",
                  Code::kDamagedCheckpoint);
    }
    const std::string* const run = file->find_metadata("troupe.run");
    const std::string* const step = file->find_metadata("troupe.step");
    const bool own = info.home.depth == 0;
    const std::string wanted = std::to_string(own ? manifest_.step : info.home.step);
    const std::string& of_run = own ? manifest_.run : info.home.run;
    if (run == nullptr || step == nullptr || *run != of_run || *step != wanted) {
      fail(Code::kDamagedCheckpoint, path, "belongs to run", run ? *run : "?", "step",
           step ? *step : "?", "and the manifest to run", of_run, "step", wanted);
    }
    if (const std::string found = hex(file->header_hash()); found != info.header) {
      fail(Code::kDamagedCheckpoint, path, "is damaged: its header's checksum is", found,
           "and should be", info.header);
    }
    out.file = std::move(file);
  });
  return *out.file;
}

int64_t ShardFiles::read_slice(const TensorBox& wanted, const WholeTensor::Slice& slice,
                               std::span<std::byte> out, const Faults& faults) const {
  for (int attempt = 1;; ++attempt) {
    try {
      const ShardInfo& info = manifest_.shards[slice.shard];
      const std::string path = place_of(folder_, info) + '/' + info.file;
      if (faults.at("load.read", manifest_.step) == FaultAction::kEio) {
        fail_file(Code::kUnreadableCheckpoint, path, "read", EIO);
      }
      return try_slice(wanted, slice, out);
    } catch (const Error& e) {
      if (e.code() != Code::kUnreadableCheckpoint || attempt == kTries) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10 << attempt));
    }
  }
}

int64_t ShardFiles::try_slice(const TensorBox& wanted, const WholeTensor::Slice& slice,
                              std::span<std::byte> out) const {
  const SafetensorsFile& file = shard(slice.shard);
  const SafetensorsEntry* const entry = file.find(slice.stored_name);
  const int64_t each = bits_of(wanted.element) / 8;
  if (entry == nullptr || entry->element != wanted.element || entry->shape != slice.box.size) {
    fail(Code::kDamagedCheckpoint, file.path(), "tensor", slice.stored_name,
         entry == nullptr ? "is missing" : "is not the one that the index names");
  }
  uint64_t hash = 0;
  if (slice.box == wanted.box) {
    hash = read_whole(file, *entry, out);
  } else {
    SliceStream stream(file, *entry);
    Box part;
    overlap(slice.box, wanted.box, part);
    for_each_run(slice.box, wanted.box, part, [&](int64_t from, int64_t to, int64_t count) {
      stream.copy(from * each,
                  out.subspan(static_cast<size_t>(to * each), static_cast<size_t>(count * each)));
    });
    hash = stream.finish();
  }
  if (hex(hash) != slice.hash) {
    fail(Code::kDamagedCheckpoint, file.path(), "tensor", wanted.name, to_text(slice.box),
         "is damaged: its checksum is", hex(hash), "and should be", slice.hash);
  }
  return entry->bytes();
}

}  // namespace troupe
