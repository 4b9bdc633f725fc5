// A KeyValueStore at a server of c10d's TCPStore, in as few messages as its client allows: a value is
// written, looked for, or claimed by one; waited for and read by two; a list of values is looked for
// by one, and read by two more once all are there.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"

namespace c10d {
class Store;
}

namespace troupe {

class TcpKeyValueStore : public KeyValueStore {
 public:
  // A TCPStore, or one that passes on what it is asked to a TCPStore.
  explicit TcpKeyValueStore(c10::intrusive_ptr<c10d::Store> store);
  TcpKeyValueStore(const TcpKeyValueStore&) = delete;
  TcpKeyValueStore& operator=(const TcpKeyValueStore&) = delete;
  ~TcpKeyValueStore() override;

  void post(const std::string& key, const std::string& text) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override;
  std::string read(const std::string& key, std::chrono::milliseconds timeout) override;
  std::string claim(const std::string& key, const std::string& text) override;

 private:
  std::optional<std::string> found(const std::string& key);

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace troupe
