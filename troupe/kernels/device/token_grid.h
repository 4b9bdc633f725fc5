// Host: the geometry of kernels that give each token some lanes of a block, which walk its row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "troupe/core/number/round.h"

namespace troupe {

inline constexpr int kTokenGridThreads = 128;

struct TokenGrid {
  unsigned lanes;   // of a token: blockDim.x, a power of two
  unsigned tokens;  // of a block: blockDim.y
  unsigned blocks;
};

// `packs`: the accesses that one row needs.
inline TokenGrid token_grid(int64_t tokens, int64_t packs) {
  const int64_t wanted = std::clamp<int64_t>(packs, 1, kTokenGridThreads);
  const unsigned lanes = std::bit_ceil(static_cast<unsigned>(wanted));
  const unsigned per_block = kTokenGridThreads / lanes;
  return {lanes, per_block, static_cast<unsigned>(ceil_div(tokens, per_block))};
}

}  // namespace troupe
