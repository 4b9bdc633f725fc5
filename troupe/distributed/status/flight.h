// The last moments of a rank, in a ring that needs no memory but its own: it lies in a Pulse, which
// a launcher may share, and so can be read after the process has been killed
// (distributed/status/flight_record.h). Writing one costs some stores.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "troupe/core/text/text.h"

namespace troupe {

// What ranks do together.
enum class Together : uint8_t {
  kNothing,
  kSum,
  kSumShards,
  kGather,
  kExchange,
  kBroadcast,
  kBarrier
};
constexpr auto names_of(Together) {
  return std::array{
      Named{"nothing", Together::kNothing},      Named{"sum", Together::kSum},
      Named{"sum_shards", Together::kSumShards}, Named{"gather", Together::kGather},
      Named{"exchange", Together::kExchange},    Named{"broadcast", Together::kBroadcast},
      Named{"barrier", Together::kBarrier}};
}

enum class Note : uint8_t {
  kBegin,   // of a phase
  kIssue,   // an operation was handed to the network
  kWait,    // and this rank began to wait for it
  kWaited,  // and it was there
};
constexpr auto names_of(Note) {
  return std::array{Named{"begin", Note::kBegin}, Named{"issue", Note::kIssue},
                    Named{"wait", Note::kWait}, Named{"waited", Note::kWaited}};
}

// An operation of a group: what all its ranks should have alike.
struct Operation {
  Together what = Together::kNothing;
  int32_t first = 0, ranks = 0;  // the group's first rank, and how many they are
  int64_t number = 0;            // of those of this group and rank, from 1
  int64_t bytes = 0;             // of this rank's tensors
};

class Flight {
 public:
  static constexpr uint64_t kMoments = 256;
  struct Raw {
    int64_t at = 0, done = 0;  // steady_now(), steps
    uint64_t phase = 0;        // as Pulse packs it
    Note event = Note::kBegin;
    Operation operation = {};
  };

  void add(const Raw& raw) {
    Entry& e = entries_[next_.fetch_add(1, std::memory_order_relaxed) % kMoments];
    const Operation& o = raw.operation;
    e.at.store(0, std::memory_order_relaxed);  // not whole until the last store
    e.done.store(raw.done, std::memory_order_relaxed);
    e.phase.store(raw.phase, std::memory_order_relaxed);
    e.what.store(static_cast<uint32_t>(raw.event) << 8 | static_cast<uint32_t>(o.what),
                 std::memory_order_relaxed);
    e.first.store(o.first, std::memory_order_relaxed);
    e.ranks.store(o.ranks, std::memory_order_relaxed);
    e.number.store(o.number, std::memory_order_relaxed);
    e.bytes.store(o.bytes, std::memory_order_relaxed);
    e.at.store(raw.at, std::memory_order_release);
  }

  // Calls f(raw) for each that is whole, the oldest first.
  void visit(auto&& f) const {
    const uint64_t end = next_.load(std::memory_order_acquire);
    for (uint64_t i = end < kMoments ? 0 : end - kMoments; i < end; ++i) {
      const Entry& e = entries_[i % kMoments];
      const int64_t at = e.at.load(std::memory_order_acquire);
      if (at == 0) continue;
      const uint32_t what = e.what.load(std::memory_order_relaxed);
      f(Raw{at, e.done.load(std::memory_order_relaxed), e.phase.load(std::memory_order_relaxed),
            static_cast<Note>(what >> 8),
            Operation{static_cast<Together>(what & 0xff), e.first.load(std::memory_order_relaxed),
                      e.ranks.load(std::memory_order_relaxed),
                      e.number.load(std::memory_order_relaxed),
                      e.bytes.load(std::memory_order_relaxed)}});
    }
  }

 private:
  struct Entry {
    std::atomic<int64_t> at = 0, done = 0, number = 0, bytes = 0;
    std::atomic<uint64_t> phase = 0;
    std::atomic<uint32_t> what = 0;
    std::atomic<int32_t> first = 0, ranks = 0;
  };
  std::atomic<uint64_t> next_ = 0;
  std::array<Entry, kMoments> entries_ = {};
};

}  // namespace troupe
