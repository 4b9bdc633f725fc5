// A shuffle without an array: a permutation of 0 ... n - 1 that is a function of n and a key alone,
// and so the same on every machine, rank and worker and after a restart.
//
// It is the swap-or-not cipher (Hoang, Morris, Rogaway, CRYPTO 2012), which works for any n. Round
// r has a constant K_r and pairs x with K_r - x mod n; a pseudorandom bit of the pair decides
// whether the two swap. With six rounds per bit of n the tests of data/tokens/permutation_test find no
// difference from a random order.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/core/number/rng.h"

namespace troupe {

class Permutation {
 public:
  Permutation(int64_t n, const Rng& rng);  // n >= 0

  int64_t size() const { return n_; }
  int64_t operator()(int64_t i) const;  // 0 <= i < n

 private:
  int64_t n_;
  Rng rng_;
  std::vector<int64_t> constants_;  // K_r
};

}  // namespace troupe
