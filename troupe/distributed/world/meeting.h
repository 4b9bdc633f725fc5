// How ranks find each other at a board that may still hold what an earlier meeting left there.
// - Rank 0 writes "lead", its own process: the name of this meeting, which all its keys begin with.
// - Rank r writes LEAD/here/r, its process, and again where the lead has changed.
// - Rank 0 takes all of them once they are there, and writes LEAD/met, the list.
// - Rank r takes the list that has its own process in it.
// Each writes and reads some few texts, however many ranks there are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/distributed/world/board.h"

namespace troupe {

struct Meeting {
  std::string name;                    // of this one alone
  std::vector<std::string> processes;  // of all ranks
};

struct MeetingOptions {
  int64_t rank = 0, size = 1;
  std::string process;  // this one
  std::string place;    // "host:port", for messages
  std::chrono::milliseconds timeout{300'000};
  std::function<void()> check = {};  // called again and again; may throw
  // Rank 0 brought the board and takes it along: who is there already, is of another run.
  bool first_serves = true;
};

// E6002 with who has not come, or is there already, or that the board went away.
Meeting meet(Board& board, const MeetingOptions& options);

}  // namespace troupe
