#include "troupe/ops/topology.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class TopologyOpTest : public testing::DeviceTest {};

TEST_P(TopologyOpTest, P4_BlockRowsHoldTheirExpertsColumns) {
  const at::Tensor bins = at::tensor({256, 256, 384}, options(at::kInt));
  const at::Tensor out = topology(bins, {.block = 128, .rows = 3, .columns = 2}).cpu();
  EXPECT_TRUE(out.equal(at::tensor(std::vector<int>{0, 1, 0, 1, 4, 5}, at::kInt)));
}

TEST_P(TopologyOpTest, E11_MoreBlocksThanAnInt16Counts) {
  const int rows = 4194432;
  const at::Tensor bins = at::tensor({rows}, options(at::kInt));
  const at::Tensor out = topology(bins, {.block = 128, .rows = rows / 128, .columns = 1});
  EXPECT_EQ(out.numel(), 32769);
  EXPECT_EQ(out.abs().max().item<int>(), 0);
}
TROUPE_ON_DEVICES(TopologyOpTest);

TEST(TopologyOp, RefusesBinsThatAreNotInt32) {
  const at::Tensor bins = at::tensor({128}, at::kLong);
  EXPECT_NE(testing::refusal([&] {
              topology(bins, {.block = 128, .rows = 1, .columns = 1});
            }).find("topology: padded_bins"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe
