#include "troupe/ops/compat/histogram.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class HistogramOpTest : public testing::DeviceTest {};

TEST_P(HistogramOpTest, P4_IsABincountOfEachRow) {
  for (at::ScalarType type : {at::kShort, at::kInt, at::kLong}) {
    for (int64_t n : {0, 1, 1024, 16384}) {
      const at::Tensor x = at::randint(0, 128, {2, n}, options(type));
      const at::Tensor got = troupe::histogram(x, 128);
      const at::Tensor want = at::stack({at::bincount(x[0], {}, 128), at::bincount(x[1], {}, 128)});
      EXPECT_TRUE(got.equal(want.to(at::kInt))) << type << " " << n;
      EXPECT_TRUE(troupe::histogram(x[1], 128).equal(got[1])) << "one dimension";
    }
  }
}

TEST_P(HistogramOpTest, E16_AnyStrides) {
  const at::Tensor x = at::randint(0, 9, {50, 3}, options(at::kInt)).t();
  EXPECT_TRUE(troupe::histogram(x, 9).equal(troupe::histogram(x.contiguous(), 9)));
}
TROUPE_ON_DEVICES(HistogramOpTest);

TEST(HistogramOp, RefusesFloatsAndNoBins) {
  EXPECT_THROW(troupe::histogram(at::randint(0, 4, {5}, at::kFloat), 4), Error);
  EXPECT_THROW(troupe::histogram(at::randint(0, 4, {5}, at::kInt), 0), Error);
}

}  // namespace
}  // namespace troupe
