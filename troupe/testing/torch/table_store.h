// A key-value store in memory, for tests of rendezvous, heartbeats and gathered texts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/world/key_value_store.h"

namespace troupe::testing {

// What the store holds; `gone` makes it unreachable. Counts what is asked of it: requests, of which
// one may be for many keys, and the values that they wrote or found. Looks that find nothing are
// requests alone: how many there are is a matter of time.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  bool gone = false;
  int64_t requests = 0;
  int64_t written = 0, found = 0;  // values
  size_t bytes = 0, longest = 0;   // of values, both ways; of one
  size_t longest_key = 0;
};

class TableStore : public KeyValueStore {
 public:
  explicit TableStore(std::shared_ptr<Table> table) : table_(std::move(table)) {}
  void post(const std::string& key, const std::string& text) override {
    const auto lock = asked(key);
    count(text, table_->written);
    table_->texts[key] = text;
  }
  std::optional<std::string> peek(const std::string& key) override {
    const auto lock = asked(key);
    return found(key);
  }
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override {
    const auto lock =
        asked(*std::ranges::max_element(keys, {}, [](const auto& key) { return key.size(); }));
    std::vector<std::string> out;
    for (const std::string& key : keys) {
      std::optional<std::string> text = found(key);
      if (!text) return {};
      out.push_back(*std::move(text));
    }
    return out;
  }
  std::string read(const std::string& key, std::chrono::milliseconds) override {
    return peek(key).value_or("");
  }
  std::string claim(const std::string& key, const std::string& text) override {
    const auto lock = asked(key);
    return table_->texts.emplace(key, text).first->second;
  }

 private:
  std::unique_lock<std::mutex> asked(const std::string& key) {
    std::unique_lock lock(table_->mutex);
    ++table_->requests;
    table_->longest_key = std::max(table_->longest_key, key.size());
    if (table_->gone) fail(Code::kRankLost, "the table", "is gone");
    return lock;
  }
  std::optional<std::string> found(const std::string& key) {
    const auto at = table_->texts.find(key);
    if (at == table_->texts.end()) return {};
    count(at->second, table_->found);
    return at->second;
  }
  void count(const std::string& text, int64_t& values) {
    ++values;
    table_->bytes += text.size();
    table_->longest = std::max(table_->longest, text.size());
  }
  std::shared_ptr<Table> table_;
};

}  // namespace troupe::testing
