// The largest of a row on the CPU, by (value descending, index ascending): no branch depends on the
// values. Floats become integers of the same order, and these with their index one integer each, so
// that a maximum is value and place at once. A tournament of maxima, halving, gives the largest;
// taking it repeats its log2(n) comparisons.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "troupe/core/host_device.h"

namespace troupe {

template <class W>
class TopK {
  __extension__ using Int128 = __int128;

 public:
  using Key = std::conditional_t<std::is_same_v<W, double>, int64_t, int32_t>;
  static constexpr Key kNone = std::numeric_limits<Key>::min();  // below every number

  explicit TopK(int64_t capacity) : keys_(width_of(capacity)), games_(2 * keys_.size()) {}

  // NaN as -inf, -0 as 0.
  TROUPE_INLINE static Key key_of(W x) {
    const W number = x == x ? x + W(0) : -std::numeric_limits<W>::infinity();
    return flip(std::bit_cast<Key>(number));
  }
  static W value_of(Key key) { return std::bit_cast<W>(flip(key)); }

  // Fill the first n of keys(), then start(n), then take() up to n times.
  Key* keys() { return keys_.data(); }
  void start(int64_t n) {
    width_ = static_cast<int32_t>(width_of(n));
    std::fill(keys_.begin() + n, keys_.begin() + width_, kNone);
    Entry* round = games_.data();
    const Key* keys = keys_.data();
    const int32_t width = width_;
#pragma omp simd
    for (int32_t i = 0; i < width; ++i) round[i] = entry(keys[i], i);
    for (int32_t half = width / 2; half > 0; half /= 2) {
      Entry* next = round + 2 * half;
#pragma omp simd
      for (int32_t i = 0; i < half; ++i) next[i] = std::max(round[i], round[i + half]);
      round = next;
    }
    top_ = *round;
  }

  struct Found {
    int32_t index;
    Key key;
  };
  TROUPE_INLINE Found take() {
    const auto index = static_cast<int32_t>(~static_cast<uint32_t>(top_));
    const auto key = static_cast<Key>(top_ >> 32);
    Entry* round = games_.data();
    Entry winner = entry(kNone, index);
    round[index] = winner;
    for (int32_t half = width_ / 2; half > 0; half /= 2) {
      winner = std::max(winner, round[(index & (2 * half - 1)) ^ half]);
      round += 2 * half;
      round[index & (half - 1)] = winner;
    }
    top_ = winner;
    return {index, key};
  }

 private:
  using Entry = std::conditional_t<std::is_same_v<W, double>, Int128, int64_t>;

  static int64_t width_of(int64_t n) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  }
  // Between the bits of a float and an integer of the same order; its own inverse.
  TROUPE_INLINE static Key flip(Key bits) {
    return bits ^ ((bits >> (sizeof(Key) * 8 - 1)) & std::numeric_limits<Key>::max());
  }
  // Where keys are equal, the lower index is the larger.
  TROUPE_INLINE static Entry entry(Key key, int32_t index) {
    return static_cast<Entry>(key) * (int64_t{1} << 32) + static_cast<uint32_t>(~index);
  }

  std::vector<Key> keys_;
  std::vector<Entry> games_;  // round after round: width, width / 2, ... 1 winners
  Entry top_ = 0;
  int32_t width_ = 1;
};

}  // namespace troupe
