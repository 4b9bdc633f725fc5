#include "troupe/core/number/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace troupe {
namespace {

// Of many sizes and both signs, as f32.
std::vector<float> of_many_sizes(size_t n, int least, int most) {
  std::mt19937_64 draw(7);
  std::uniform_real_distribution<double> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(least, most);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(std::ldexp(mantissa(draw), exponent(draw)));
  return out;
}

// In parts that are added to each other, as ranks do.
double exact_sum_of(const std::vector<float>& xs, size_t parts) {
  std::vector<ExactSum> sums(parts);
  for (size_t i = 0; i < xs.size(); ++i) sums[i % parts].add(static_cast<double>(xs[i]));
  ExactSum::Words all = {};
  for (const ExactSum& sum : sums) {
    const ExactSum::Words words = sum.carried();
    for (size_t i = 0; i < all.size(); ++i) all[i] += words[i];
  }
  return ExactSum(all).value();
}

float pair_sum_of(const std::vector<float>& xs, size_t parts) {
  std::vector<int64_t> pairs(2 * parts);
  for (size_t i = 0; i < xs.size(); ++i) {
    EXPECT_TRUE(add_to_pair(&pairs[2 * (i % parts)], static_cast<double>(xs[i])));
  }
  int64_t all[2] = {0, 0};
  for (size_t i = 0; i < pairs.size(); ++i) all[i % 2] += pairs[i];
  return value_of_pair(all);
}

TEST(ExactSum, HasTheSameBitsInAnyOrderAndInAnyParts) {
  std::vector<float> xs = of_many_sizes(3000, -60, 40);
  const double sum = exact_sum_of(xs, 1);
  std::mt19937_64 shuffle(3);
  for (const size_t parts : {1, 2, 3, 7}) {
    std::shuffle(xs.begin(), xs.end(), shuffle);
    EXPECT_EQ(std::bit_cast<uint64_t>(exact_sum_of(xs, parts)), std::bit_cast<uint64_t>(sum));
  }
}

TEST(ExactSum, IsTheSum) {
  const std::vector<float> xs = of_many_sizes(5000, -20, 20);  // exact in 113 bits
  long double sum = 0;
  for (const float x : xs) sum += static_cast<long double>(x);
  EXPECT_NEAR(exact_sum_of(xs, 3), static_cast<double>(sum), 1e-9);
  for (const double x : {1.5, -1.5, 1e-30, -1e30, 0.1, -0.1}) {
    ExactSum one;
    one.add(x);
    EXPECT_EQ(one.value(), x);
    one.add(-x);
    EXPECT_EQ(one.value(), 0);
  }
}

TEST(ExactSum, KeepsWhatLargeNumbersHide) {
  ExactSum sum;
  for (const double x : {1e30, 1e-20, -1e30}) sum.add(x);
  EXPECT_EQ(sum.value(), 1e-20);
}

TEST(ExactSum, IsNanWithANumberThatIsNotFiniteOrTooLarge) {
  for (const double x : {std::nan(""), std::numeric_limits<double>::infinity(), 1e200}) {
    ExactSum sum;
    sum.add(1);
    sum.add(x);
    ExactSum other;
    other.add(sum);
    EXPECT_TRUE(std::isnan(other.value())) << x;
  }
}

TEST(ExactPair, HasTheSameBitsInAnyOrderAndInAnyParts) {
  std::vector<float> xs = of_many_sizes(4000, -75, 17);
  const float sum = pair_sum_of(xs, 1);
  std::mt19937_64 shuffle(3);
  for (const size_t parts : {1, 2, 3, 7}) {
    std::shuffle(xs.begin(), xs.end(), shuffle);
    EXPECT_EQ(std::bit_cast<uint32_t>(pair_sum_of(xs, parts)), std::bit_cast<uint32_t>(sum));
  }
}

// What f32's own sum, whose order counts, only comes near to.
TEST(ExactPair, IsTheSumRounded) {
  const std::vector<float> xs = of_many_sizes(4000, -30, 10);
  double sum = 0;
  for (const float x : xs) sum += static_cast<double>(x);
  EXPECT_NEAR(pair_sum_of(xs, 3), sum, 1e-6 * std::abs(sum));
  for (const float x : {1.5F, -1.5F, 3e-10F, 1e5F, -0.1F}) EXPECT_EQ(pair_sum_of({x}, 1), x);
  EXPECT_EQ(pair_sum_of({1e-30F}, 1), 0.0F) << "below half of 2^-80";
  EXPECT_EQ(pair_sum_of({1e5F, 1e-12F, -1e5F}, 1), 1e-12F);
}

TEST(ExactPair, SaysWhatDoesNotFit) {
  int64_t pair[2] = {0, 0};
  EXPECT_FALSE(add_to_pair(pair, 0x1p20));
  EXPECT_FALSE(add_to_pair(pair, -0x1p30));
  EXPECT_FALSE(add_to_pair(pair, std::nan("")));
  EXPECT_FALSE(add_to_pair(pair, std::numeric_limits<double>::infinity()));
}

TEST(ExactPair, HasRoomForItsTerms) {
  for (const float most : {0x1p20F, 0x1p-31F}) {  // of either integer
    const std::vector<float> xs(kPairTerms, std::nextafter(most, 0.0F));
    const double sum = static_cast<double>(xs.front()) * static_cast<double>(kPairTerms);
    EXPECT_EQ(pair_sum_of(xs, 2), static_cast<float>(sum));
  }
}

}  // namespace
}  // namespace troupe
