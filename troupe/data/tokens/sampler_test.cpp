#include "troupe/data/tokens/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "troupe/core/check.h"
#include "troupe/data/files/memory_source_test.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

using testing::has;
using testing::refusal_code;

std::shared_ptr<MemorySource> source_of(const std::vector<int64_t>& lengths) {
  return std::make_shared<MemorySource>(counted(lengths));
}

// How often each token of the source is a label: stands in a sample, but not first in its piece.
std::vector<int> label_counts(const TokenSource& source, const Sampler& sampler, int64_t first,
                              int64_t count) {
  std::vector<int> out(static_cast<size_t>(source.num_tokens()));
  for (int64_t i = first; i < first + count; ++i) {
    for (const TokenPiece& piece : sampler.pieces(i)) {
      for (int64_t t = piece.first + 1; t < piece.first + piece.count; ++t) {
        ++out.at(static_cast<size_t>(t));
      }
    }
  }
  return out;
}

TEST(PreferencePairs, AreTogetherAndOnceAnEpoch) {
  const auto source = source_of({3, 4, 9, 2, 8, 8, 1, 5, 2, 2});
  const PreferencePairs found = preference_pairs(source, 7, OrderKey{.seed = 5});
  EXPECT_EQ(found.pairs, 4);
  EXPECT_EQ(found.left_out, 1);  // the second one: 9 tokens are more than 8
  EXPECT_EQ(found.sampler->samples_per_epoch(), 8);
  std::set<int64_t> orders;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    std::multiset<int64_t> first;
    for (int64_t n = 8 * epoch; n < 8 * epoch + 8; n += 2) {
      const std::vector<TokenPiece> chosen = found.sampler->pieces(n);
      const std::vector<TokenPiece> rejected = found.sampler->pieces(n + 1);
      ASSERT_EQ(chosen.size(), 1U);
      ASSERT_EQ(rejected.size(), 1U);
      EXPECT_EQ(rejected[0].first, chosen[0].first + chosen[0].count);
      first.insert(chosen[0].first);
    }
    EXPECT_EQ(first, (std::multiset<int64_t>{0, 18, 34, 40}));
    orders.insert(found.sampler->pieces(8 * epoch)[0].first);
  }
  EXPECT_GT(orders.size(), 1U);
}

TEST(PreferencePairs, WithoutAKeyComeInTheSourcesOrder) {
  const auto source = source_of({3, 4, 9, 2, 8, 8});
  const PreferencePairs found = preference_pairs(source, 7, std::nullopt);
  for (const int64_t epoch : {0, 1}) {
    EXPECT_EQ(found.sampler->pieces(4 * epoch)[0], (TokenPiece{0, 3}));
    EXPECT_EQ(found.sampler->pieces(4 * epoch + 3)[0], (TokenPiece{26, 8}));
  }
}

TEST(PreferencePairs, RefusesHalvesAndWhatFitsNowhere) {
  const auto of = [](const std::vector<int64_t>& lengths) {
    return [source = source_of(lengths)] { preference_pairs(source, 7, std::nullopt); };
  };
  refusal_code(Code::kBadTokenFile, of({3, 4, 5}));
  refusal_code(Code::kTooFewTokens, of({3, 9, 0, 4}));
}

TEST(ShuffledChunks, AnEpochHasEachTokenAsALabelOnce) {
  const auto source = source_of({100, 0, 37, 64});
  const auto sampler = shuffled_chunks(*source, 8, {.seed = 5});
  EXPECT_EQ(sampler->samples_per_epoch(), 25);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int> count = label_counts(*source, *sampler, 25 * epoch, 25);
    EXPECT_EQ(std::accumulate(count.begin(), count.end(), 0), 200);
    EXPECT_EQ(*std::ranges::max_element(count), 1);
  }
}

