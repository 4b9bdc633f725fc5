#include "bench/control_plane/counted_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"
#include "troupe/distributed/world/tcp_key_value_store.h"

namespace troupe::control_plane {
namespace {

using Bytes = std::vector<uint8_t>;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kTimeout{300'000};
constexpr std::string_view kBeats = "beat/";  // keys of heartbeats
constexpr int64_t kConnect = 2;

c10::intrusive_ptr<c10d::TCPStore> connected(const StoreAddress& at) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(at.port);
  how.waitWorkers = false;
  how.timeout = kTimeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(at.host, how);
  } catch (const std::exception& e) {
    fail(Code::kNoRendezvous, at.host + ':' + std::to_string(at.port), first_line(e.what()));
  }
}

// Passes on what it is asked, under a prefix, and counts the messages that TCPStore's client sends:
// it waits for the keys that it gets.
class CountingStore : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  Counts take() { return std::exchange(counts_, {}); }

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override {
    store_->set(sent({key}, 1)[0], value);
    carried(value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    Bytes out = store_->compareSet(sent({key}, 1)[0], expected, desired);
    for (const Bytes* const value : {&expected, &desired, &std::as_const(out)}) carried(*value);
    return out;
  }
  Bytes get(const std::string& key) override {
    Bytes out = store_->get(sent({key}, 2)[0]);
    carried(out);
    return out;
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> out = store_->multiGet(sent(keys, 2));
    for (const Bytes& value : out) carried(value);
    return out;
  }
  bool check(const std::vector<std::string>& keys) override { return store_->check(sent(keys, 1)); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(sent(keys, 1)); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    store_->wait(sent(keys, 1), timeout);
  }
  int64_t add(const std::string& key, int64_t value) override {
    return store_->add(sent({key}, 1)[0], value);
  }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(sent({key}, 1)[0]); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  c10::intrusive_ptr<c10d::Store> clone() override { return store_->clone(); }

 private:
  // The keys as the server has them, each sent so many times.
  std::vector<std::string> sent(const std::vector<std::string>& keys, int64_t messages) {
    std::vector<std::string> out;
    counts_.requests += messages;
    for (const std::string& key : keys) {
      const auto size = std::ssize(out.emplace_back(prefix_ + key));
      counts_.bytes += messages * size;
      counts_.longest_key = std::max<int64_t>(counts_.longest_key, size);
    }
    return out;
  }
  void carried(const Bytes& value) {
    counts_.bytes += std::ssize(value);
    counts_.largest_value = std::max<int64_t>(counts_.largest_value, std::ssize(value));
  }

  const c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string prefix_ = "troupe/0/";
  Counts counts_;
};

Use use_of(const std::string& key, Use beat, Use end) {
  if (key.starts_with(kBeats)) return beat;
  if (key == kFirstEnd) return end;
  if (key.starts_with("texts/")) return Use::kTexts;
  if (key.starts_with("reporter/")) return Use::kFollow;
  const bool meets =
      key == "lead" || key.ends_with("/met") || key.find("/here/") != std::string::npos;
  return meets ? Use::kRendezvous : Use::kOther;
}

Use use_of_look(const std::string& key) {
  return use_of(key, Use::kBeatsLook, Use::kEndLook);
}

}  // namespace

Counts& Counts::operator+=(const Counts& other) {
  requests += other.requests;
  in_time += other.in_time;
  bytes += other.bytes;
  longest_key = std::max(longest_key, other.longest_key);
  largest_value = std::max(largest_value, other.largest_value);
  for (size_t u = 0; u < kUses; ++u) {
    uses[u].requests += other.uses[u].requests;
    uses[u].bytes += other.uses[u].bytes;
  }
  return *this;
}

void Tally::add(const Counts& counts) {
  const std::lock_guard lock(mutex_);
  counts_ += counts;
}

Counts Tally::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(counts_, {});
}

struct CountedStore::Connection {
  c10::intrusive_ptr<CountingStore> counting;
  TcpKeyValueStore keys;
  std::mutex mutex = {};  // one asks at a time, as TCPStore's client has it
};

