// Which rank a failed collective is due to: the part of each rank that lost it, as steps that take
// the time as an argument (distributed/world/watch.h runs them; tests run thousands of ranks).
//
//   claim   each rank claims kFirstEnd, once: it gets the verdict, if there is one, or the name of
//           the rank that came first, the reporter, which may be itself
//   look    the reporter alone reads the heartbeats of all, kKeysOfRequest in a request, about ten
//           times, until one rank's state is certain or three heartbeats are over, and writes the
//           verdict under kFirstEnd
//   wait    the others have it from what each rank reads with its heartbeat anyway
//   again   a reporter that is gone is followed: at once by those of its machine, else by one of
//           about log2 N ranks after kTurn heartbeats, and by any after twice as many
//
// So N ranks ask N + O(log N + N / kKeysOfRequest) times between them, beside their heartbeats, and
// all know within 10 heartbeats; a rank for which it takes kTurns turns knows nothing.
// Without the store, a rank has what its own system says.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/world/heartbeat.h"
#include "troupe/distributed/world/key_value_store.h"
#include "troupe/distributed/world/verdict.h"

namespace troupe {

class LossSearch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kTurns = 3;
  static constexpr double kTurn = 4.5;  // heartbeats

  struct Self {
    int64_t rank = 0, size = 1;
    std::chrono::milliseconds beat{1000};
    bool first_serves = false;  // rank 0 serves the store, which ends with it
    // Of a process of this machine; kNothing of others.
    std::function<Seen(int64_t rank)> see = [](int64_t) { return Seen::kNothing; };
    std::function<bool(int64_t rank)> is_here = [](int64_t) { return false; };
    // Where a launcher shares the ranks' status: what is newer in it than in the heartbeat.
    std::function<void(int64_t rank, std::optional<Beat>& beat)> update =
        [](int64_t, std::optional<Beat>&) {};
  };
  explicit LossSearch(Self self);

  // With each heartbeat, with the value of kFirstEnd that came with it, and when next() has come.
  // The verdict, once there is one.
  std::optional<Verdict> step(KeyValueStore& store, Time now,
                              const std::optional<std::string>& first_end);
  Time next() const { return next_; }  // far away: with the next heartbeat
  // What this rank's system says. `first_end`: the last that the store had.
  Verdict without_store(const std::optional<std::string>& first_end, const std::string& why) const;

 private:
  enum class Found : uint8_t { kNothing, kSaid, kEnded, kStopped, kSilent, kHung };

  std::optional<Verdict> begin(KeyValueStore& store, Time now);
  std::optional<Verdict> wait(KeyValueStore& store, Time now,
                              const std::optional<std::string>& first_end);
  std::optional<Verdict> look(KeyValueStore& store, Time now);
  void report_from(Time now);
  void know_of_all();
  void read_beats(KeyValueStore& store, bool all);
  bool find_certain();
  void find_silent();
  Verdict verdict() const;
  std::string report_of(int64_t rank) const;
  bool marked(int64_t rank) const;  // as one that lost another
  bool takes_over(Time now) const;

  Self self_;
  Time begin_ = {}, next_ = {}, look_at_ = {};
  bool begun_ = false, reports_ = false;
  int64_t reporter_ = -1;
  int turn_ = 0, looks_ = 0;
  std::chrono::milliseconds pause_{0};      // between two looks
  std::vector<std::optional<Beat>> beats_;  // of all ranks, where this one reports
  std::vector<int64_t> counts_;             // of the first look; -1: no beat
  std::vector<Found> found_;
};

}  // namespace troupe