TEST(ShuffledChunks, EpochsDifferInOrderAndCuts) {
  const auto source = source_of({1000 * 8 + 5});
  const auto sampler = shuffled_chunks(*source, 8, {.seed = 5});
  std::set<int64_t> shifts;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    shifts.insert(sampler->pieces(1000 * epoch)[0].first % 8);
    EXPECT_NE(sampler->pieces(1000 * epoch), sampler->pieces(1000 * (epoch + 1)));
  }
  EXPECT_EQ(shifts, (std::set<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ShuffledChunks, SeedAndSourceDecideTheOrder) {
  const auto source = source_of({8001});
  const auto one = shuffled_chunks(*source, 8, {.seed = 5, .source = 0});
  const auto same = shuffled_chunks(*source, 8, {.seed = 5, .source = 0});
  const auto other = shuffled_chunks(*source, 8, {.seed = 5, .source = 1});
  int64_t equal = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(one->pieces(i), same->pieces(i));
    equal += one->pieces(i) == other->pieces(i);
  }
  EXPECT_LT(equal, 10);
}

TEST(ShuffledChunks, F58_NeedsOneSample) {
  const auto source = source_of({30, 0});
  const std::string what =
      refusal_code(Code::kTooFewTokens, [&] { shuffled_chunks(*source, 32, {.seed = 5}); });
  EXPECT_PRED2(has, what, "memory: E3103 has 30 tokens in 2 sequences; one sample needs 33");
  refusal_code(Code::kTooFewTokens, [&] { shuffled_chunks(*source_of({}), 1, {}); });
  refusal_code(Code::kTooFewTokens, [&] { ordered_chunks(*source_of({0, 0, 0}), 1); });
  refusal_code(Code::kTooFewTokens, [&] { packed_sequences(source_of({1, 1, 1}), 4, {}); });
}

TEST(OrderedChunks, AreAllOfTheFileInOrder) {
  const auto source = source_of({10, 3});
  const auto sampler = ordered_chunks(*source, 5);
  EXPECT_EQ(sampler->samples_per_epoch(), 3);
  EXPECT_EQ(sampler->pieces(0), (std::vector<TokenPiece>{{0, 6}}));
  EXPECT_EQ(sampler->pieces(2), (std::vector<TokenPiece>{{10, 3}}));
  const std::vector<int> count = label_counts(*source, *sampler, 0, 3);
  EXPECT_EQ(count, (std::vector<int>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(PackedSequences, EachTokenButAFirstIsALabelOnce) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 3000; ++i)
    lengths.push_back(i * 7919 % 53);  // Three windows; some empty.
  const auto source = source_of(lengths);
  const auto sampler = packed_sequences(source, 32, {.seed = 5});
  const int64_t n = sampler->samples_per_epoch();
  const std::vector<int> count = label_counts(*source, *sampler, n, n);
  for (int64_t s = 0; s < source->num_sequences(); ++s) {
    for (int64_t t = source->start(s); t < source->start(s + 1); ++t) {
      ASSERT_EQ(count[static_cast<size_t>(t)], t == source->start(s) ? 0 : 1) << t;
    }
  }
}

TEST(PackedSequences, LittleOfASampleIsLeftFree) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 3000; ++i) lengths.push_back(2 + i * 7919 % 53);
  const auto source = source_of(lengths);
  const auto sampler = packed_sequences(source, 63, {.seed = 5});
  int64_t used = 0;
  for (int64_t i = 0; i < sampler->samples_per_epoch(); ++i) {
    int64_t in_sample = 0;
    for (const TokenPiece& piece : sampler->pieces(i)) in_sample += piece.count;
    EXPECT_LE(in_sample, 64);
    used += in_sample;
  }
  EXPECT_GT(static_cast<double>(used),
            0.98 * 64 * static_cast<double>(sampler->samples_per_epoch()));
}

TEST(MegatronSamples, ArePiecesOfTheSource) {
  const auto source = source_of({7, 3, 12, 1, 9});
  const auto sampler = megatron_samples(source, {.sequence = 4, .seed = 1234, .samples = 17});
  EXPECT_EQ(sampler->samples_per_epoch(), 23);
  EXPECT_EQ(sampler->pieces(0), (std::vector<TokenPiece>{{27, 5}}));           // 54 ... 58
  EXPECT_EQ(sampler->pieces(2), (std::vector<TokenPiece>{{18, 4}, {10, 1}}));  // 38 ... 41, 30
}

}  // namespace
}  // namespace troupe
