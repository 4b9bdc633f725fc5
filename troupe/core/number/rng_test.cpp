#include "troupe/core/number/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <numbers>
#include <set>
#include <vector>

namespace troupe {
namespace {

using Four = std::array<uint32_t, 4>;

Four philox_of(const Four& counter, uint64_t key) {
  const Words4 r = philox({{counter[0], counter[1], counter[2], counter[3]}}, key);
  return {r.w[0], r.w[1], r.w[2], r.w[3]};
}

TEST(Rng, PhiloxGivesTheKnownAnswersOfRandom123) {
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox_of({0, 0, 0, 0}, 0), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox_of({kOnes, kOnes, kOnes, kOnes}, ~uint64_t{0}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_of({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, StreamsAreFnv1aOfTheName) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8u);
}

// The numbers that checkpoints and golden losses rest on.
TEST(Rng, NeverChangesWhatItDraws) {
  const Rng rng(1, stream_of("layers.0.experts.w1"));
  const uint64_t far = (uint64_t{1} << 40) + 3;
  EXPECT_EQ(std::bit_cast<uint32_t>(rng.uniform(0)), 0x3e209550u);
  EXPECT_EQ(std::bit_cast<uint32_t>(rng.normal(0)), 0x3ff63201u);
  EXPECT_EQ(std::bit_cast<uint32_t>(rng.normal(far)), 0xbf566fa3u);
  EXPECT_EQ(std::bit_cast<uint32_t>(rng.normal(7, 5)), 0x3e3ffcc1u);
}

TEST(Rng, IndexColumnStreamAndSeedAllMatter) {
  std::set<uint32_t> seen;
  for (const uint64_t seed : {0, 1}) {
    for (const uint64_t stream : {0, 1}) {
      for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        for (const uint32_t column : {0, 1}) {
          seen.insert(Rng(seed, stream).bits(index, column).w[0]);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 24u);
}

struct Moments {
  double mean = 0, variance = 0, fourth = 0;
};

template <class F>
Moments moments(int n, F&& f) {
  Moments m;
  for (int i = 0; i < n; ++i) {
    const double x = f(i);
    m.mean += x / n;
    m.variance += x * x / n;
    m.fourth += x * x * x * x / n;
  }
  m.variance -= m.mean * m.mean;
  return m;
}

constexpr int kDraws =
    1 << 20;  // A mean of n draws strays by std / sqrt(n); we allow four of those.
constexpr double kStray = 4.0 / (1 << 10);

TEST(Rng, UniformFillsTheUnitInterval) {
  const Rng rng(7, 9);
  float least = 1, most = 0;
  const Moments m = moments(kDraws, [&](int i) {
    const float x = rng.uniform(static_cast<uint64_t>(i));
    least = std::min(least, x), most = std::max(most, x);
    return x;
  });
  EXPECT_NEAR(m.mean, 0.5, kStray * std::sqrt(1.0 / 12));
  EXPECT_NEAR(m.variance, 1.0 / 12, kStray * std::sqrt(1.0 / 180));
  EXPECT_GE(least, 0.0f);
  EXPECT_LT(least, 1e-4f);
  EXPECT_LT(most, 1.0f);
  EXPECT_GT(most, 1 - 1e-4f);
}

TEST(Rng, NormalHasTheMomentsAndTailsOfANormal) {
  const Rng rng(7, stream_of("w"));
  int beyond_3 = 0;
  const Moments m = moments(kDraws, [&](int i) {
    const float x = rng.normal(static_cast<uint64_t>(i));
    beyond_3 += std::fabs(x) > 3;
    return x;
  });
  EXPECT_NEAR(m.mean, 0, kStray);
  EXPECT_NEAR(m.variance, 1, kStray * std::sqrt(2.0));
  EXPECT_NEAR(m.fourth, 3, kStray * std::sqrt(96.0));
  EXPECT_NEAR(beyond_3, 0.0026998 * kDraws, 4 * std::sqrt(0.0027 * kDraws));
}

TEST(Rng, NeighborsOfEverySortAreUncorrelated) {
  const Rng rng(3, stream_of("a")), other(3, stream_of("b")), reseeded(4, stream_of("a"));
  const auto correlation = [&](auto&& second) {
    return moments(kDraws,
                   [&](int i) {
                     const auto index = static_cast<uint64_t>(i);
                     return rng.normal(index) * second(index);
                   })
        .mean;
  };
  EXPECT_NEAR(correlation([&](uint64_t i) { return rng.normal(i + 1); }), 0, kStray);
  EXPECT_NEAR(correlation([&](uint64_t i) { return rng.normal(i, 1); }), 0, kStray);
  EXPECT_NEAR(correlation([&](uint64_t i) { return rng.normal(i + (uint64_t{1} << 32)); }), 0,
              kStray);
  EXPECT_NEAR(correlation([&](uint64_t i) { return other.normal(i); }), 0, kStray);
  EXPECT_NEAR(correlation([&](uint64_t i) { return reseeded.normal(i); }), 0, kStray);
}

TEST(Rng, AnElementIsTheSameHoweverARangeIsSplit) {
  constexpr size_t kSize = 1000;
  const auto fill = [](size_t begin, size_t end, std::vector<float>& out) {
    const Rng rng(5, 6);  // each part makes its own
    for (size_t i = begin; i < end; ++i) out[i] = rng.normal(i);
  };
  std::vector<float> whole(kSize), parts(kSize);
  fill(0, kSize, whole);
  for (size_t end = kSize, size = 1; end > 0; ++size) {  // from the back, in parts of 1, 2, 3, ...
    const size_t begin = end - std::min(size, end);
    fill(begin, end, parts);
    end = begin;
  }
  EXPECT_EQ(parts, whole);
}

TEST(Rng, TheFunctionsOfBoxAndMullerAreAccurate) {
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint32_t w = Rng(1, 2).bits(i).w[0];
    const double turn = std::cos(w * 0x1p-32 * 2 * std::numbers::pi);
    EXPECT_NEAR(detail::cos_turn(w), turn, 1.2e-7) << w;
    const float u = (static_cast<float>(w >> (i % 32)) + 0.5f) * 0x1p-32f;
    const double exact = std::log(static_cast<double>(u));
    EXPECT_NEAR(detail::ln(u), exact, 1.2e-7 * std::max(1.0, -exact)) << u;
  }
  EXPECT_EQ(detail::cos_turn(0), 1.0f);
  EXPECT_EQ(detail::cos_turn(1u << 30), 0.0f);
  EXPECT_EQ(detail::cos_turn(1u << 31), -1.0f);
  EXPECT_EQ(detail::ln(1), 0.0f);
}

}  // namespace
}  // namespace troupe
