// What a rank is doing, for those that may have to say it in its place: written by the rank that
// trains, read by any thread, and by other processes of the machine where a launcher shares the
// memory. It stays readable after its process has been killed.
//
//   pulse.done(7);                                        // seven steps are done
//   const PulseScope scope(pulse, Phase::kForward, 2, 8);  // "step 8, forward 3/8", until it ends
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "troupe/core/text/text.h"
#include "troupe/distributed/status/flight.h"

namespace troupe {

enum class Phase : uint8_t {
  kStart,
  kData,
  kModel,
  kLoad,
  kBatch,
  kForward,
  kDispatch,
  kCombine,
  kBackward,
  kReduce,
  kOptim,
  kLog,
  kEval,
  kSave,
  kExit
};

constexpr auto names_of(Phase) {
  return std::array{Named{"start", Phase::kStart},       Named{"data", Phase::kData},
                    Named{"model", Phase::kModel},       Named{"load", Phase::kLoad},
                    Named{"batch", Phase::kBatch},       Named{"forward", Phase::kForward},
                    Named{"dispatch", Phase::kDispatch}, Named{"combine", Phase::kCombine},
                    Named{"backward", Phase::kBackward}, Named{"reduce", Phase::kReduce},
                    Named{"optim", Phase::kOptim},       Named{"log", Phase::kLog},
                    Named{"eval", Phase::kEval},         Named{"save", Phase::kSave},
                    Named{"exit", Phase::kExit}};
}

// One moment of a rank.
struct Doing {
  int64_t done = 0;  // steps
  Phase phase = Phase::kStart;
  int unit = 0, units = 0;  // which of how many; 0 of 0: the phase has no parts
  int64_t since = 0;        // steady_now() when it began
  int64_t step() const;     // the step that is under way, or was the last
};
// `phase`: phase, unit and units in one number, as a pulse keeps them.
Doing doing_of(int64_t done, uint64_t phase, int64_t since);
std::string phase_text(const Doing& doing);  // "forward 3/8"
std::string to_text(const Doing& doing);     // "step 8, forward 3/8"; "load" before any step

int64_t steady_now();  // ns of the machine's monotonic clock: the same for all its processes

class Pulse {
 public:
  void done(int64_t steps) { done_.store(steps, std::memory_order_relaxed); }
  void begin(Phase phase, int unit = 0, int units = 0);
  Doing now() const;

  // Is the rank waiting for others now, and how long has it been in all: Waiting, below.
  bool waiting() const { return waits_.load(std::memory_order_relaxed) > 0; }
  double waited_seconds() const;

  // What it did before, of which operations between ranks are told by those that issue them.
  const Flight& flight() const { return flight_; }
  void note(Note event, const Operation& operation);

  // The launcher writes down that the process is no more.
  void set_ended() { ended_.store(true, std::memory_order_relaxed); }
  bool ended() const { return ended_.load(std::memory_order_relaxed); }

 private:
  friend class PulseScope;
  friend class Waiting;
  void set(uint64_t packed);

  std::atomic<int64_t> done_ = 0, since_ = steady_now(), waited_ = 0;
  std::atomic<int> waits_ = 0;
  std::atomic<uint64_t> packed_ = 0;  // units, unit, phase
  std::atomic<bool> ended_ = false;
  Flight flight_;
};

// A phase within another one, which goes on when it ends.
class PulseScope {
 public:
  PulseScope(Pulse& pulse, Phase phase, int unit = 0, int units = 0)
      : pulse_(pulse), before_(pulse.packed_.load(std::memory_order_relaxed)) {
    pulse.begin(phase, unit, units);
  }
  PulseScope(const PulseScope&) = delete;
  PulseScope& operator=(const PulseScope&) = delete;
  ~PulseScope();

 private:
  Pulse& pulse_;
  uint64_t before_;
  int thrown_ = std::uncaught_exceptions();
};

// While it lives, this rank waits for others. Absent: of no rank.
class Waiting {
 public:
  explicit Waiting(Pulse* pulse);
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting();

 private:
  Pulse* pulse_;
  int64_t begin_ = 0;
};

// The pulses of the ranks of one machine, in memory that their launcher shares with them.
class Pulses {
 public:
  // For ranks that are to be started: E7002 where the system has no memory or descriptor for it.
  explicit Pulses(int ranks);
  Pulses(const Pulses&) = delete;
  Pulses& operator=(const Pulses&) = delete;
  ~Pulses();
  // Those of the launcher that started this process; absent: none shares them.
  static std::unique_ptr<Pulses> of_launcher(int ranks);

  Pulse& of(int64_t rank) { return pulses_[rank]; }
  // What a rank's environment tells it: kPulsesVariable=variable(). The rank inherits the
  // descriptor.
  std::string variable() const { return std::to_string(descriptor_); }
  void clear();  // for another attempt

 private:
  Pulses(int ranks, int descriptor);

  int ranks_ = 0, descriptor_ = -1;
  Pulse* pulses_ = nullptr;
};
constexpr const char* kPulsesVariable = "TROUPE_PULSES";

}  // namespace troupe
