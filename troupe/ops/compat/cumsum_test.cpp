#include "troupe/ops/compat/cumsum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class CumsumOpTest : public testing::DeviceTest {};

TEST_P(CumsumOpTest, P4_AgreesWithATenAlongBothDimensions) {
  for (at::ScalarType type : {at::kShort, at::kInt, at::kLong}) {
    for (int64_t dim : {0, 1, -1, -2}) {
      const at::Tensor x = at::randint(0, 3, {7, 5000}, options(type));
      const at::Tensor want = x.cumsum(dim).to(type);
      EXPECT_TRUE(inclusive_cumsum(x, dim).equal(want)) << type << " " << dim;
      EXPECT_TRUE(exclusive_cumsum(x, dim).equal(want - x)) << type << " " << dim;
    }
  }
}

TEST_P(CumsumOpTest, E7_OneDimensionKeepsItsRank) {
  for (int64_t n : {0, 1, 70}) {
    const at::Tensor x = at::randint(0, 3, {n}, options(at::kInt));
    EXPECT_EQ(inclusive_cumsum(x, 0).sizes(), x.sizes());
    EXPECT_TRUE(inclusive_cumsum(x, 0).equal(x.cumsum(0).to(at::kInt)));
  }
}
TROUPE_ON_DEVICES(CumsumOpTest);

TEST(CumsumOp, RefusesADimensionThatIsNotThere) {
  const at::Tensor x = at::randint(0, 3, {4, 5}, at::kInt);
  EXPECT_NE(testing::refusal([&] { inclusive_cumsum(x, 2); }).find("cumsum: dim"),
            std::string::npos);
  EXPECT_THROW(inclusive_cumsum(x.to(at::kFloat), 1), Error);
}

}  // namespace
}  // namespace troupe
