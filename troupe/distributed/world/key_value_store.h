// The key-value store through which ranks of a run find and watch each other (c10d's TCPStore).
// Values are short texts. Thread-safe. Throws E6001 when the store's server is gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

inline constexpr size_t kKeysOfRequest = 1024;  // at most, of 100 KiB and less

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void post(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;  // does not wait
  // Empty while any of the keys is missing.
  virtual std::optional<std::vector<std::string>> peek_all(
      const std::vector<std::string>& keys) = 0;
  // Waits for the key; E6001 after `timeout`.
  virtual std::string read(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Sets the key if it is missing (compare-and-set). Returns the value it has then.
  virtual std::string claim(const std::string& key, const std::string& text) = 0;
};

// The values of keys some of which may be missing: one request where none is, else about
// 2 log2 N for each that is, by halves.
std::vector<std::optional<std::string>> peek_each(KeyValueStore& store,
                                                  const std::vector<std::string>& keys);

// The key at which stands which rank ended first, and what is known of it, for ranks on other
// machines (distributed/world/verdict.h).
inline constexpr const char* kFirstEnd = "first end";
int64_t first_end_rank(const std::string& text);  // of its value. E6001 where no rank wrote it

// The key of a rank's heartbeat: its value changes once a second while the rank is alive
// (distributed/world/watch.h).
std::string beat_key(int64_t rank);

// PREFIX0 .. PREFIX(size - 1).
std::vector<std::string> keys_of_ranks(const std::string& prefix, int64_t size);

// Encodes several texts as one, and back. E6001 for a text that `joined` did not make.
std::string joined(const std::vector<std::string>& texts);
std::vector<std::string> parted(const std::string& text);

// Parses a number that another rank wrote. E6001 if it is none: some other program wrote to the
// store.
int64_t number_of_peer(const std::string& text, const std::string& what);

// The pause between two polls of the store: doubles, up to a length at which the store keeps up
// with `size` ranks.
std::chrono::milliseconds next_pause(std::chrono::milliseconds pause, int64_t size);
std::chrono::milliseconds longest_pause(int64_t size);

}  // namespace troupe
