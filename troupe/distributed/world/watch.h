// Ranks that watch each other: each tells the board once a second what it does, and where an
// operation between ranks has failed, the others find out which rank is the cause.
//
// Of a rank on the same machine the system tells at once whether its process is there; of others
// the board does, by beats that stay away.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/codes.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/distributed/world/board.h"

namespace troupe {

// A process, as others may ask the system for it.
struct Process {
  std::string machine;  // with its name space of process ids
  int id = 0;
};
Process this_process();
std::string to_text(const Process& process);
Process process_of(const std::string& text);
// The letter that the system has for it: Z or X where it has ended, T or t where it was stopped; 0:
// there is no such process.
char state_of(int process);

// Why ranks lost each other, as far as this one can tell.
struct Loss {
  Code code = Code::kRankLost;   // kRankHung: the rank is there and does not move
  Code cause = Code::kRankLost;  // that the rank at fault ended with, where it said so; else `code`
  int64_t rank = -1;             // the cause; -1: none is known
  Doing doing = {};              // of that rank, as last heard
  std::string message;           // all that is known
  std::string
      brief;  // a line that names the rank, where another one tells the rest; else `message`
};

class Watch {
 public:
  struct Self {
    int64_t rank = 0, size = 1;
    std::shared_ptr<Pulse> pulse;
    std::shared_ptr<Pulses> all = {};     // where the launcher shares them
    std::vector<Process> processes = {};  // of all ranks
    bool first_serves = false;            // the board is rank 0's, and ends with it
    std::chrono::milliseconds beat{1000};
  };
  // A thread of its own has `board` for itself.
  Watch(Self self, std::unique_ptr<Board> board);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();  // at most some seconds, whatever the network does

  // Why this rank ends: for those that lose it.
  void last_words(const std::string& text, Code code);
  // After `failed`, an operation with the others, did: looks until one is found, some three beats.
  Loss find_lost(const std::string& failed);
  // The process of that rank is known to be no more; asks nobody but the system.
  bool has_ended(int64_t rank) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe
