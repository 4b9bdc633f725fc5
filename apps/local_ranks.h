// The ranks of a run that are processes of this machine: started, waited for and ended by one
// launcher.
//
//   Waiter waiter;                     // before any thread
//   LocalRanks ranks({"train", "run.yaml"}, {{{"RANK", "0"}}, {{"RANK", "1"}}});
//   while (ranks.running()) {
//     waiter.wait({});                 // the end of a rank is a signal too
//     for (const RankEnd& end : ranks.reap()) ...
//   }
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/distributed/status/pulse.h"

namespace troupe {

using SteadyTime = std::chrono::steady_clock::time_point;

// Signals as something to wait for.
class Waiter {
 public:
  // Keeps SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and SIGCHLD back, and ignores SIGHUP and SIGPIPE, in
  // this thread and those it starts.
  Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter();
  int wait(std::optional<SteadyTime> until);  // the next signal; 0: it is that time

 private:
  int signals_ = -1;
};

// How a rank ended.
struct RankEnd {
  int rank = 0;
  int code = 0;              // what it returned; 6 where a signal ended it
  int signal = 0;            // that did
  bool forced = false;       // by force()
  bool stood_still = false;  // by SIGSTOP, when it was forced
  RankStatus status = {};    // then; whoever started it fills it in
  SteadyTime when;
};

// E7002 where this process cannot have so many files open besides those that it has.
void require_open_files(int count);

using Variables = std::vector<std::pair<std::string, std::string>>;

// This very program, its arguments `words`, with `variables` added to this process's environment; it
// has the open descriptor `kept` too, which is closed in others. The thread that does this must
// outlive it: the system kills it when that ends. It is a process group, so that a Ctrl-C in the
// terminal reaches the launcher alone. E7002 where the system starts no more.
pid_t start_process(std::vector<std::string> words, const Variables& variables, int kept = -1);
bool is_stopped(pid_t pid);  // by SIGSTOP

class LocalRanks {
 public:
  // A process (start_process) for each of `environments`; of ranks that are `started` already, whose
  // process id is there, not.
  LocalRanks(const std::vector<std::string>& words, const std::vector<Variables>& environments,
             const std::vector<pid_t>& started = {});
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  ~LocalRanks();  // kills what still runs

  bool running() const { return running_ > 0; }
  bool stands_still(int rank) const;  // stopped by SIGSTOP
  bool all_stand_still() const;       // those that run
  void send(int signal) const;        // to those that run
  // Likewise, or to those of them that `which` says; their end is no more their own.
  void force(int signal, const std::function<bool(int rank)>& which = {});
  std::vector<RankEnd> reap();  // what has ended since the last call

 private:
  struct Child {
    pid_t pid = -1;  // -1: it has ended
    bool forced = false, stood_still = false;
  };
  std::vector<Child> children_;
  int running_ = 0;
};

}  // namespace troupe
