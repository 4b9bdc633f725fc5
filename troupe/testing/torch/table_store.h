// A key-value store in memory, for tests of rendezvous, heartbeats and gathered texts.
#pragma once

#include <algorithm>
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

// What the store holds; `gone` makes it unreachable. Counts what is asked of it, but for looks that
// find nothing: how many there are is a matter of time.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  bool gone = false;
  int64_t written = 0, found = 0;  // values
  size_t bytes = 0, longest = 0;   // of values, both ways; of one
};

class TableStore : public KeyValueStore {
 public:
  explicit TableStore(std::shared_ptr<Table> table) : table_(std::move(table)) {}
  void post(const std::string& key, const std::string& text) override {
    const auto lock = locked();
    count(text, table_->written);
    table_->texts[key] = text;
  }
  std::optional<std::string> peek(const std::string& key) override {
    const auto lock = locked();
    const auto found = table_->texts.find(key);
    if (found == table_->texts.end()) return {};
    count(found->second, table_->found);
    return found->second;
  }
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override {
    std::vector<std::string> out;
    for (const std::string& key : keys) {
      const std::optional<std::string> text = peek(key);
      if (!text) return {};
      out.push_back(*text);
    }
    return out;
  }
  std::string read(const std::string& key, std::chrono::milliseconds) override {
    return peek(key).value_or("");
  }
  std::string claim(const std::string& key, const std::string& text) override {
    const auto lock = locked();
    return table_->texts.emplace(key, text).first->second;
  }

 private:
  std::unique_lock<std::mutex> locked() {
    std::unique_lock lock(table_->mutex);
    if (table_->gone) fail(Code::kRankLost, "the table", "is gone");
    return lock;
  }
  void count(const std::string& text, int64_t& values) {
    ++values;
    table_->bytes += text.size();
    table_->longest = std::max(table_->longest, text.size());
  }
  std::shared_ptr<Table> table_;
};

}  // namespace troupe::testing
