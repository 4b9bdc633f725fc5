// Bins by their inclusive sums, within the n elements that there are: what all paths share.
#pragma once

#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe::replicate_detail {

struct Bin {
  int64_t begin, end;
};

TROUPE_HOST_DEVICE inline int64_t clamped(int64_t at, int64_t n) {
  return at < 0 ? 0 : at > n ? n : at;
}

TROUPE_HOST_DEVICE inline Bin bin(const int32_t* bins, int64_t e, int64_t n) {
  return {e == 0 ? 0 : clamped(bins[e - 1], n), clamped(bins[e], n)};
}

// f(Word{}) for the unsigned word of that many bytes.
template <class F>
void dispatch_word(int64_t bytes, F&& f) {
  if (bytes == 2) return f.template operator()<uint16_t>();
  if (bytes == 4) return f.template operator()<uint32_t>();
  f.template operator()<uint64_t>();
}

}  // namespace troupe::replicate_detail
