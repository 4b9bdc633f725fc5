#include "troupe/ops/accumulate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class AccumulateOp : public testing::DeviceTest {};

TEST_P(AccumulateOp, HasTheBitsOfAten) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({300, 71}, device().dtype(type)).t();  // not contiguous
    const at::Tensor sum = at::full({71, 300}, NAN, device());
    accumulate_(sum, x, false);
    EXPECT_TRUE(at::equal(sum, x.to(at::kFloat)));
    const at::Tensor want = sum + x.to(at::kFloat);
    accumulate_(sum, x, true);
    EXPECT_TRUE(at::equal(sum, want));
  }
}

TEST_P(AccumulateOp, OfNothingDoesNothing) {
  accumulate_(at::zeros({0, 3}, device()), at::zeros({0, 3}, device()), true);
}

INSTANTIATE_TEST_SUITE_P(On, AccumulateOp, testing::devices(), testing::device_name);

TEST(AccumulateRefusal, NamesTheArgument) {
  const at::Tensor sum = at::zeros({4, 2});
  TROUPE_EXPECT_REFUSAL(accumulate_(sum.to(at::kBFloat16), sum, false), "accumulate_: sum");
  TROUPE_EXPECT_REFUSAL(accumulate_(sum.t(), sum.t(), false), "accumulate_: sum");
  TROUPE_EXPECT_REFUSAL(accumulate_(sum, at::ones({7}), false), "accumulate_: x");
  TROUPE_EXPECT_REFUSAL(accumulate_(sum, sum.to(at::kDouble), false), "accumulate_: x");
  TROUPE_EXPECT_REFUSAL(accumulate_(sum, sum.to(at::kInt), false), "accumulate_: x");
}

}  // namespace
}  // namespace troupe
