#include "troupe/ops/compat/replicate.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

class ReplicateOpTest : public testing::DeviceTest {};

TEST_P(ReplicateOpTest, P4_IsRepeatInterleave) {
  const at::Tensor counts = at::tensor({3, 0, 129, 1}, options(at::kInt));
  const at::Tensor bins = counts.cumsum(0).to(at::kInt);
  for (at::ScalarType type : {at::kFloat, at::kHalf, at::kDouble, at::kInt, at::kShort}) {
    const at::Tensor x = at::randint(-99, 99, {3, 4}, options(at::kLong)).to(type);
    const at::Tensor want = x.repeat_interleave(counts.to(at::kLong), 1);
    EXPECT_TRUE(replicate(x, bins, 133).equal(want)) << type;
    EXPECT_TRUE(replicate(x, bins, 135).slice(1, 0, 133).equal(want)) << type;
    EXPECT_EQ(replicate(x, bins, 135).slice(1, 133).abs().sum().item<double>(), 0) << type;
  }
}
TROUPE_ON_DEVICES(ReplicateOpTest);

TEST(ReplicateOp, AgreesWithTheNumericJacobian) {
  const at::Tensor bins = at::tensor({3, 3, 8}, at::kInt);
  const auto x = at::randn({2, 3}, at::kDouble).requires_grad_();
  testing::expect_gradients([&](const Tensors& in) { return replicate(in[0], bins, 9); }, {x});
}

TEST(ReplicateOp, RefusesBinsOfAnotherSizeOrType) {
  const at::Tensor x = at::randn({2, 3});
  const auto says = [&](const at::Tensor& bins) {
    return testing::refusal([&] { replicate(x, bins, 9); }).find("replicate: bins") !=
           std::string::npos;
  };
  EXPECT_TRUE(says(at::tensor({3, 3}, at::kInt)));
  EXPECT_TRUE(says(at::tensor({3, 3, 8}, at::kLong)));
}

}  // namespace
}  // namespace troupe
