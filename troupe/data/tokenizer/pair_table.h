// Pairs of ids to what merging them gives. Open addressing, half empty: one probe as a rule.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace troupe {

class PairTable {
 public:
  // rank << 32 | result; the smaller one merges first.
  using Merge = uint64_t;
  static constexpr Merge kNone = std::numeric_limits<Merge>::max();

  explicit PairTable(size_t pairs = 0)
      : shift_(64 - std::countr_zero(std::bit_ceil(2 * pairs + 2))),
        slots_(std::bit_ceil(2 * pairs + 2)) {}

  // Replaces the merge of a known pair. The table takes at most as many pairs as it was made for.
  void set(uint32_t left, uint32_t right, uint32_t rank, uint32_t result) {
    Slot& slot = slots_[place_of(key(left, right))];
    slot = {key(left, right), uint64_t{rank} << 32 | result};
  }

  Merge find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[place_of(key(left, right))];
    return slot.merge;
  }

 private:
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = kNone;
  };

  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  // Where the key is, or where it would be put.
  size_t place_of(uint64_t wanted) const {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
    size_t at = (wanted ^ wanted >> 29) * kOdd >> shift_;
    while (slots_[at].key != wanted && slots_[at].key != kEmpty) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  int shift_;
  std::vector<Slot> slots_;
};

}  // namespace troupe
