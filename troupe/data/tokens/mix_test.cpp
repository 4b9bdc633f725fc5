#include "troupe/data/tokens/mix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(FloorSum, IsTheSumOfFloors) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    };
    const int64_t n = draw(60), m = 1 + draw(trial % 2 == 0 ? 50 : int64_t{1} << 48);
    const int64_t a = draw(m), b = draw(m);
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += static_cast<int64_t>((static_cast<__int128>(a) * i + b) / m);
    }
    const Uint128 found = floor_sum(static_cast<Uint128>(n), static_cast<Uint128>(m),
                                    static_cast<Uint128>(a), static_cast<Uint128>(b));
    EXPECT_EQ(static_cast<int64_t>(found), sum) << n << ' ' << m << ' ' << a << ' ' << b;
  }
}

struct Weights : ::testing::TestWithParam<std::vector<double>> {};

// Counting and placing agree: sample n is number count(source, n) of its source.
TEST_P(Weights, EachSampleIsTheNextOfItsSource) {
  const std::vector<double>& weights = GetParam();
  const Mix mix(weights, Rng(3, 4));
  std::vector<int64_t> taken(weights.size());
  for (int64_t n = 0; n < 5000; ++n) {
    const MixedSample sample = mix.at(n);
    ASSERT_EQ(sample.index, taken[static_cast<size_t>(sample.source)]++) << n;
  }
  for (size_t s = 0; s < weights.size(); ++s) {
    EXPECT_EQ(mix.count(static_cast<int>(s), 5000), taken[s]);
  }
}

TEST_P(Weights, SharesAreKeptAtEveryPoint) {
  const std::vector<double>& weights = GetParam();
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Mix mix(weights, Rng(3, 4));
  for (int64_t n = 1; n < 10'000'000; n = n * 5 / 4 + 1) {
    for (size_t s = 0; s < weights.size(); ++s) {
      const double wanted = static_cast<double>(n) * weights[s] / total;
      const auto found = static_cast<double>(mix.count(static_cast<int>(s), n));
      EXPECT_LT(std::abs(found - wanted), 3 + 0.5 * std::log(static_cast<double>(n))) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Weights,
                         ::testing::Values(std::vector<double>{1}, std::vector<double>{1, 1},
                                           std::vector<double>{0.5, 0.3, 0.2},
                                           std::vector<double>{1, 1000},
                                           std::vector<double>{3, 1e-6, 5, 0.1},
                                           std::vector<double>(40, 0.1)));

TEST(Mix, LateSamplesCostNoMoreThanEarlyOnes) {
  const Mix mix({0.25, 0.75}, Rng(1, 1));
  const int64_t late = (int64_t{1} << 40) - 1;
  const MixedSample sample = mix.at(late);
  EXPECT_EQ(mix.count(0, late) + mix.count(1, late), late);
  EXPECT_EQ(sample.index, mix.count(sample.source, late));
  EXPECT_THROW(static_cast<void>(mix.at(late + 1)), Error);
}

// A run that is continued relies on it: these values are forever.
TEST(Mix, ItsValuesDoNotChange) {
  const Mix mix({0.5, 0.3, 0.2}, Rng(1234, 0));
  std::vector<int> sources;
  for (int64_t n = 0; n < 12; ++n) sources.push_back(mix.at(n).source);
  EXPECT_EQ(sources, (std::vector<int>{1, 0, 2, 0, 0, 1, 0, 2, 1, 0, 1, 0}));
}

TEST(Mix, RefusesWeightsThatMeanNothing) {
  EXPECT_THROW(Mix({}, Rng(1, 1)), Error);
  EXPECT_THROW(Mix({1, 0}, Rng(1, 1)), Error);
  EXPECT_THROW(Mix({1, -1}, Rng(1, 1)), Error);
  EXPECT_THROW(Mix({1, NAN}, Rng(1, 1)), Error);
  EXPECT_THROW(Mix({1, 1e-20}, Rng(1, 1)), Error);
}

}  // namespace
}  // namespace troupe
