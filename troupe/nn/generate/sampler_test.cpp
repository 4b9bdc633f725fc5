#include "troupe/nn/generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// How often each id is drawn in n draws.
std::map<int64_t, double> shares(const std::vector<float>& logits, const SampleConfig& config,
                                 const std::vector<int64_t>& seen = {}, int64_t n = 4000) {
  std::map<int64_t, double> out;
  for (int64_t i = 0; i < n; ++i) {
    out[sample(logits, seen, config, {i})] += 1.0 / static_cast<double>(n);
  }
  return out;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

TEST(Sampler, DrawsFromTheSoftmax) {
  const auto got = shares(kLogits, {});
  EXPECT_NEAR(got.at(0), 0.1, 0.03);
  EXPECT_NEAR(got.at(1), 0.4, 0.03);
  EXPECT_NEAR(got.at(2), 0.2, 0.03);
  EXPECT_NEAR(got.at(3), 0.3, 0.03);
}

TEST(Sampler, TemperatureSharpensAndZeroIsGreedyWithTiesToTheLowerId) {
  EXPECT_NEAR(shares(kLogits, {.temperature = 0.5}).at(1), 0.16 / 0.30, 0.03);
  EXPECT_EQ(sample({1, 3, 3, 2}, {}, {.temperature = 0}, {}), 1);
}

TEST(Sampler, LimitsKeepTheirTokensAlone) {
  const auto ids = [](const SampleConfig& c) {
    std::string out;
    for (const auto& [id, share] : shares(kLogits, c)) out += std::to_string(id);
    return out;
  };
  EXPECT_EQ(ids({.top_k = 2}), "13");
  EXPECT_EQ(ids({.top_k = 9}), "0123");
  EXPECT_EQ(ids({.top_p = 0.5}), "13");
  EXPECT_EQ(ids({.top_p = 0.01}), "1");
  EXPECT_EQ(ids({.min_p = 0.6}), "13");
  EXPECT_EQ(ids({.top_k = 3, .min_p = 0.1}), "123");
}

// The ids, among 5,000, that a sort of all of them leaves.
TEST(Sampler, ANucleusOfALargeVocabularyIsThatOfTheWholeOrder) {
  std::vector<float> logits;
  for (int64_t i = 0; i < 5000; ++i) {
    logits.push_back(static_cast<float>((i * 7919) % 5000) * 0.002F);  // each value once
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  double sum = 0, part = 0;
  for (const float z : logits) sum += std::exp(z);
  size_t n = 0;
  while (part < 0.3 * sum) part += std::exp(logits[order[n++]]);
  ASSERT_GT(n, 64U);
  const std::set<int64_t> allowed(order.begin(), order.begin() + static_cast<int64_t>(n));
  std::set<int64_t> got;
  for (int64_t i = 0; i < 20000; ++i) got.insert(sample(logits, {}, {.top_p = 0.3}, {i}));
  EXPECT_TRUE(std::ranges::includes(allowed, got));
  EXPECT_GT(got.size(), n * 9 / 10);
}

TEST(Sampler, RepetitionPenaltyLowersWhatWasSeenOnceHoweverOften) {
  const SampleConfig c{.temperature = 0, .repetition_penalty = 2};
  const std::vector<int64_t> seen = {1, 1, 1};
  EXPECT_EQ(sample({1.5f, 2.9f, -1}, seen, c, {}), 0);
  EXPECT_EQ(sample({1.4f, 2.9f, -1}, seen, c, {}), 1);
  EXPECT_EQ(sample({-1.5f, -1, -3}, seen, c, {}), 0);
}

TEST(Sampler, BadSettingsAreRefusedByName) {
  const auto fault = [](const SampleConfig& c) {
    try {
      validate(c);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(fault({}), "");
  EXPECT_EQ(fault({.temperature = -1}).substr(0, 11), "temperature");
  EXPECT_EQ(fault({.top_p = 0}).substr(0, 5), "top_p");
  EXPECT_EQ(fault({.min_p = 2}).substr(0, 5), "min_p");
  EXPECT_EQ(fault({.repetition_penalty = 0}).substr(0, 10), "repetition");
  EXPECT_THROW(sample({NAN}, {}, {}, {}), Error);
}

}  // namespace
}  // namespace troupe
