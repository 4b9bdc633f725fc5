// A rank's connection to a store's server (TCPStore) that counts what it asks: the messages of the
// client that the program itself has (distributed/world/tcp_key_value_store.h), one at a time.
//
// A request is a message that the server answers or takes; a new connection costs two. How many
// heartbeats there are, looks at them and at `first end`, which come with heartbeats and polls, and
// looks that find nothing or what the look before found, is a matter of time: they are counted apart.
// Of a look at `first end` that is its first message, whatever it finds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/threads.h"

namespace troupe::control_plane {

// What a request is for: a row of purposes.h each, or several in different phases.
enum class Use : uint8_t {
  kConnect,     // the connection itself
  kRendezvous,  // lead, LEAD/here/r, LEAD/met
  kTexts,       // texts/TOPIC/r: distributed/world/all_gather_texts.h
  kBeat,        // beat/r, written
  kEndLook,     // `first end`, looked at
  kEndClaim,    // likewise, claimed
  kBeatsLook,   // beat/r, read
  kVerdict,     // `first end`, written
  kFollow,      // reporter/n, claimed
  kOther
};
inline constexpr size_t kUses = static_cast<size_t>(Use::kOther) + 1;

struct Asked {
  int64_t requests = 0, bytes = 0;
};

struct Counts {
  int64_t requests = 0;  // with those in time
  int64_t in_time = 0;   // heartbeats, looks at them, looks that found nothing new
  int64_t bytes = 0;     // of keys and values, both ways
  int64_t longest_key = 0, largest_value = 0;
  std::array<Asked, kUses> uses = {};  // of requests and bytes

  const Asked& of(Use use) const { return uses[static_cast<size_t>(use)]; }
  int64_t found() const { return requests - in_time; }
  Counts& operator+=(const Counts& other);  // the longest and the largest of both
};

// Of one rank. Any thread counts.
class Tally {
 public:
  void add(const Counts& counts);
  Counts take();  // since the last call

 private:
  std::mutex mutex_;
  Counts counts_;
};

struct StoreAddress {
  std::string host = "127.0.0.1";
  int port = 0;
};

struct Asking {
  std::chrono::milliseconds delay{0};  // before each request, as of a host that answers slowly
  // A key that is there takes three messages (check, wait, get), as before TcpKeyValueStore: what a
  // bar on requests must not allow.
  bool looks_by_three = false;
};

// E6002 where nobody answers. A MemoryStore, since a World whose ranks are threads takes one.
class CountedStore : public MemoryStore {
 public:
  CountedStore(const StoreAddress& at, std::shared_ptr<Tally> tally, Asking how = {});
  ~CountedStore() override;
  // What all keys begin with from now on: not while another thread asks.
  void set_prefix(std::string prefix);

  void post(const std::string& key, const std::string& text) override;
  std::optional<std::string> peek(const std::string& key) override;
  std::optional<std::vector<std::string>> peek_all(const std::vector<std::string>& keys) override;
  std::string read(const std::string& key, std::chrono::milliseconds timeout) override;
  std::string claim(const std::string& key, const std::string& text) override;

 private:
  struct Connection;
  template <class F>
  Counts ask(Use use, F&& f);
  std::optional<std::string> look(const std::string& key);
  bool is_new(const std::string& key, const std::string& found);

  std::unique_ptr<Connection> connection_;
  std::shared_ptr<Tally> tally_;
  Asking how_;
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
