#include "troupe/distributed/status/pulse.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "troupe/core/check.h"
#include "troupe/core/device/limits.h"

namespace troupe {
namespace {

// From the lowest bit: 8 of the phase, 20 of the unit, 20 of the units, 16 of the microbatch + 1.
constexpr int kUnitBits = 20, kMicrobatchBits = 16;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;
constexpr int kMicrobatchFrom = 8 + 2 * kUnitBits;
static_assert(kMicrobatchFrom + kMicrobatchBits == 64);

uint64_t packed(Phase phase, int unit, int units, int microbatch) {
  return static_cast<uint64_t>(microbatch + 1) << kMicrobatchFrom |
         (static_cast<uint64_t>(units) & kUnitMask) << (8 + kUnitBits) |
         (static_cast<uint64_t>(unit) & kUnitMask) << 8 | static_cast<uint64_t>(phase);
}

size_t bytes_for(int ranks) {
  return static_cast<size_t>(ranks) * sizeof(Pulse);
}

}  // namespace

int64_t steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

RankStatus unpack_status(int64_t done, uint64_t phase, int64_t since) {
  return {.done = done,
          .phase = static_cast<Phase>(phase & 0xff),
          .unit = static_cast<int>(phase >> 8 & kUnitMask),
          .units = static_cast<int>(phase >> (8 + kUnitBits) & kUnitMask),
          .microbatch = static_cast<int>(phase >> kMicrobatchFrom) - 1,
          .since = since};
}

int64_t RankStatus::step() const {
  return done + (phase >= Phase::kBatch && phase <= Phase::kOptim ? 1 : 0);
}

std::string phase_text(const RankStatus& status) {
  std::string out(to_text(status.phase));
  if (status.units == 0) return out;
  out += ' ' + std::to_string(status.unit + 1) + '/' + std::to_string(status.units);
  return status.microbatch < 0 ? out : out + " of microbatch " + std::to_string(status.microbatch);
}

std::string to_text(const RankStatus& status) {
  std::string phase = phase_text(status);
  if (status.phase < Phase::kBatch) return phase;
  const std::string step = "step " + std::to_string(status.step()) + ", ";
  if (status.stages == 0) return step + phase;
  return step + "stage " + std::to_string(status.stage + 1) + '/' + std::to_string(status.stages) +
         ", " + phase;
}

void Pulse::begin(Phase phase, int unit, int units, int microbatch) {
  set(packed(phase, unit, units, microbatch));
}

void Pulse::set(uint64_t packed) {
  packed_.store(packed, std::memory_order_relaxed);
  const int64_t now = steady_now();
  since_.store(now, std::memory_order_relaxed);
  flight_.add({.at = now, .done = done_.load(std::memory_order_relaxed), .phase = packed});
}

void Pulse::set_stage(int stage, int stages) {
  stage_.store(stage, std::memory_order_relaxed);
  stages_.store(stages, std::memory_order_relaxed);
}

RankStatus Pulse::now() const {
  RankStatus out =
      unpack_status(done_.load(std::memory_order_relaxed), packed_.load(std::memory_order_relaxed),
                    since_.load(std::memory_order_relaxed));
  out.stage = stage_.load(std::memory_order_relaxed);
  out.stages = stages_.load(std::memory_order_relaxed);
  return out;
}

void Pulse::note(Note event, const Operation& operation) {
  flight_.add({.at = steady_now(),
               .done = done_.load(std::memory_order_relaxed),
               .phase = packed_.load(std::memory_order_relaxed),
               .event = event,
               .operation = operation});
}

double Pulse::waited_seconds() const {
  return static_cast<double>(waited_.load(std::memory_order_relaxed)) * 1e-9;
}

Waiting::Waiting(Pulse* pulse) : pulse_(pulse) {
  if (pulse_ == nullptr) return;
  pulse_->waits_.fetch_add(1, std::memory_order_relaxed);
  begin_ = steady_now();
}

Waiting::~Waiting() {
  if (pulse_ == nullptr) return;
  pulse_->waits_.fetch_sub(1, std::memory_order_relaxed);
  pulse_->waited_.fetch_add(steady_now() - begin_, std::memory_order_relaxed);
}

PulseScope::PulseScope(Pulse& pulse, Phase phase, Within)
    : pulse_(pulse), before_(pulse.packed_.load(std::memory_order_relaxed)) {
  pulse.set((before_ & ~uint64_t{0xff}) | static_cast<uint64_t>(phase));
}

// What failed is reported in the phase that it was in.
PulseScope::~PulseScope() {
  if (std::uncaught_exceptions() == thrown_) pulse_.set(before_);
}

Pulses::Pulses(int ranks) : Pulses(ranks, ::memfd_create("troupe pulses", 0)) {
  clear();
}

Pulses::Pulses(int ranks, int descriptor) : ranks_(ranks), descriptor_(descriptor) {
  void* memory = MAP_FAILED;
  struct stat file {};
  const auto bytes = static_cast<off_t>(bytes_for(ranks));
  const bool there = descriptor >= 0 && ::fstat(descriptor, &file) == 0 &&
                     (file.st_size == bytes || ::ftruncate(descriptor, bytes) == 0);
  if (there) {
    memory = ::mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    fail(Code::kFileFailed, "memory shared between ranks",
         std::strerror(error) + limits_behind(error));
  }
  pulses_ = static_cast<Pulse*>(memory);
}

Pulses::~Pulses() {
  ::munmap(static_cast<void*>(pulses_), bytes_for(ranks_));
  ::close(descriptor_);
}

std::unique_ptr<Pulses> Pulses::of_launcher(int ranks) {
  const char* const text = std::getenv(kPulsesVariable);
  int descriptor = -1;
  struct stat file {};
  if (text == nullptr || !from_text(text, descriptor) || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(bytes_for(ranks))) {
    return nullptr;
  }
  return std::unique_ptr<Pulses>(new Pulses(ranks, descriptor));
}

void Pulses::clear() {
  for (int rank = 0; rank < ranks_; ++rank) new (&of(rank)) Pulse();
}

}  // namespace troupe
