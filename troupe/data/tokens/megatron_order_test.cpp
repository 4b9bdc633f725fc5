// The golden values are what megatron-core 0.16.1 makes with numpy 2.4.
#include "troupe/data/tokens/megatron_order.h"

#include <gtest/gtest.h>

#include <numeric>

#include "troupe/core/check.h"
#include "troupe/data/tokens/numpy.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

using testing::has;
using testing::refusal_code;

template <class T>
uint64_t hash_of(const std::vector<T>& values) {
  uint64_t hash = 0;
  for (const T value : values) hash = hash * 1099511628211u + static_cast<uint64_t>(value) + 1;
  return hash;
}

std::vector<int64_t> sample_index_of(const MegatronIndex& index) {
  std::vector<int64_t> out;
  for (int64_t k = 0; k <= index.num_samples(); ++k) {
    const auto [position, offset] = index.sample_index(k);
    out.insert(out.end(), {position, offset});
  }
  return out;
}

TEST(Numpy, ShufflesAsRandomStateDoes) {
  std::mt19937 generator(1234);
  std::vector<int> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  numpy_shuffle(generator, std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  numpy_shuffle(generator, std::span(values));
  EXPECT_EQ(values, (std::vector<int>{7, 3, 5, 1, 4, 8, 0, 2, 6, 9}));
}

TEST(Numpy, DrawsBeyond32BitsTakeTwoWords) {
  std::mt19937 generator(1234);
  // numpy: RandomState(1234).randint's word pair 822569775, 2137449171 under a mask of 33 bits.
  EXPECT_EQ(numpy_draw(generator, (uint64_t{1} << 33) - 1),
            ((uint64_t{822569775} << 32 | 2137449171u) & ((uint64_t{1} << 33) - 1)));
}

TEST(Numpy, SumsInEightLanes) {
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) values.push_back(1.0 / (i + 1));
  const auto sum = [&](size_t n) { return numpy_sum(std::span(values).first(n)); };
  EXPECT_EQ(sum(1), 0x1.0000000000000p+0);
  EXPECT_EQ(sum(7), 0x1.4be2be2be2be2p+1);
  EXPECT_EQ(sum(8), 0x1.5be2be2be2be2p+1);
  EXPECT_EQ(sum(9), 0x1.6a1ba1ba1ba1bp+1);
  EXPECT_EQ(sum(127), 0x1.5b38ae9541ca6p+2);
  EXPECT_EQ(sum(128), 0x1.5bb8ae9541ca7p+2);
  EXPECT_EQ(sum(129), 0x1.5c37b09149ba9p+2);
  EXPECT_EQ(sum(1000), 0x1.df11f45f4e61ap+2);
}

TEST(Numpy, MockLengthsAreThoseOfDefaultRng) {
  const std::vector<int32_t> lengths = numpy_mock_lengths(100000);
  EXPECT_EQ(
      std::vector<int32_t>(lengths.begin(), lengths.begin() + 12),
      (std::vector<int32_t>{3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331, 2660, 3738}));
  EXPECT_EQ(std::vector<int32_t>(lengths.end() - 3, lengths.end()),
            (std::vector<int32_t>{61, 100, 769}));
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), 204637097);
}

TEST(MegatronIndex, GoldenArrays) {
  const std::vector<int32_t> lengths{7, 3, 12, 1, 9};
  const MegatronIndex index(lengths, {.sequence = 4, .seed = 1234, .samples = 17});
  EXPECT_EQ(index.num_epochs(), 3);
  EXPECT_TRUE(index.has_separate_epoch());
  EXPECT_EQ(index.document_index(),
            (std::vector<int32_t>{2, 2, 4, 1, 0, 3, 4, 0, 1, 3, 0, 4, 3, 2, 1}));
  EXPECT_EQ(index.shuffle_index(),
            (std::vector<uint32_t>{7,  11, 2,  3,  1,  9,  5,  4,  0,  8,  6, 10,
                                   13, 12, 14, 21, 19, 16, 20, 18, 15, 17, 22}));
  EXPECT_EQ(sample_index_of(index),
            (std::vector<int64_t>{0,  0, 0,  4, 0,  8, 1,  0, 1,  4, 1,  8, 2,  0, 2,  4,
                                  2,  8, 4,  0, 4,  4, 6,  0, 6,  4, 6,  8, 7,  3, 8,  0,
                                  10, 0, 10, 4, 11, 1, 11, 5, 12, 0, 13, 3, 13, 7, 13, 11}));
  const auto tokens = [&](int64_t i) {
    std::vector<int64_t> out;
    for (const auto& [sequence, first, count] : index.sample(i)) {
      for (int64_t j = first; j < first + count; ++j) out.push_back(10 * (sequence + 1) + j);
    }
    return out;
  };
  EXPECT_EQ(tokens(0), (std::vector<int64_t>{54, 55, 56, 57, 58}));
  EXPECT_EQ(tokens(1), (std::vector<int64_t>{50, 51, 52, 53, 54}));
  EXPECT_EQ(tokens(2), (std::vector<int64_t>{38, 39, 40, 41, 30}));
}

struct LargeCase {
  std::optional<int64_t> samples;
  int64_t epochs;
  bool separate;
  int64_t n;
  uint64_t documents, sample_index, shuffle;
};
struct Large : ::testing::TestWithParam<LargeCase> {};

