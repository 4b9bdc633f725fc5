// Flight recorder: a ring buffer of a rank's last phases and collectives. It is part of its Pulse,
// which a launcher may place in shared memory, so it can be read after the process was killed
// (distributed/status/flight_record.h). An entry costs a few stores.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "troupe/core/text/text.h"

namespace troupe {

// A collective operation of a group, by NCCL's names.
enum class Collective : uint8_t {
  kNone,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kSend,
  kRecv
};
constexpr auto names_of(Collective) {
  return std::array{Named{"none", Collective::kNone},
                    Named{"all_reduce", Collective::kAllReduce},
                    Named{"reduce_scatter", Collective::kReduceScatter},
                    Named{"all_gather", Collective::kAllGather},
                    Named{"all_to_all", Collective::kAllToAll},
                    Named{"broadcast", Collective::kBroadcast},
                    Named{"barrier", Collective::kBarrier},
                    Named{"send", Collective::kSend},
                    Named{"recv", Collective::kRecv}};
}

enum class Note : uint8_t {
  kBegin,   // a phase began
  kIssue,   // a collective was issued
  kWait,    // this rank began to wait for it
  kWaited,  // the wait ended
};
constexpr auto names_of(Note) {
  return std::array{Named{"begin", Note::kBegin}, Named{"issue", Note::kIssue},
                    Named{"wait", Note::kWait}, Named{"waited", Note::kWaited}};
}

// One collective of a group. All its ranks should record the same.
struct Operation {
  Collective what = Collective::kNone;
  int32_t first = 0, ranks = 0;  // the group's first rank and its size
  int64_t number = 0;            // counts this rank's collectives on this group, from 1
  int64_t bytes = 0;             // size of this rank's tensors
};

class FlightRecorder {
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
    e.at.store(0, std::memory_order_relaxed);  // incomplete until the last store
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

  // Calls f(raw) for each complete entry, oldest first.
  void visit(auto&& f) const {
    const uint64_t end = next_.load(std::memory_order_acquire);
    for (uint64_t i = end < kMoments ? 0 : end - kMoments; i < end; ++i) {
      const Entry& e = entries_[i % kMoments];
      const int64_t at = e.at.load(std::memory_order_acquire);
      if (at == 0) continue;
      const uint32_t what = e.what.load(std::memory_order_relaxed);
      f(Raw{at, e.done.load(std::memory_order_relaxed), e.phase.load(std::memory_order_relaxed),
            static_cast<Note>(what >> 8),
            Operation{static_cast<Collective>(what & 0xff), e.first.load(std::memory_order_relaxed),
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
