// The spares of one launcher (spare.h): started, handed out as ranks, replaced and ended.
//
//   Spares spares({"train", "run.yaml"}, 2, log);
//   spares.fill(environments);                    // one waits for rank 0's place, one for rank 1's
//   const std::vector<pid_t> now = spares.take(1);  // they are the ranks of attempt 1
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "apps/local_ranks.h"
#include "troupe/core/file/log.h"

namespace troupe {

class Spares {
 public:
  Spares(std::vector<std::string> words, int count, Log log);
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;
  ~Spares() { end(); }

  // Whether some are missing that fill() would start.
  bool missing() const;
  // Starts those, each with the environment of the rank whose place it waits for.
  void fill(const std::vector<Variables>& environments);
  // Says which have ended; they are missing from then on. After three in a row that ended soon
  // after their start, no more are started.
  void reap();
  // Those that wait become ranks of that attempt: process ids by rank, -1 where none waits.
  std::vector<pid_t> take(int attempt);
  void end();  // all that wait; they are missing from then on

 private:
  struct Spare {
    pid_t pid = -1;  // -1: missing
    int pipe = -1;   // where it waits; this is the end that writes
    SteadyTime begin;
  };
  void start_one(Spare& spare, const Variables& environment) const;
  static void end_one(Spare& spare);
  void tell_end(size_t rank, int status, bool soon);

  const std::vector<std::string> words_;
  std::vector<Spare> spares_;  // by rank
  int soon_ended_ = 0;         // in a row
  const Log log_;
};

}  // namespace troupe
