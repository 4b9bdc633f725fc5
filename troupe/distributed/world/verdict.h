// Which rank a run ends for: found once, by the rank at fault itself or by one of those that lost
// it, and read by all others under one key, kFirstEnd.
//   RANK            that rank ended first, or lost another and looks which
//   RANK VERDICT    what is known of it
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/codes.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

struct Verdict {
  int64_t by = -1;    // the rank that found it
  int64_t rank = -1;  // the rank at fault; -1: none is
  Code code = Code::kRankLost;
  Code cause = Code::kRankLost;  // the code that rank ended with, if it said one; else `code`
  RankStatus status = {};        // its last known status
  std::string causes = {};       // "rank 1 of 4 exited without a message; it was in step 8, .."
  bool said_by_itself() const { return rank >= 0 && by == rank; }
};

// "rank 1 of 4 failed: out of memory".
std::string failed_text(int64_t rank, int64_t size, const std::string& words);

struct FirstEnd {
  int64_t rank = -1;
  std::optional<Verdict> verdict = {};
};

std::string to_text(const FirstEnd& first);
// E6001 for a text that no rank wrote.
FirstEnd first_end_of(const std::string& text);
std::string to_text(const Verdict& verdict);  // the value of kFirstEnd with it

}  // namespace troupe
