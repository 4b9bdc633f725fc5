// The heartbeat: what each rank writes to the key-value store once a second, and at once when it
// ends (distributed/world/watch.h). One value says all that others may want to know of a rank, so
// that whoever looks for a lost one reads one key a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/codes.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

inline constexpr size_t kLongestWords = 4096;

// What the operating system says of a process of this machine.
enum class Seen : uint8_t { kNothing, kEnded, kStopped };

struct SeenRank {
  int64_t rank = -1;
  Seen how = Seen::kNothing;
  bool operator==(const SeenRank&) const = default;
};

struct Beat {
  int64_t count = 0;
  double time = 0;  // by its own clock
  RankStatus status = {};
  double age = 0;        // of `status`, in seconds
  bool waiting = false;  // for other ranks
  bool lost = false;     // a collective failed: it looks for the rank at fault, and then ends
  std::vector<SeenRank> seen = {};  // of its machine, the first few that are gone or stand still
  Code code = Code::kRankLost;      // of `words`
  std::string words = {};           // why it ends by itself; empty: it does not
};

std::string beat_text(const Beat& beat);
std::optional<Beat> beat_of(const std::string& text);  // empty: no rank wrote it

// So many bytes of a message that others read, cut between characters.
std::string within_words(const std::string& text);

}  // namespace troupe
