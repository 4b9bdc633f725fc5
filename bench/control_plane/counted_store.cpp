#include "bench/control_plane/counted_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <string_view>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"

namespace troupe::control_plane {
namespace {

constexpr std::chrono::milliseconds kTimeout{300'000};
constexpr std::string_view kBeats = "beat/";  // keys of heartbeats
constexpr int64_t kRead = 3, kReadList = 3, kWrite = 1, kClaim = 1, kLook = 1, kConnect = 2;

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

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

void raise(std::atomic<int64_t>& most, int64_t to) {
  for (int64_t was = most; was < to && !most.compare_exchange_weak(was, to);) {
  }
}

}  // namespace

Counts& Counts::operator+=(const Counts& other) {
  requests += other.requests;
  in_time += other.in_time;
  bytes += other.bytes;
  longest_key = std::max(longest_key, other.longest_key);
  largest_value = std::max(largest_value, other.largest_value);
  return *this;
}

void Tally::add(const Counts& counts) {
  requests_ += counts.requests;
  in_time_ += counts.in_time;
  bytes_ += counts.bytes;
  raise(longest_key_, counts.longest_key);
  raise(largest_value_, counts.largest_value);
}

Counts Tally::take() {
  return {.requests = requests_.exchange(0),
          .in_time = in_time_.exchange(0),
          .bytes = bytes_.exchange(0),
          .longest_key = longest_key_.exchange(0),
          .largest_value = largest_value_.exchange(0)};
}

struct CountedStore::Connection {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

CountedStore::CountedStore(const StoreAddress& at, std::shared_ptr<Tally> tally,
                           std::chrono::milliseconds delay)
    : connection_(std::make_unique<Connection>(connected(at))),
      tally_(std::move(tally)),
      delay_(delay) {
  tally_->add({.requests = kConnect});
}

CountedStore::~CountedStore() = default;

template <class F>
void CountedStore::ask(const std::string& key, F&& f) {
  if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
  try {
    f();
  } catch (const std::exception& e) {
    fail(Code::kRankLost, "the store's \"" + key + '"', first_line(e.what()));
  }
}

void CountedStore::count(int64_t requests, const std::string& key, size_t value) {
  const auto size = static_cast<int64_t>(full(key).size()), of_value = static_cast<int64_t>(value);
  tally_->add({.requests = requests,
               .bytes = requests * size + of_value,
               .longest_key = size,
               .largest_value = of_value});
}

void CountedStore::count_look(int64_t requests, size_t bytes) {
  const auto of_all = requests * static_cast<int64_t>(bytes);
  tally_->add({.requests = requests, .in_time = requests, .bytes = of_all});
}

bool CountedStore::is_new(const std::string& key, const std::string& found) {
  if (key.starts_with(kBeats)) return false;
  const std::lock_guard lock(mutex_);
  std::string& seen = seen_[full(key)];
  if (seen == found) return false;
  seen = found;
  return true;
}

void CountedStore::post(const std::string& key, const std::string& text) {
  ask(key, [&] { connection_->store->set(full(key), bytes_of(text)); });
  count(kWrite, key, text.size());
  if (key.starts_with(kBeats)) tally_->add({.in_time = kWrite});
}

std::optional<std::string> CountedStore::peek(const std::string& key) {
  std::optional<std::string> out;
  ask(key, [&] {
    if (!connection_->store->check({full(key)})) return;
    const std::vector<uint8_t> bytes = connection_->store->get(full(key));
    out.emplace(bytes.begin(), bytes.end());
  });
  if (!out) {
    count_look(kLook, full(key).size());
  } else if (is_new(key, *out)) {
    count(kRead, key, out->size());
  } else {
    count_look(kRead, full(key).size() + out->size());
  }
  return out;
}

std::optional<std::vector<std::string>> CountedStore::peek_all(
    const std::vector<std::string>& keys) {
  std::vector<std::string> all;
  size_t bytes = 0;
  for (const std::string& key : keys) bytes += all.emplace_back(full(key)).size();
  std::optional<std::vector<std::string>> out;
  ask(keys.front(), [&] {
    if (!connection_->store->check(all)) return;
    out.emplace();
    for (const std::vector<uint8_t>& value : connection_->store->multiGet(all)) {
      out->emplace_back(value.begin(), value.end());
    }
  });
  if (!out) {
    count_look(kLook, bytes);
    return out;
  }
  Counts counts{.requests = kReadList, .bytes = kReadList * static_cast<int64_t>(bytes)};
  for (size_t i = 0; i < all.size(); ++i) {
    const auto size = static_cast<int64_t>(out->at(i).size());
    counts +=
        {.bytes = size, .longest_key = static_cast<int64_t>(all[i].size()), .largest_value = size};
  }
  tally_->add(counts);
  return out;
}

std::string CountedStore::read(const std::string& key, std::chrono::milliseconds timeout) {
  std::string out;
  ask(key, [&] {
    connection_->store->wait({full(key)}, timeout);
    const std::vector<uint8_t> bytes = connection_->store->get(full(key));
    out.assign(bytes.begin(), bytes.end());
  });
  count(kRead, key, out.size());
  return out;
}

std::string CountedStore::claim(const std::string& key, const std::string& text) {
  std::string out;
  ask(key, [&] {
    const std::vector<uint8_t> bytes =
        connection_->store->compareSet(full(key), {}, bytes_of(text));
    out.assign(bytes.begin(), bytes.end());
  });
  count(kClaim, key, text.size() + out.size());
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
