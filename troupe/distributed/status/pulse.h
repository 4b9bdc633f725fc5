// A Pulse is a rank's status in memory: step, phase, unit, and whether it waits for other ranks.
// The training thread writes it (two stores a phase); other threads read it, and other processes if
// a launcher shares the memory. It stays readable after its process was killed.
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
#include "troupe/distributed/status/flight_recorder.h"

namespace troupe {

// tensor: tokens between ranks that share matrices; keys: keys, values or heads between those that
// share sequences; late: gradients of weights that a backward has put off.
enum class Phase : uint8_t {
  kStart,
  kData,
  kModel,
  kLoad,
  kBatch,
  kForward,
  kDispatch,
  kCombine,
  kTensor,
  kKeys,
  kSend,
  kRecv,
  kBackward,
  kLate,
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
                    Named{"tensor", Phase::kTensor},     Named{"keys", Phase::kKeys},
                    Named{"send", Phase::kSend},         Named{"recv", Phase::kRecv},
                    Named{"backward", Phase::kBackward}, Named{"late", Phase::kLate},
                    Named{"reduce", Phase::kReduce},     Named{"optim", Phase::kOptim},
                    Named{"log", Phase::kLog},           Named{"eval", Phase::kEval},
                    Named{"save", Phase::kSave},         Named{"exit", Phase::kExit}};
}

// Whether the phase takes all ranks: of a step, an evaluation or a save.
constexpr bool needs_all_ranks(Phase phase) {
  return (Phase::kBatch <= phase && phase <= Phase::kOptim) || phase == Phase::kEval ||
         phase == Phase::kSave;
}

// A rank's status at one moment.
struct RankStatus {
  int64_t done = 0;  // steps
  Phase phase = Phase::kStart;
  int unit = 0, units = 0;    // unit of the model and their number; 0 of 0: not per unit
  int microbatch = -1;        // -1: none, or the only one
  int stage = 0, stages = 0;  // of a pipeline; 0 of 0: there is none
  int64_t since = 0;          // steady_now() when the phase began
  int64_t step() const;       // the current step, or the last one
};
// `phase`: phase, unit, units and microbatch packed into one number, as Pulse stores them.
RankStatus unpack_status(int64_t done, uint64_t phase, int64_t since);
std::string phase_text(const RankStatus& status);  // "forward 3/8"; "recv 3/8 of microbatch 0"
// "step 8, forward 3/8"; "step 8, stage 2/2, tensor 3/8 of microbatch 1"; "load" before any step
std::string to_text(const RankStatus& status);

int64_t steady_now();  // monotonic clock, ns; the same in all processes of a machine

class Pulse {
 public:
  void done(int64_t steps) { done_.store(steps, std::memory_order_relaxed); }
  void begin(Phase phase, int unit = 0, int units = 0, int microbatch = -1);
  void set_stage(int stage, int stages);  // where the rank is in a pipeline, from then on
  RankStatus now() const;

  // Whether the rank waits for others now, and how long it has in total (class Waiting).
  bool waiting() const { return waits_.load(std::memory_order_relaxed) > 0; }
  double waited_seconds() const;

  // The flight recorder: phases are recorded by begin(), collectives by note().
  const FlightRecorder& flight() const { return flight_; }
  void note(Note event, const Operation& operation);

  // Set by the rank when it has failed, or knows which peer has, and only has to report it.
  void set_ending() { ending_.store(true, std::memory_order_relaxed); }
  bool ending() const { return ending_.load(std::memory_order_relaxed); }
  // Set by the launcher when the process has exited: by itself, or since it had lost a peer.
  void set_ended(bool by_itself) {
    by_itself_.store(by_itself, std::memory_order_relaxed);
    ended_.store(true, std::memory_order_release);
  }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  bool ended_by_itself() const { return ended() && by_itself_.load(std::memory_order_relaxed); }

 private:
  friend class PulseScope;
  friend class Waiting;
  void set(uint64_t packed);

  std::atomic<int64_t> done_ = 0, since_ = steady_now(), waited_ = 0;
  std::atomic<int> waits_ = 0;
  std::atomic<uint64_t> packed_ = 0;  // microbatch, units, unit, phase
  std::atomic<int> stage_ = 0, stages_ = 0;
  std::atomic<bool> ending_ = false, ended_ = false, by_itself_ = false;
  FlightRecorder flight_;
};

// A nested phase; the outer one resumes at the end of the scope.
class PulseScope {
 public:
  struct Within {};  // the unit and microbatch of the outer phase
  PulseScope(Pulse& pulse, Phase phase, Within within);
  PulseScope(Pulse& pulse, Phase phase, int unit = 0, int units = 0, int microbatch = -1)
      : pulse_(pulse), before_(pulse.packed_.load(std::memory_order_relaxed)) {
    pulse.begin(phase, unit, units, microbatch);
  }
  PulseScope(const PulseScope&) = delete;
  PulseScope& operator=(const PulseScope&) = delete;
  ~PulseScope();

 private:
  Pulse& pulse_;
  uint64_t before_;
  int thrown_ = std::uncaught_exceptions();
};

// Marks the rank as waiting for others while in scope. Null: no pulse.
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

// The pulses of a machine's ranks, in memory that their launcher shares with them.
class Pulses {
 public:
  // For the launcher. E7002 if the system has no memory or file descriptor for it.
  explicit Pulses(int ranks);
  Pulses(const Pulses&) = delete;
  Pulses& operator=(const Pulses&) = delete;
  ~Pulses();
  // For a rank: the pulses its launcher shares; null: it shares none.
  static std::unique_ptr<Pulses> of_launcher(int ranks);

  Pulse& of(int64_t rank) { return pulses_[rank]; }
  // The value of kPulsesVariable in a rank's environment: the descriptor, which the rank
  // inherits.
  std::string variable() const { return std::to_string(descriptor_); }
  void clear();  // before a restart

 private:
  Pulses(int ranks, int descriptor);

  int ranks_ = 0, descriptor_ = -1;
  Pulse* pulses_ = nullptr;
};
constexpr const char* kPulsesVariable = "TROUPE_PULSES";

}  // namespace troupe
