// Each rank gives a text at the board and gets those of all.
//   rank r   writes ROUND/r
//   rank 0   takes all of them once they are there, and writes ROUND/all
// so that each reads and writes two, where each asking each would be as many as ranks squared.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/board.h"

namespace troupe {

struct Gathering {
  int64_t rank = 0, size = 1;
  std::string topic;  // for messages
  std::string round;  // not used before
  // Absent: as long as those that are waited for are there, whatever they do.
  std::optional<std::chrono::milliseconds> timeout = {};
  // For so long the beats (board.h) of one that is waited for may stay away; where there is no
  // timeout.
  std::chrono::milliseconds silence{600'000};
  // As far as this rank can tell; of itself: it has said its last words, and waits for nobody.
  std::function<bool(int64_t rank)> has_ended;
};

// In rank order. E6001 as soon as one is known to have ended that had not written, or with the
// first that has not when the time is over, or with one that is not heard any more.
std::vector<std::string> gather_texts(Board& board, const Gathering& gathering,
                                      const std::string& mine);

}  // namespace troupe
