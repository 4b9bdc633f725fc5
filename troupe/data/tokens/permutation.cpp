#include "troupe/data/tokens/permutation.h"

#include <algorithm>
#include <bit>

#include "troupe/core/check.h"

namespace troupe {

Permutation::Permutation(int64_t n, const Rng& rng) : n_(n), rng_(rng) {
  TROUPE_CHECK(n >= 0, n);
  if (n < 2) return;
  const auto rounds = 6 * static_cast<int>(std::bit_width(static_cast<uint64_t>(n))) + 6;
  for (int r = 0; r < rounds; ++r) {
    // Column 1 of the generator gives the constants, uniform in [0, n); column 2 + r the bits of r.
    const Words4 w = rng_.bits(static_cast<uint64_t>(r), 1);
    const uint64_t word = uint64_t{w.w[0]} << 32 | w.w[1];
    constants_.push_back(static_cast<int64_t>(
        static_cast<unsigned __int128>(word) * static_cast<uint64_t>(n) >> 64));
  }
}

int64_t Permutation::operator()(int64_t i) const {
  TROUPE_CHECK(0 <= i && i < n_, i, "of", n_);
  for (size_t r = 0; r < constants_.size(); ++r) {
    const int64_t partner = constants_[r] >= i ? constants_[r] - i : constants_[r] - i + n_;
    const auto pair = static_cast<uint64_t>(std::max(i, partner));
    if (rng_.bits(pair, static_cast<uint32_t>(2 + r)).w[0] & 1) i = partner;
  }
  return i;
}

}  // namespace troupe
