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

namespace troupe {
namespace {

constexpr int kUnitBits = 24;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;

uint64_t packed(Phase phase, int unit, int units) {
  return (static_cast<uint64_t>(units) & kUnitMask) << (8 + kUnitBits) |
         (static_cast<uint64_t>(unit) & kUnitMask) << 8 | static_cast<uint64_t>(phase);
}

size_t bytes_for(int ranks) {
  return static_cast<size_t>(ranks) * sizeof(Pulse);
}

}  // namespace

int64_t steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

Doing doing_of(int64_t done, uint64_t phase, int64_t since) {
  return {.done = done,
          .phase = static_cast<Phase>(phase & 0xff),
          .unit = static_cast<int>(phase >> 8 & kUnitMask),
          .units = static_cast<int>(phase >> (8 + kUnitBits) & kUnitMask),
          .since = since};
}

int64_t Doing::step() const {
  return done + (phase >= Phase::kBatch && phase <= Phase::kOptim ? 1 : 0);
}

std::string phase_text(const Doing& doing) {
  std::string out(to_text(doing.phase));
  if (doing.units == 0) return out;
  return out + ' ' + std::to_string(doing.unit + 1) + '/' + std::to_string(doing.units);
}

std::string to_text(const Doing& doing) {
  const std::string phase = phase_text(doing);
  return doing.phase < Phase::kBatch ? phase
                                     : "step " + std::to_string(doing.step()) + ", " + phase;
}

void Pulse::begin(Phase phase, int unit, int units) {
  set(packed(phase, unit, units));
}

void Pulse::set(uint64_t packed) {
  packed_.store(packed, std::memory_order_relaxed);
  const int64_t now = steady_now();
  since_.store(now, std::memory_order_relaxed);
  flight_.add({.at = now, .done = done_.load(std::memory_order_relaxed), .phase = packed});
}

Doing Pulse::now() const {
  return doing_of(done_.load(std::memory_order_relaxed), packed_.load(std::memory_order_relaxed),
                  since_.load(std::memory_order_relaxed));
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

// What failed is told in the phase that it was in.
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
    fail(Code::kFileFailed, "memory shared between ranks", std::strerror(errno));
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
