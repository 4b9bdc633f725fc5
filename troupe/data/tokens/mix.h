// Which source sample n of a weighted mix comes from, and which of that source's samples it is: a
// function of n, without walking over the samples before it.
//
// u_n = frac(n phi + theta), phi the golden ratio, spreads evenly over [0, 1): sample n belongs to
// the source whose interval [w_0 + ... + w_{s-1}, w_0 + ... + w_s) holds u_n. How many of the first
// n samples fall into an interval is a sum of floors, in O(log n) steps; it differs from n w_s by
// less than 3 + 0.5 ln n in what the test sees, whatever the weights. theta is drawn from `rng`.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/core/number/rng.h"

namespace troupe {

struct MixedSample {
  int source = 0;
  int64_t index = 0;  // how many samples before n come from this source
  bool operator==(const MixedSample&) const = default;
};

class Mix {
 public:
  // Weights are positive and need not sum to 1. A source whose share is below 2^-48 is refused.
  Mix(const std::vector<double>& weights, const Rng& rng);

  MixedSample at(int64_t n) const;             // 0 <= n < 2^40
  int64_t count(int source, int64_t n) const;  // of the first n samples

 private:
  int64_t count_below(int64_t bound, int64_t n) const;

  std::vector<int64_t> bounds_;  // [sources + 1], in units of 2^-48
  int64_t theta_;
};

// sum over 0 <= i < n of floor((a i + b) / m); a, b < m <= 2^48, n <= 2^40. It may exceed 64 bits;
// the difference of two that Mix takes never does.
__extension__ using Uint128 = unsigned __int128;
Uint128 floor_sum(Uint128 n, Uint128 m, Uint128 a, Uint128 b);

}  // namespace troupe
