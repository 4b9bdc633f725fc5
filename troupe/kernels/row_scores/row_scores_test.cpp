#include "troupe/kernels/row_scores/row_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

void run(Backend backend, const RowScores& args) {
  testing::run_reference(backend, args, row_scores_ref, TROUPE_CUDA_PATH(row_scores_cuda));
}

class RowScoresTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(RowScoresTest, P1_ThereAndBackKeepsKeptSlotsAndZeroesTheRest) {
  for (const int n : {0, 1, 7, 1000, 70001}) {
    const size_t size = n;
    Buffer<float> weights(size), score(size), back(size);
    Buffer<int32_t> row_slot(size), slot_row(size);
    testing::fill_normal(weights, 5);
    for (int i = 0; i < n; ++i) row_slot[i] = slot_row[i] = -1;
    for (int r = 0; r < n - n / 3; ++r) {  // the last third is dropped
      row_slot[r] = static_cast<int32_t>((r * int64_t{7919}) % n);
      slot_row[row_slot[r]] = r;
    }
    for (int i = 0; i < n; ++i) score[i] = back[i] = NAN;
    run(GetParam(), {.in = {weights.data(), Dtype::kF32, n, 1, 1},
                     .index = row_slot.data(),
                     .out = {score.data(), Dtype::kF32, n, 1, 1}});
    run(GetParam(), {.in = {score.data(), Dtype::kF32, n, 1, 1},
                     .index = slot_row.data(),
                     .out = {back.data(), Dtype::kF32, n, 1, 1}});
    for (int r = 0; r < n; ++r) {
      ASSERT_EQ(score[r], row_slot[r] < 0 ? 0.f : weights[row_slot[r]]) << r << " of " << n;
    }
    for (int s = 0; s < n; ++s) ASSERT_EQ(back[s], slot_row[s] < 0 ? 0.f : weights[s]) << s;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowScoresTest, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& test) { return name(test.param); });

TEST(RowScores, RefusesOtherTypesAndWiderRows) {
  float x[4];
  int32_t index[2] = {0, 1};
  EXPECT_THROW(
      row_scores_ref(
          {.in = {x, Dtype::kBF16, 2, 1, 1}, .index = index, .out = {x, Dtype::kBF16, 2, 1, 1}}),
      Error);
  EXPECT_THROW(
      row_scores_ref(
          {.in = {x, Dtype::kF32, 2, 2, 2}, .index = index, .out = {x, Dtype::kF32, 2, 1, 1}}),
      Error);
  EXPECT_THROW(
      row_scores_ref(
          {.in = {x, Dtype::kF32, 2, 1, 1}, .index = nullptr, .out = {x, Dtype::kF32, 2, 1, 1}}),
      Error);
}

}  // namespace
}  // namespace troupe