// 500 sequences of i * 7919 mod 301 tokens, two of them empty.
TEST_P(Large, ArraysAreMegatrons) {
  const LargeCase& expected = GetParam();
  std::vector<int32_t> lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(i * 7919 % 301);
  const MegatronIndex index(lengths, {.sequence = 64, .seed = 1234, .samples = expected.samples});
  EXPECT_EQ(index.num_epochs(), expected.epochs);
  EXPECT_EQ(index.has_separate_epoch(), expected.separate);
  EXPECT_EQ(index.num_samples(), expected.n);
  EXPECT_EQ(hash_of(index.document_index()), expected.documents);
  EXPECT_EQ(hash_of(sample_index_of(index)), expected.sample_index);
  EXPECT_EQ(hash_of(index.shuffle_index()), expected.shuffle);
}

INSTANTIATE_TEST_SUITE_P(, Large,
                         ::testing::Values(LargeCase{std::nullopt, 1, false, 1171,
                                                     9969110668686656028u, 9723266416844791020u,
                                                     8184058584342416060u},
                                           LargeCase{100, 1, false, 1171, 9969110668686656028u,
                                                     9723266416844791020u, 8184058584342416060u},
                                           LargeCase{1172, 2, true, 2342, 15686767356566604722u,
                                                     11475462490855297085u, 18118965624087116667u},
                                           LargeCase{2300, 2, false, 2342, 5638097908905016148u,
                                                     4923764561009766588u, 11641982347842267867u},
                                           LargeCase{3000, 3, true, 3513, 11071429813374782638u,
                                                     13139713935749333514u, 11189456068517440829u},
                                           LargeCase{20000, 18, true, 21081, 15834688664461049788u,
                                                     5601511196605045170u, 16316479207167363913u}));

TEST(MegatronIndex, F58_TooFewTokensAreCounted) {
  const std::vector<int32_t> lengths{3, 1};
  const std::string what = refusal_code(
      Code::kTooFewTokens, [&] { const MegatronIndex index(lengths, {.sequence = 4}); });
  EXPECT_PRED2(has, what, "4 tokens; a sample needs 5");
}

TEST(MegatronBlend, GoldenOrder) {
  const std::vector<double> weights{0.5, 0.3, 0.2};
  const MegatronBlend blend(weights, 12);
  EXPECT_EQ(std::vector<int16_t>(blend.dataset.begin(), blend.dataset.begin() + 12),
            (std::vector<int16_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(hash_of(blend.index), 16906471430700684491u);
}

struct BlendCase {
  std::vector<double> weights;
  int64_t samples;
  size_t length;
  uint64_t dataset, index, built;
};

TEST(MegatronBlend, ArraysAreMegatrons) {
  std::vector<double> harmonic;
  for (int i = 0; i < 200; ++i) harmonic.push_back(1.0 / (i + 1));
  const std::vector<BlendCase> cases{
      {{1, 2, 3, 4, 5, 6, 7, 8, 9},
       5000,
       5004,
       6474639904218224359u,
       2716031955594780294u,
       6545896286250495462u},
      {std::vector<double>(40, 0.1), 3001, 3040, 9779007169558251312u, 4810802910990003040u,
       7070696362407953760u},
      {harmonic, 20000, 20109, 9288010383273666512u, 13985347538416771406u, 6747041382144894399u}};
  for (const BlendCase& expected : cases) {
    const MegatronBlend blend(expected.weights, expected.samples);
    EXPECT_EQ(blend.dataset.size(), expected.length);
    EXPECT_EQ(hash_of(blend.dataset), expected.dataset);
    EXPECT_EQ(hash_of(blend.index), expected.index);
    EXPECT_EQ(hash_of(blend.built), expected.built);
  }
}

TEST(Split, RangesAreMegatrons) {
  using Bounds = std::array<int64_t, 4>;
  EXPECT_EQ(split_bounds("969,30,1", 500), (Bounds{0, 484, 500, 500}));
  EXPECT_EQ(split_bounds("969,30,1", 12345), (Bounds{0, 11962, 12333, 12345}));
  EXPECT_EQ(split_bounds("99990,8,2", 12345), (Bounds{0, 12344, 12345, 12345}));
  EXPECT_EQ(split_bounds("90,10", 12345), (Bounds{0, 11110, 12345, 12345}));  // half to even
  EXPECT_EQ(split_bounds("0.5,0.25,0.25", 12345), (Bounds{0, 6172, 9259, 12345}));
  EXPECT_EQ(split_bounds("98,1,1", 12345), (Bounds{0, 12098, 12222, 12345}));
  EXPECT_EQ(split_bounds("1", 7), (Bounds{0, 7, 7, 7}));
  EXPECT_EQ(split_bounds("0,1", 7), (Bounds{0, 0, 7, 7}));
  EXPECT_EQ(split_bounds("969,30,1", 0), (Bounds{0, 0, 0, 0}));
}

TEST(Split, OtherTextIsRefused) {
  for (const char* text : {"", "a", "1,2,3,4", "1,,2", "-1,2", "0,0", "1, 2"}) {
    EXPECT_PRED2(has, refusal_code(Code::kBadValue, [&] { split_bounds(text, 10); }), "split")
        << text;
  }
}

}  // namespace
}  // namespace troupe
