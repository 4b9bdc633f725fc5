#include "troupe/kernels/topology/topology.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

constexpr int64_t kBlock = 128;

// `tokens` at random over the experts, each rounded up to whole blocks.
struct Problem {
  Problem(int64_t tokens, int64_t columns, int64_t experts, int64_t spare_rows = 0)
      : num_experts(experts), block_columns(columns), padded_bins(random_bins(tokens, experts)) {
    block_rows = padded_bins[experts - 1] / kBlock + spare_rows;
    out = std::make_unique<Buffer<int32_t>>(block_rows * columns + 1);
    std::fill_n(out->data(), out->size(), -77);
  }
  static Buffer<int32_t> random_bins(int64_t tokens, int64_t experts) {
    std::mt19937 rng(3);
    std::uniform_int_distribution<int64_t> expert(0, experts - 1);
    std::vector<int64_t> counts(experts);
    for (int64_t t = 0; t < tokens; ++t) ++counts[expert(rng)];
    Buffer<int32_t> bins(experts);
    int64_t sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      sum += round_up(counts[e], kBlock);
      bins[e] = static_cast<int32_t>(sum);
    }
    return bins;
  }
  Topology args() {
    return {.padded_bins = padded_bins.data(),
            .experts = num_experts,
            .block = kBlock,
            .block_rows = block_rows,
            .block_columns = block_columns,
            .out = out->data()};
  }
  int64_t num_experts, block_columns, block_rows;
  Buffer<int32_t> padded_bins;
  std::unique_ptr<Buffer<int32_t>> out;
};

class TopologyTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(const Topology& a) const {
    testing::run(GetParam(), a, topology_cpu, TROUPE_CUDA_PATH(topology_cuda));
  }
  void expect_agreement(int64_t tokens, int64_t width, int64_t experts, int64_t spare = 0) const {
    Problem want(tokens, width / kBlock, experts, spare),
        got(tokens, width / kBlock, experts, spare);
    topology_ref(want.args());
    run(got.args());
    for (size_t i = 0; i < want.out->size(); ++i) {
      ASSERT_EQ((*got.out)[i], (*want.out)[i]) << tokens << ", " << experts << " at " << i;
    }
  }
};

TEST_P(TopologyTest, P4_MegaBlocksParameters) {
  for (int64_t experts : {2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    expect_agreement(1024, 1536, experts);
    expect_agreement(16384, 768, experts);
  }
  expect_agreement(16384, 768, 1024);
  expect_agreement(8, 14336, 8);
}

TEST_P(TopologyTest, EmptyAndOddShapes) {
  expect_agreement(0, 256, 3);
  expect_agreement(0, 256, 3, /*spare=*/2);
  expect_agreement(1, 128, 1);
  expect_agreement(700, 384, 60, /*spare=*/5);
}

// 4,194,432 rows are 32,769 blocks of 128, two more than an int16 can count.
TEST_P(TopologyTest, E11_MoreBlocksThanAnInt16Counts) {
  Problem p(0, 2, 3);
  const int32_t rows = 4194432;
  p.padded_bins[0] = 128;
  p.padded_bins[1] = rows - 128;
  p.padded_bins[2] = rows;
  p.block_rows = rows / kBlock;
  Buffer<int32_t> out(p.block_rows * 2);
  Topology a = p.args();
  a.out = out.data();
  run(a);
  EXPECT_EQ(p.block_rows, 32769);
  for (int64_t i = 0; i < p.block_rows; ++i) {
    const int32_t e = i == 0 ? 0 : i + 1 < p.block_rows ? 1 : 2;
    ASSERT_EQ(out[2 * i], 2 * e) << "block row " << i;
    ASSERT_EQ(out[2 * i + 1], 2 * e + 1) << "block row " << i;
  }
}

// Column indices above 32,767: 300 experts of 112 block columns.
TEST_P(TopologyTest, E11_ColumnsAboveAnInt16) {
  expect_agreement(2000, 14336, 300);
}
INSTANTIATE_TEST_SUITE_P(All, TopologyTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Topology, E9_RefusesColumnsThatDoNotFit) {
  Problem p(100, 2, 3);
  Topology a = p.args();
  a.block_columns = int64_t{1} << 30;
  EXPECT_THROW(topology_cpu(a, serial), Error);
  a = p.args();
  a.block = 0;
  EXPECT_THROW(topology_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
