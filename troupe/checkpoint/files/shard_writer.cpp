#include "troupe/checkpoint/files/shard_writer.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kLeastShard = int64_t{64} << 20;
// Hashed and written while still in the cache: one pass over memory, and not two.
constexpr size_t kHashedAtOnce = size_t{1} << 20;

std::string shard_name(int rank, size_t number) {
  char name[40];
  std::snprintf(name, sizeof(name), "shard-%05d-%03d", rank, static_cast<int>(number));
  return name;
}

// Consecutive names stay together; shards have about equal bytes.
std::vector<std::vector<ShardPiece>> divide(std::vector<ShardPiece> pieces, int threads) {
  std::ranges::sort(pieces, [](const ShardPiece& a, const ShardPiece& b) {
    return stored_name(a.tensor) < stored_name(b.tensor);
  });
  const int64_t total =
      std::transform_reduce(pieces.begin(), pieces.end(), int64_t{0}, std::plus<>(),
                            [](const ShardPiece& p) { return p.tensor.bytes(); });
  const int64_t each = std::max(kLeastShard, (total + threads - 1) / std::max(threads, 1));
  std::vector<std::vector<ShardPiece>> out;
  int64_t filled = each;
  for (ShardPiece& piece : pieces) {
    if (filled >= each) out.emplace_back(), filled = 0;
    filled += piece.tensor.bytes();
    out.back().push_back(std::move(piece));
  }
  return out;
}

void check_fault(const Faults& faults, const char* point, const std::string& path, int64_t step) {
  switch (faults.at(point, step)) {
    case FaultAction::kEnospc: fail_file(Code::kNoSpace, path, "write", ENOSPC);
    case FaultAction::kEio: fail_file(Code::kFileFailed, path, "write", EIO);
    default: return;
  }
}

class ShardFile {
 public:
  ShardFile(Fs& fs, const ShardTask& task, std::string name, std::vector<ShardPiece> pieces)
      : fs_(fs), task_(task), name_(std::move(name)), pieces_(std::move(pieces)) {}

  ShardInfo write() {
    std::vector<SafetensorsEntry> entries;
    for (const ShardPiece& p : pieces_) {
      entries.push_back({stored_name(p.tensor), p.tensor.element, p.tensor.box.size});
    }
    const SafetensorsLayout layout = layout_safetensors(
        std::move(entries),
        {{"format", "pt"}, {"troupe.run", task_.run}, {"troupe.step", std::to_string(task_.step)}});
    ShardInfo info;
    info.file = name_ + ".safetensors";
    info.index = name_ + ".jsonl";
    NewFile file(fs_, task_.folder + '/' + info.file);
    std::string index;
    write_safetensors(file, layout, [&](const SafetensorsEntry& entry, const WriteBytes& write) {
      const ShardPiece& piece = piece_of(entry.name);
      index += to_json(StoredTensor{piece.tensor, hex(write_piece(piece, write, info.unsound))});
    });
    info.bytes = file.size();
    file.finish();
    NewFile index_file(fs_, task_.folder + '/' + info.index);
    index_file.write(index);
    index_file.finish();
    info.header = hex(hash64(layout.header));
    info.index_bytes = static_cast<int64_t>(index.size());
    info.index_hash = hex(hash64(index));
    info.tensors = static_cast<int64_t>(pieces_.size());
    return info;
  }

 private:
  // divide() has sorted them by this name.
  const ShardPiece& piece_of(const std::string& name) const {
    return *std::ranges::lower_bound(pieces_, name, {},
                                     [](const ShardPiece& p) { return stored_name(p.tensor); });
  }

  uint64_t write_piece(const ShardPiece& piece, const WriteBytes& write, int64_t& unsound) const {
    Hasher hasher;
    const auto take = [&](std::span<const std::byte> chunk) {
      if (task_.abandon != nullptr && task_.abandon->load()) throw Abandoned();
      hasher.update(chunk);
      if (piece.tensor.element != Element::kBool) {
        unsound += count_unsound(piece.tensor.element, chunk);
      }
      write(chunk);
    };
    if (piece.make) piece.make(take);
    for (size_t at = 0; at < piece.bytes.size(); at += kHashedAtOnce) {
      take(piece.bytes.subspan(at, std::min(kHashedAtOnce, piece.bytes.size() - at)));
    }
    return hasher.digest64();
  }

  Fs& fs_;
  const ShardTask& task_;
  const std::string name_;
  const std::vector<ShardPiece> pieces_;
};

void check_pieces(const std::vector<ShardPiece>& pieces) {
  std::vector<std::string> names;
  for (const ShardPiece& p : pieces) {
    validate(p.tensor.box);
    TROUPE_CHECK(p.make || static_cast<int64_t>(p.bytes.size()) == p.tensor.bytes(), p.tensor.name,
                 "has", p.bytes.size(), "bytes, its box needs", p.tensor.bytes());
    names.push_back(stored_name(p.tensor));
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  TROUPE_CHECK(twice == names.end(), "two tensors are saved as", *twice);
}

}  // namespace

std::vector<ShardInfo> write_shards(Fs& fs, const Faults& faults, const ShardTask& task,
                                    std::vector<ShardPiece> pieces) {
  check_pieces(pieces);
  const auto shards = divide(std::move(pieces), task.threads);
  std::vector<ShardInfo> out(shards.size());
  std::atomic<size_t> next = 0;
  std::exception_ptr first;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < shards.size();) {
      try {
        const std::string name = shard_name(task.rank, i);
        check_fault(faults, "save.shard", task.folder + '/' + name, task.step);
        out[i] = ShardFile(fs, task, name, shards[i]).write();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = shards.size();  // The others stop at their next shard.
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min<size_t>(shards.size(), static_cast<size_t>(task.threads)); ++i) {
    threads.emplace_back(work);
  }
  work();
  threads.clear();
  if (first) std::rethrow_exception(first);
  return out;
}

int writer_of(const ShardInfo& shard) {
  int rank = -1, number = -1;
  return std::sscanf(shard.file.c_str(), "shard-%d-%d", &rank, &number) == 2 ? rank : -1;
}

}  // namespace troupe
