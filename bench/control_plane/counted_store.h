// A rank's connection to a store's server (TCPStore) that counts what it asks.
//
// A request is a message that the server answers or takes: a key that is there is read by three
// (check, wait, get), a list of keys by as many, a key that is not there is looked for by one, a
// value is written by one. So distributed/world/world.cpp asks. A new connection costs two. How many
// heartbeats there are, looks at them, and looks that find nothing or what the look before found, is
// a matter of time: they are counted apart.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/threads.h"

namespace troupe::control_plane {

struct Counts {
  int64_t requests = 0;  // with those in time
  int64_t in_time = 0;   // heartbeats, looks at them, looks that found nothing new
  int64_t bytes = 0;     // of keys and values, both ways
  int64_t longest_key = 0, largest_value = 0;

  int64_t found() const { return requests - in_time; }
  Counts& operator+=(const Counts& other);  // the longest and the largest of both
};

// Of one rank. Any thread counts.
class Tally {
 public:
  void add(const Counts& counts);
  Counts take();  // since the last call

 private:
  std::atomic<int64_t> requests_ = 0, in_time_ = 0, bytes_ = 0, longest_key_ = 0,
                       largest_value_ = 0;
};

struct StoreAddress {
  std::string host = "127.0.0.1";
  int port = 0;
};

// E6002 where nobody answers. A MemoryStore, since a World whose ranks are threads takes one.
class CountedStore : public MemoryStore {
 public:
  // `delay`: before each request, as of a host that answers slowly.
  CountedStore(const StoreAddress& at, std::shared_ptr<Tally> tally,
               std::chrono::milliseconds delay = {});
  ~CountedStore() override;
  // What all keys begin with from now on: not while another thread asks.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  void post(const std::string& key, const std::string& text) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override;
  std::string read(const std::string& key, std::chrono::milliseconds timeout) override;
  std::string claim(const std::string& key, const std::string& text) override;

 private:
  struct Connection;
  std::string full(const std::string& key) const { return prefix_ + key; }
  template <class F>
  void ask(const std::string& key, F&& f);
  void count(int64_t requests, const std::string& key, size_t value);
  void count_look(int64_t requests, size_t bytes);
  bool is_new(const std::string& key, const std::string& found);

  std::unique_ptr<Connection> connection_;
  std::shared_ptr<Tally> tally_;
  std::chrono::milliseconds delay_;
  std::string prefix_ = "troupe/0/";
  std::mutex mutex_;
  std::map<std::string, std::string> seen_;  // what looks found last, by key
};

// What a server holds now, of all ranks.
struct Alive {
  int64_t keys = 0;
  std::vector<std::string> names = {};
  int64_t longest_key() const;
};
Alive keys_alive(const StoreAddress& at);

}  // namespace troupe::control_plane
