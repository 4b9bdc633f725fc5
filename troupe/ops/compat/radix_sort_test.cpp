#include "troupe/ops/compat/radix_sort.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/sort.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class RadixSortOpTest : public testing::DeviceTest {};

TEST_P(RadixSortOpTest, P4_IsATensStableSort) {
  for (at::ScalarType type : {at::kShort, at::kInt, at::kLong}) {
    for (int64_t n : {0, 1, 32, 1024, 16384}) {
      const at::Tensor x = at::randint(-500, 500, {n}, options(type));
      const auto [values, indices] = radix_sort(x);
      const auto want = x.sort(/*stable=*/true, 0, false);
      EXPECT_TRUE(values.equal(std::get<0>(want))) << type << " " << n;
      EXPECT_TRUE(indices.equal(std::get<1>(want).to(at::kInt))) << type << " " << n;
    }
  }
}

TEST_P(RadixSortOpTest, P4_SevenBitsSortHundredAndTwentyEightExperts) {
  const at::Tensor x = at::randint(0, 128, {16384}, options(at::kInt));
  EXPECT_TRUE(std::get<0>(radix_sort(x, 7)).equal(std::get<0>(x.sort(true, 0, false))));
}
TROUPE_ON_DEVICES(RadixSortOpTest);

TEST(RadixSortOp, RefusesFloatsAndMatrices) {
  EXPECT_NE(
      testing::refusal([] { radix_sort(at::randint(0, 4, {5}, at::kFloat)); }).find("sort: x"),
      std::string::npos);
  EXPECT_NE(testing::refusal([] {
              radix_sort(at::randint(0, 4, {5, 2}, at::kInt));
            }).find("sort: x"),
            std::string::npos);
  EXPECT_THROW(radix_sort(at::randint(0, 4, {5}, at::kInt), 33), Error);
}

}  // namespace
}  // namespace troupe
