#include "troupe/train/forecast/mfu.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Mfu, PeaksAreThoseOfTheDeviceAndNoneIsGuessed) {
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_flops("NVIDIA RTX 9999"), std::nullopt);
  EXPECT_EQ(device_peak({c10::kCPU}), std::nullopt);
  EXPECT_EQ(device_name({c10::kCPU}), "cpu");
}

}  // namespace
}  // namespace troupe
