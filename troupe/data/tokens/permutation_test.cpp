#include "troupe/data/tokens/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

std::vector<int64_t> all(const Permutation& order) {
  std::vector<int64_t> out(static_cast<size_t>(order.size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = order(static_cast<int64_t>(i));
  return out;
}

TEST(Permutation, TakesEachValueOnce) {
  for (const int64_t n : {0, 1, 2, 3, 5, 16, 17, 255, 256, 257, 10007}) {
    std::vector<int> seen(static_cast<size_t>(n));
    for (const int64_t value : all(Permutation(n, Rng(1, 2))))
      ++seen.at(static_cast<size_t>(value));
    EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(n), 1)) << n;
  }
}

TEST(Permutation, IsAFunctionOfItsKey) {
  EXPECT_EQ(all(Permutation(1000, Rng(1, 2))), all(Permutation(1000, Rng(1, 2))));
  EXPECT_NE(all(Permutation(1000, Rng(1, 2))), all(Permutation(1000, Rng(1, 3))));
  EXPECT_NE(all(Permutation(1000, Rng(1, 2))), all(Permutation(1000, Rng(2, 2))));
}

// A run that is continued relies on it: these values are forever.
TEST(Permutation, ItsValuesDoNotChange) {
  EXPECT_EQ(all(Permutation(10, Rng(1234, 0))),
            (std::vector<int64_t>{6, 9, 8, 7, 4, 5, 0, 2, 1, 3}));
  EXPECT_EQ(Permutation(int64_t{1} << 40, Rng(1234, 0))(12345), 1081516513410);
}

// Chi-squared over the 24 orders of four values, 24,000 keys: 23 degrees of freedom, so that more
// than 60 comes once in 40,000 times of a fair shuffle. The keys are fixed: it comes always or
// never.
TEST(Permutation, AllOrdersOfFourAreEquallyLikely) {
  std::map<std::vector<int64_t>, double> count;
  for (uint64_t key = 0; key < 24000; ++key) ++count[all(Permutation(4, Rng(key, 0)))];
  ASSERT_EQ(count.size(), 24u);
  double chi2 = 0;
  for (const auto& [order, n] : count) chi2 += (n - 1000) * (n - 1000) / 1000;
  EXPECT_LT(chi2, 60);
}

// Where neighbors go is no more related than in a fair shuffle: the correlation of two random
// orders of n values has standard deviation 1 / sqrt(n - 1).
TEST(Permutation, NeighborsAreParted) {
  constexpr int64_t kN = 20000;
  const std::vector<int64_t> order = all(Permutation(kN, Rng(7, 7)));
  const double mean = (kN - 1) / 2.0, variance = (double{kN} * kN - 1) / 12;
  double with_neighbor = 0, with_position = 0;
  for (int64_t i = 0; i < kN; ++i) {
    const double x = static_cast<double>(order[static_cast<size_t>(i)]) - mean;
    const double next = static_cast<double>(order[static_cast<size_t>((i + 1) % kN)]) - mean;
    with_neighbor += x * next;
    with_position += x * (static_cast<double>(i) - mean);
  }
  EXPECT_LT(std::abs(with_neighbor / variance / kN), 4 / std::sqrt(kN));
  EXPECT_LT(std::abs(with_position / variance / kN), 4 / std::sqrt(kN));
}

TEST(Permutation, RefusesWhatIsOutside) {
  EXPECT_THROW(Permutation(3, Rng(1, 1))(3), Error);
  EXPECT_THROW(Permutation(3, Rng(1, 1))(-1), Error);
}

}  // namespace
}  // namespace troupe
