#include "troupe/checkpoint/files/reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kLongestManifest = int64_t{1} << 30;  // bytes: some millions of tensors
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

CheckpointReader::CheckpointReader(std::string folder)
    : CheckpointReader(folder, read_manifest(folder)) {}

CheckpointReader::CheckpointReader(std::string folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)), shards_(manifest_.shards.size()) {
  for (size_t i = 0; i < manifest_.shards.size(); ++i) {
    const ShardInfo& info = manifest_.shards[i];
    const std::string path = folder_ + '/' + info.index;
    const std::string text = read_file(path, Code::kUnreadableCheckpoint, kLongestManifest);
    if (const std::string found = hex(hash64(text)); found != info.index_hash) {
      fail(Code::kDamagedCheckpoint, path, "is damaged: its checksum is", found, "and should be",
           info.index_hash);
    }
    int64_t left = info.bytes;
    for (StoredTensor& stored : parse_index(text, path)) {
      const TensorBox& t = stored.tensor;
      if ((left -= t.bytes()) < 0) {
        fail(Code::kDamagedCheckpoint, path, "has more tensors than the", info.bytes, "bytes of",
             info.file, "hold:", t.name, to_text(t.box.size));
      }
      Tensor& tensor =
          tensors_.try_emplace(t.name, Tensor{t.element, t.box.global, {}}).first->second;
      if (tensor.element != t.element || tensor.global != t.box.global) {
        fail(Code::kDamagedCheckpoint, path, "tensor", t.name, "is", name_of(t.element),
             to_text(t.box.global), "here and", name_of(tensor.element), to_text(tensor.global),
             "elsewhere");
      }
      tensor.slices.push_back({i, t.box, stored.hash, stored_name(t)});
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    std::vector<Box> boxes;
    for (const Tensor::Slice& slice : tensor.slices) boxes.push_back(slice.box);
    if (!tiles(boxes, Box::whole(tensor.global))) {
      fail(Code::kDamagedCheckpoint, folder_, "the", boxes.size(), "slices of tensor", name,
           "do not cover", to_text(tensor.global), "once each");
    }
  }
}

const CheckpointReader::Tensor* CheckpointReader::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::vector<std::string> CheckpointReader::extra_files() const {
  std::set<std::string> known;
  for (const ShardInfo& shard : manifest_.shards) known.insert(shard.file);
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

const SafetensorsFile& CheckpointReader::shard(size_t i) const {
  Shard& out = shards_[i];
  // Where it throws the flag stays unset, and the next try opens the file again.
  std::call_once(out.once, [&] {
    const ShardInfo& info = manifest_.shards[i];
    const std::string path = folder_ + '/' + info.file;
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
    const std::string wanted = std::to_string(manifest_.step);
    if (run == nullptr || step == nullptr || *run != manifest_.run || *step != wanted) {
      fail(Code::kDamagedCheckpoint, path, "belongs to run", run ? *run : "?", "step",
           step ? *step : "?", "and the manifest to run", manifest_.run, "step", wanted);
    }
    if (const std::string found = hex(file->header_hash()); found != info.header) {
      fail(Code::kDamagedCheckpoint, path, "is damaged: its header's checksum is", found,
           "and should be", info.header);
    }
    out.file = std::move(file);
  });
  return *out.file;
}

int64_t CheckpointReader::read(const Tensor& tensor, const std::string& name, const Box& box,
                               std::span<std::byte> out, const Faults& faults) const {
  int64_t bytes = 0;
  for (const Tensor::Slice& slice : tensor.slices) {
    Box part;
    if (overlap(slice.box, box, part)) bytes += read_slice(tensor, name, slice, box, out, faults);
  }
  return bytes;
}

int64_t CheckpointReader::read_slice(const Tensor& tensor, const std::string& name,
                                     const Tensor::Slice& slice, const Box& box,
                                     std::span<std::byte> out, const Faults& faults) const {
  for (int attempt = 1;; ++attempt) {
    try {
      const std::string path = folder_ + '/' + manifest_.shards[slice.shard].file;
      if (faults.at("load.read", manifest_.step) == FaultAction::kEio) {
        fail_file(Code::kUnreadableCheckpoint, path, "read", EIO);
      }
      return try_slice(tensor, name, slice, box, out);
    } catch (const Error& e) {
      if (e.code() != Code::kUnreadableCheckpoint || attempt == kTries) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10 << attempt));
    }
  }
}

int64_t CheckpointReader::try_slice(const Tensor& tensor, const std::string& name,
                                    const Tensor::Slice& slice, const Box& box,
                                    std::span<std::byte> out) const {
  const SafetensorsFile& file = shard(slice.shard);
  const SafetensorsEntry* const entry = file.find(slice.stored_name);
  const int64_t each = bits_of(tensor.element) / 8;
  if (entry == nullptr || entry->element != tensor.element || entry->shape != slice.box.size) {
    fail(Code::kDamagedCheckpoint, file.path(), "tensor", slice.stored_name,
         entry == nullptr ? "is missing" : "is not the one that the index names");
  }
  uint64_t hash = 0;
  if (slice.box == box) {
    hash = read_whole(file, *entry, out);
  } else {
    SliceStream stream(file, *entry);
    Box part;
    overlap(slice.box, box, part);
    for_each_run(slice.box, box, part, [&](int64_t from, int64_t to, int64_t count) {
      stream.copy(from * each,
                  out.subspan(static_cast<size_t>(to * each), static_cast<size_t>(count * each)));
    });
    hash = stream.finish();
  }
  if (hex(hash) != slice.hash) {
    fail(Code::kDamagedCheckpoint, file.path(), "tensor", name, to_text(slice.box),
         "is damaged: its checksum is", hex(hash), "and should be", slice.hash);
  }
  return entry->bytes();
}

}  // namespace troupe
