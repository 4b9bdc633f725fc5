// What ranks write down for each other at the meeting point: small texts. From any thread. E6001
// where the meeting point is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

class Board {
 public:
  virtual ~Board() = default;
  virtual void post(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;  // does not wait
  // Absent: one of them is not there yet.
  virtual std::optional<std::vector<std::string>> peek_all(
      const std::vector<std::string>& keys) = 0;
  // E6001 where it is not there in time.
  virtual std::string read(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Posts where nothing is yet; what is there then.
  virtual std::string claim(const std::string& key, const std::string& text) = 0;
};

// Where the first rank that ends writes its number, so that those of other machines know.
inline constexpr const char* kFirstEnd = "first end";

// Where a rank posts something else each second (distributed/world/watch.h): while it does, it is
// there.
std::string beat_key(int64_t rank);

// PREFIX0 .. PREFIX(size - 1).
std::vector<std::string> keys_of_ranks(const std::string& prefix, int64_t size);

// Several texts as one, and back; E6001 for what `joined` has not made.
std::string joined(const std::vector<std::string>& texts);
std::vector<std::string> parted(const std::string& text);

// A number that another rank wrote. E6001 where it is none: a stranger, or a rank of another
// program, wrote there.
int64_t number_of_peer(const std::string& text, const std::string& what);

// Between two looks at a board. Pauses double up to a time in which it bears looks from `size`.
std::chrono::milliseconds next_pause(std::chrono::milliseconds pause, int64_t size);
std::chrono::milliseconds longest_pause(int64_t size);

}  // namespace troupe