CountedStore::CountedStore(const StoreAddress& at, std::shared_ptr<Tally> tally, Asking how)
    : tally_(std::move(tally)), how_(how) {
  auto counting = c10::make_intrusive<CountingStore>(connected(at));
  connection_.reset(new Connection{counting, TcpKeyValueStore(counting)});
  Counts counts{.requests = kConnect};
  counts.uses[static_cast<size_t>(Use::kConnect)].requests = kConnect;
  tally_->add(counts);
}

CountedStore::~CountedStore() = default;

void CountedStore::set_prefix(std::string prefix) {
  connection_->counting->set_prefix(std::move(prefix));
}

// What f() asked; E6001 where it fails. The caller adds it.
template <class F>
Counts CountedStore::ask(Use use, F&& f) {
  if (how_.delay.count() > 0) std::this_thread::sleep_for(how_.delay);
  const std::lock_guard lock(connection_->mutex);
  connection_->counting->take();  // what an earlier one asked before it failed
  f();
  Counts out = connection_->counting->take();
  out.uses[static_cast<size_t>(use)] = {.requests = out.requests, .bytes = out.bytes};
  return out;
}

bool CountedStore::is_new(const std::string& key, const std::string& found) {
  if (key.starts_with(kBeats)) return false;
  const std::lock_guard lock(mutex_);
  std::string& seen = seen_[key];
  if (seen == found) return false;
  seen = found;
  return true;
}

void CountedStore::post(const std::string& key, const std::string& text) {
  Counts counts =
      ask(use_of(key, Use::kBeat, Use::kVerdict), [&] { connection_->keys.post(key, text); });
  if (key.starts_with(kBeats)) counts.in_time = counts.requests;
  tally_->add(counts);
}

std::optional<std::string> CountedStore::look(const std::string& key) {
  if (!how_.looks_by_three) return connection_->keys.peek(key);
  try {
    if (!connection_->counting->check({key})) return {};
    const Bytes bytes = connection_->counting->get(key);
    return std::string(bytes.begin(), bytes.end());
  } catch (const std::exception& e) {
    fail(Code::kRankLost, "the store's \"" + key + '"', first_line(e.what()));
  }
}

std::optional<std::string> CountedStore::peek(const std::string& key) {
  std::optional<std::string> out;
  Counts counts = ask(use_of_look(key), [&] { out = look(key); });
  const bool finds = out && is_new(key, *out);
  if (!finds) {
    counts.in_time = counts.requests;
  } else if (key == kFirstEnd) {
    counts.in_time = 1;
  }
  tally_->add(counts);
  return out;
}

std::optional<std::vector<std::string>> CountedStore::peek_all(
    const std::vector<std::string>& keys) {
  std::optional<std::vector<std::string>> out;
  Counts counts = ask(use_of_look(keys.front()), [&] { out = connection_->keys.peek_all(keys); });
  if (!out) counts.in_time = counts.requests;
  tally_->add(counts);
  return out;
}

std::string CountedStore::read(const std::string& key, Milliseconds timeout) {
  std::string out;
  tally_->add(ask(use_of_look(key), [&] { out = connection_->keys.read(key, timeout); }));
  return out;
}

std::string CountedStore::claim(const std::string& key, const std::string& text) {
  std::string out;
  tally_->add(ask(use_of(key, Use::kOther, Use::kEndClaim),
                  [&] { out = connection_->keys.claim(key, text); }));
  return out;
}

int64_t Alive::longest_key() const {
  size_t out = 0;
  for (const std::string& name : names) out = std::max(out, name.size());
  return static_cast<int64_t>(out);
}

Alive keys_alive(const StoreAddress& at) {
  Alive out;
  for (std::string& name : connected(at)->listKeys()) {
    if (name.find("troupe/") == std::string::npos) continue;  // the server's own
    out.names.push_back(std::move(name));
  }
  out.keys = std::ssize(out.names);
  return out;
}

}  // namespace troupe::control_plane
