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

namespace troupe {

template <class W>
class TopK {
 public:
  using Key = std::conditional_t<std::is_same_v<W, double>, int64_t, int32_t>;
  static constexpr Key kNone = std::numeric_limits<Key>::min();  // below every number

  explicit TopK(int64_t capacity)
      : keys_(round_up(capacity, kBlock)), maxima_(keys_.size() / kBlock) {}

  // NaN as -inf, -0 as 0.
  TROUPE_INLINE static Key key_of(W x) {
    const W number = x == x ? x + W(0) : -std::numeric_limits<W>::infinity();
    return flip(std::bit_cast<Key>(number));
  }
  static W value_of(Key key) { return std::bit_cast<W>(flip(key)); }

  // Fill the first n of keys(), then start(n), then take() up to n times.
  Key* keys() { return keys_.data(); }
  void start(int64_t n) {
    blocks_ = static_cast<int32_t>(ceil_div(n, kBlock));
    std::fill(keys_.begin() + n, keys_.begin() + blocks_ * kBlock, kNone);
    top_ = kNone;
    for (int32_t b = 0; b < blocks_; ++b) {
      maxima_[b] = replace(keys_.data() + b * kBlock, kBlock, kBlock, kNone);
      top_ = std::max(top_, maxima_[b]);
    }
  }

  struct Found {
    int32_t index;
    Key key;
  };
  Found take() {
    const Key top = top_;
    const int32_t block = find(maxima_.data(), blocks_, top);
    Key* keys = keys_.data() + int64_t{block} * kBlock;
    const int32_t at = find(keys, kBlock, top);
    const Key next = replace(keys, kBlock, at, kNone);
    top_ = replace(maxima_.data(), blocks_, block, next);
    return {block * kBlock + at, top};
  }

 private:
  static constexpr int32_t kBlock = 16;

  // Between the bits of a float and an integer of the same order; its own inverse.
  TROUPE_INLINE static Key flip(Key bits) {
    return bits ^ ((bits >> (sizeof(Key) * 8 - 1)) & std::numeric_limits<Key>::max());
  }
  // The first place of `value`, which is there.
  static TROUPE_INLINE int32_t find(const Key* x, int32_t n, Key value) {
    int32_t at = n;
#pragma omp simd reduction(min : at)
    for (int32_t i = 0; i < n; ++i) at = std::min(at, x[i] == value ? i : n);
    return at;
  }
  // x[at] = value, if there is an x[at], and the maximum of what x then holds. All of x is written:
  // a store of one element would hold up the vector load that comes next.
  static TROUPE_INLINE Key replace(Key* x, int32_t n, int32_t at, Key value) {
    Key top = kNone;
#pragma omp simd reduction(max : top)
    for (int32_t i = 0; i < n; ++i) {
      x[i] = i == at ? value : x[i];
      top = std::max(top, x[i]);
    }
    return top;
  }

  std::vector<Key> keys_, maxima_;
  Key top_ = kNone;
  int32_t blocks_ = 0;
};

}  // namespace troupe
