#include "troupe/distributed/world/threads.h"

#include "troupe/core/check.h"
#include "troupe/distributed/group/thread_backend.h"

namespace troupe {

void MemoryStore::post(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  texts_[key] = text;
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::peek(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = texts_.find(key);
  return found == texts_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::vector<std::string>> MemoryStore::peek_all(
    const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const std::string& key : keys) {
    const auto found = texts_.find(key);
    if (found == texts_.end()) return {};
    out.push_back(found->second);
  }
  return out;
}

std::string MemoryStore::read(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return texts_.contains(key); })) {
    fail(Code::kRankLost, "the store of threads", "has no \"" + key + '"');
  }
  return texts_[key];
}

std::string MemoryStore::claim(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  const std::string out = texts_.emplace(key, text).first->second;
  changed_.notify_all();
  return out;
}

Threads::Threads() : ranks(thread_ranks()), store(std::make_shared<MemoryStore>()) {}

void Threads::abandon(const std::string& why) {
  ended = true;
  troupe::abandon(*ranks, why);
}

}  // namespace troupe
