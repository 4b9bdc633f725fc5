// A shuffle without an array: a bijection of 0 ... n - 1 that is a function of a key alone, and so
// the same for every rank, worker and restart.
//
// It is the swap-or-not cipher (Hoang, Morris, Rogaway, CRYPTO 2012), which works for any n: round
// r has a constant K_r and pairs x with K_r - x mod n; a bit that is a function of the pair says
// whether the two swap. Six rounds for each bit of n leave no order that a test here can tell from
// chance (data/permutation_test). Values and key make the result on all machines the same.
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
