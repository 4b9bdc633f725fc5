#include "troupe/distributed/world/tcp_key_value_store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <exception>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"

namespace troupe {
namespace {

// A value that no rank writes.
const std::vector<uint8_t> kNobodys = {0};

std::vector<uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string as_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

template <class F>
void guarded(const std::string& key, F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    fail(Code::kRankLost, "the store's \"" + key + '"', first_line(e.what()));
  }
}

}  // namespace

TcpKeyValueStore::TcpKeyValueStore(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)) {}

TcpKeyValueStore::~TcpKeyValueStore() = default;

// get() would wait for a key that is missing, and so asks twice, after check(). A server that is to
// exchange one value for itself answers at once: with the value that is there, or, where there is
// none, with the one that it was to find, and makes no key.
std::optional<std::string> TcpKeyValueStore::found(const std::string& key) {
  const std::vector<uint8_t> bytes = store_->compareSet(key, kNobodys, kNobodys);
  if (bytes == kNobodys) return {};
  return as_text(bytes);
}

void TcpKeyValueStore::post(const std::string& key, const std::string& text) {
  guarded(key, [&] { store_->set(key, as_bytes(text)); });
}

std::optional<std::string> TcpKeyValueStore::peek(const std::string& key) {
  std::optional<std::string> out;
  guarded(key, [&] { out = found(key); });
  return out;
}

std::optional<std::vector<std::string>> TcpKeyValueStore::peek_all(
    const std::vector<std::string>& keys) {
  std::optional<std::vector<std::string>> out;
  guarded(keys.front() + "\" and so on, \"" + keys.back(), [&] {
    if (keys.size() == 1) {
      if (std::optional<std::string> one = found(keys[0])) out.emplace({*std::move(one)});
      return;
    }
    if (!store_->check(keys)) return;
    out.emplace();
    for (const std::vector<uint8_t>& bytes : store_->multiGet(keys)) {
      out->push_back(as_text(bytes));
    }
  });
  return out;
}

std::string TcpKeyValueStore::read(const std::string& key, std::chrono::milliseconds timeout) {
  std::optional<std::string> out;
  guarded(key, [&] {
    store_->wait({key}, timeout);
    out = found(key);
  });
  if (!out) fail(Code::kRankLost, "the store's \"" + key + '"', "is gone again");
  return *std::move(out);
}

std::string TcpKeyValueStore::claim(const std::string& key, const std::string& text) {
  std::string out;
  guarded(key, [&] { out = as_text(store_->compareSet(key, {}, as_bytes(text))); });
  return out;
}

}  // namespace troupe
