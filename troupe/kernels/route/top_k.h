// The largest of a row on the CPU, by (value descending, index ascending): no branch depends on the
// values. Floats become integers of the same order; a block of them keeps its maximum, so taking
// the largest looks at the maxima and at one block.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "troupe/core/host_device.h"
#include "troupe/core/round.h"

namespace troupe::route_detail {

template <class W>
class TopK {
 public:
  using Key = std::conditional_t<std::is_same_v<W, double>, int64_t, int32_t>;
  static constexpr Key kNone = std::numeric_limits<Key>::min();  // below every number

  explicit TopK(int64_t capacity)
      : keys_(round_up(capacity, kBlock)),
        maxima_(round_up(keys_.size() / kBlock, kLanes), kNone) {}

  // NaN as -inf, -0 as 0.
  TROUPE_INLINE static Key key_of(W x) {
    const W number = x == x ? x + W(0) : -std::numeric_limits<W>::infinity();
    return flip(std::bit_cast<Key>(number));
  }
  static W value_of(Key key) { return std::bit_cast<W>(flip(key)); }

  // Fill the first n of keys(), then start(n), then take() up to n times.
  Key* keys() { return keys_.data(); }
  void start(int64_t n) {
    blocks_ = ceil_div(n, kBlock);
    std::fill(keys_.begin() + n, keys_.begin() + blocks_ * kBlock, kNone);
    for (int64_t b = 0; b < blocks_; ++b) maxima_[b] = block_max(b);
  }

  struct Found {
    int32_t index;
    Key key;
  };
  Found take() {
    Key top = kNone;
#pragma omp simd reduction(max : top)
    for (int64_t b = 0; b < blocks_; ++b) top = std::max(top, maxima_[b]);
    int64_t block = 0;
    while (maxima_[block] != top) ++block;
    Key* keys = keys_.data() + block * kBlock;
    int32_t at = kBlock;
#pragma omp simd reduction(min : at)
    for (int32_t i = 0; i < kBlock; ++i) at = std::min(at, keys[i] == top ? i : kBlock);
    keys[at] = kNone;
    maxima_[block] = block_max(block);
    return {static_cast<int32_t>(block * kBlock) + at, top};
  }

 private:
  static constexpr int32_t kBlock = 16;
  static constexpr int64_t kLanes = 8;

  // Between the bits of a float and an integer of the same order; its own inverse.
  TROUPE_INLINE static Key flip(Key bits) {
    return bits ^ ((bits >> (sizeof(Key) * 8 - 1)) & std::numeric_limits<Key>::max());
  }
  Key block_max(int64_t block) const {
    const Key* keys = keys_.data() + block * kBlock;
    Key top = kNone;
#pragma omp simd reduction(max : top)
    for (int32_t i = 0; i < kBlock; ++i) top = std::max(top, keys[i]);
    return top;
  }

  std::vector<Key> keys_, maxima_;
  int64_t blocks_ = 0;
};

}  // namespace troupe::route_detail
