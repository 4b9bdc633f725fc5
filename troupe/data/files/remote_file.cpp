#include "troupe/data/files/remote_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/file/secrets.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::string cache_folder(const CacheConfig& cache) {
  if (!cache.dir.empty()) return cache.dir;
  const char* const own = std::getenv("XDG_CACHE_HOME");
  if (own != nullptr && *own == '/') return std::string(own) + "/troupe";
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home != '/') {
    fail(Code::kBadValue, "data.cache.dir", "must be given: there is no $HOME to keep it in");
  }
  return std::string(home) + "/.cache/troupe";
}

// Blocks of one version of one object; what is on the disk is a copy that may go at any time.
class Blocks {
 public:
  Blocks(const CacheConfig& cache, const HttpObject& object)
      : root_(cache_folder(cache)),
        own_(object.version().empty()),
        folder_(root_ + '/' + (own_ ? own_name() : name_of(object))),
        most_(cache.most.value) {}
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() {
    std::error_code error;
    if (own_) fs::remove_all(folder_, error);
  }

  // Whether it is here; then `out` is filled from `offset` of the block on.
  bool read(int64_t block, int64_t bytes, int64_t offset, std::span<std::byte> out) const {
    const std::string path = path_of(block);
    try {
      if (!is_there(path)) return false;
      const InputFile file(path);
      if (file.size() != bytes + kHashBytes) return false;
      if (!known_good(block)) {
        std::vector<std::byte> all(static_cast<size_t>(file.size()));
        file.read_at(0, all);
        uint64_t hash = 0;
        std::memcpy(&hash, all.data() + bytes, kHashBytes);
        if (hash64(std::span(all).first(static_cast<size_t>(bytes))) != hash) return false;
        const std::lock_guard lock(mutex_);
        good_.insert(block);
      }
      file.read_at(offset, out);
      return true;
    } catch (const Error&) {
      return false;  // gone meanwhile, or on a bad sector: it is asked for again
    }
  }

  void keep(int64_t block, std::vector<std::byte> bytes) {
    const uint64_t hash = hash64(bytes);
    const auto* const end = reinterpret_cast<const std::byte*>(&hash);
    bytes.insert(bytes.end(), end, end + kHashBytes);
    const std::string path = path_of(block);
    const std::string staged =
        path + ".staging" + std::to_string(::getpid()) + '-' + std::to_string(staged_.fetch_add(1));
    std::error_code error;
    fs::create_directories(folder_, error);  // somebody may have emptied the cache meanwhile
    std::ofstream file(staged, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    file.close();  // not synced: the hash tells what a power cut has left
    if (file) fs::rename(staged, path, error);
    if (!file || error) {
      std::error_code gone;
      fs::remove(staged, gone);
      fail(Code::kFileFailed, path,
           "cannot be written; data.cache says where, and how much is kept:",
           error ? error.message() : "is the disk full?");
    }
    trim(std::ssize(bytes));
  }

 private:
  static constexpr int64_t kHashBytes = 8;

  static std::string name_of(const HttpObject& object) {
    Hasher hasher;
    hasher.update(object.identity() + '\n' + object.version() + '\n' +
                  std::to_string(object.size()));
    return hex(hasher.digest128());
  }
  static std::string own_name() {
    static std::atomic<int64_t> count = 0;
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    return "own-" + std::to_string(::getpid()) + '-' + std::to_string(count.fetch_add(1)) + '-' +
           std::to_string(now);
  }
  std::string path_of(int64_t block) const { return folder_ + '/' + std::to_string(block); }
  bool known_good(int64_t block) const {
    const std::lock_guard lock(mutex_);
    return good_.contains(block);
  }

  // The oldest blocks of all files go where there are more than `most_` bytes; looked at after each
  // sixteenth of that.
  void trim(int64_t added) {
    if (most_ == 0) return;
    const std::lock_guard lock(mutex_);
    added_ += added;
    if (added_ < most_ / 16) return;
    added_ = 0;
    struct Entry {
      fs::file_time_type time;
      int64_t size;
      fs::path path;
    };
    std::vector<Entry> all;
    int64_t sum = 0;
    std::error_code error;
    for (auto it = fs::recursive_directory_iterator(root_, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      std::error_code gone;
      if (!it->is_regular_file(gone) || gone) continue;
      const auto size = static_cast<int64_t>(it->file_size(gone));
      const auto time = it->last_write_time(gone);
      if (gone) continue;
      all.push_back({time, size, it->path()});
      sum += size;
    }
    std::sort(all.begin(), all.end(),
              [](const Entry& a, const Entry& b) { return a.time < b.time; });
    for (const Entry& entry : all) {
      if (sum <= most_ - most_ / 8) break;
      fs::remove(entry.path, error);
      sum -= entry.size;
    }
  }

  const std::string root_;
  const bool own_;  // of this process alone
  const std::string folder_;
  const int64_t most_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> good_;  // whose hash was right
  int64_t added_ = 0;
  std::atomic<int64_t> staged_ = 0;
};

class RemoteFile : public DataFile {
 public:
  RemoteFile(const std::string& url, HttpObject object, const RemoteAccess& remote)
      : path_(without_secrets(url)), object_(std::move(object)), blocks_(remote.cache, object_) {
    if (!object_.version().empty() || object_.size() == 0) return;
    remote.file_log.warning(
        path_ +
        ": the server names no version of it (ETag, Last-Modified): nothing of it "
        "is kept for later runs, and a change of it is not noticed");
  }

  const std::string& path() const override { return path_; }
  int64_t size() const override { return object_.size(); }
  bool is_far() const override { return true; }
  void require_unchanged() const override {}  // each answer tells its version
  void peek(int64_t offset, std::span<std::byte> out) const override { object_.read(offset, out); }

  void read(int64_t offset, std::span<std::byte> out) const override {
    TROUPE_CHECK(offset >= 0 && offset + std::ssize(out) <= size(), path_, offset, out.size());
    while (!out.empty()) {
      const int64_t block = offset / kRemoteBlock, within = offset % kRemoteBlock;
      const auto count = static_cast<size_t>(std::min(std::ssize(out), kRemoteBlock - within));
      read_block(block, within, out.first(count));
      out = out.subspan(count);
      offset += static_cast<int64_t>(count);
    }
  }

 private:
  void read_block(int64_t block, int64_t within, std::span<std::byte> out) const {
    const int64_t first = block * kRemoteBlock, bytes = std::min(kRemoteBlock, size() - first);
    if (blocks_.read(block, bytes, within, out)) return;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !coming_.contains(block); });
      coming_.insert(block);
    }
    try {
      if (!blocks_.read(block, bytes, within, out)) {  // nobody else has brought it meanwhile
        std::vector<std::byte> all(static_cast<size_t>(bytes));
        object_.read(first, all);
        std::copy_n(all.begin() + within, out.size(), out.begin());
        blocks_.keep(block, std::move(all));
      }
    } catch (...) {
      done(block);
      throw;
    }
    done(block);
  }
  void done(int64_t block) const {
    {
      const std::lock_guard lock(mutex_);
      coming_.erase(block);
    }
    changed_.notify_all();
  }

  const std::string path_;
  const HttpObject object_;
  mutable Blocks blocks_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::set<int64_t> coming_;
};

}  // namespace

DataFilePtr find_remote_file(const std::string& url, const RemoteAccess& remote) {
  std::optional<HttpObject> object = HttpObject::find(url, remote);
  if (!object) return nullptr;
  return std::make_shared<RemoteFile>(url, std::move(*object), remote);
}

}  // namespace troupe
