// Host arithmetic of the radix sort: its passes, and the chunks of the CUDA path.
#pragma once

#include <cstdint>
#include <type_traits>

#include "troupe/core/host_device.h"
#include "troupe/core/number/round.h"

namespace troupe::radix {

inline constexpr int kDigitBits = 8;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int64_t kTile = 2048;  // items of a CUDA block at a time
inline constexpr int64_t kMaxChunks = 256;

inline int num_passes(int end_bit) {
  return static_cast<int>(ceil_div(end_bit, kDigitBits));
}

struct Chunks {
  int64_t count;
  int64_t items_per_chunk;
};

inline Chunks chunks(int64_t n) {
  const int64_t tiles = ceil_div(n, kTile);
  const int64_t per_chunk = ceil_div(tiles, kMaxChunks);
  return {per_chunk == 0 ? 0 : ceil_div(tiles, per_chunk), per_chunk * kTile};
}

// The digit of a pass. With all bits in use the sign's bit is turned over, which puts the negative
// values first.
template <class T>
struct Digit {
  int shift;
  int end_bit;

  TROUPE_INLINE int operator()(T value) const {
    using U = std::make_unsigned_t<T>;
    constexpr int kWidth = 8 * static_cast<int>(sizeof(T));
    uint64_t bits = static_cast<U>(value);
    if (end_bit == kWidth) bits ^= uint64_t{1} << (kWidth - 1);
    const int left = end_bit - shift;
    const uint64_t mask = left < kDigitBits ? (uint64_t{1} << left) - 1 : kDigits - 1;
    return static_cast<int>(bits >> shift & mask);
  }
};

}  // namespace troupe::radix
