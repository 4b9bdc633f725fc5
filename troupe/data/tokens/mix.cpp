#include "troupe/data/tokens/mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kOne = int64_t{1} << 48;
constexpr int64_t kPhi = 173961102589771;  // frac(golden ratio) 2^48, rounded to odd
constexpr int64_t kLongest = int64_t{1} << 40;

}  // namespace

Uint128 floor_sum(Uint128 n, Uint128 m, Uint128 a, Uint128 b) {
  Uint128 sum = 0;
  while (n > 0) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const Uint128 top = a * n + b;  // Swap the axes: count the points under the line by columns.
    if (top < m) break;
    n = top / m;
    b = top % m;
    std::swap(m, a);
  }
  return sum;
}

Mix::Mix(const std::vector<double>& weights, const Rng& rng) : bounds_{0} {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  TROUPE_CHECK(std::isfinite(total) && total > 0, "weights sum to", total);
  double sum = 0;
  for (const double weight : weights) {
    sum += weight;
    const auto bound = std::llround(std::min(1.0, sum / total) * static_cast<double>(kOne));
    TROUPE_CHECK(bound > bounds_.back(), "weight", weight, "of", total, "is too small");
    bounds_.push_back(bound);
  }
  bounds_.back() = kOne;
  const Words4 w = rng.bits(0);
  theta_ = static_cast<int64_t>((uint64_t{w.w[0]} << 32 | w.w[1]) >> 16);
}

// Among u_0 ... u_{n-1} those below `bound`: floor(x) - floor(x - bound) is 1 for each, else 0.
int64_t Mix::count_below(int64_t bound, int64_t n) const {
  const auto count = static_cast<Uint128>(n), one = static_cast<Uint128>(kOne);
  const Uint128 all = floor_sum(count, one, kPhi, static_cast<Uint128>(theta_));
  const Uint128 rest = floor_sum(count, one, kPhi, static_cast<Uint128>(theta_ + kOne - bound));
  return static_cast<int64_t>(all + count - rest);
}

int64_t Mix::count(int source, int64_t n) const {
  TROUPE_CHECK(0 <= n && n <= kLongest, n);
  const auto s = static_cast<size_t>(source);
  return count_below(bounds_[s + 1], n) - count_below(bounds_[s], n);
}

MixedSample Mix::at(int64_t n) const {
  TROUPE_CHECK(0 <= n && n < kLongest, n);
  const auto u = static_cast<int64_t>(
      (static_cast<Uint128>(kPhi) * static_cast<Uint128>(n) + static_cast<Uint128>(theta_)) &
      static_cast<Uint128>(kOne - 1));
  const auto above = std::upper_bound(bounds_.begin(), bounds_.end(), u);
  const int source = static_cast<int>(above - bounds_.begin()) - 1;
  return {.source = source, .index = count(source, n)};
}

}  // namespace troupe
