// Bytes between all ranks, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// Bytes for each rank, and from each: the first to[0] of `out` go to rank 0, and so on; in `in` are
// from[r] bytes of each rank r, in rank order.
struct AllToAllBytes {
  std::span<const std::byte> out;
  const std::vector<int64_t>& to;
  std::span<std::byte> in;
  const std::vector<int64_t>& from;
};

}  // namespace troupe
