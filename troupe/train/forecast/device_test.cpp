#include "troupe/train/forecast/device.h"

#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

// As on a Hopper GPU with a build for Blackwell alone.
std::string why_no_code_here() {
  return why_no_code("120-real", {{.index = 0, .name = "NVIDIA H200", .capability = 90}});
}

TEST(Device, AGpuWithoutCodeIsSaidOfAutoAndCudaAndNotOfCpu) {
  const std::string why = why_no_code_here();
  EXPECT_EQ(no_code_line(DeviceKind::kAuto, why),
            "run.device: auto takes the processor, because " + why);
  EXPECT_EQ(no_code_line(DeviceKind::kCuda, why),
            "run.device: cuda ends with E7101 here, because " + why);
  EXPECT_EQ(no_code_line(DeviceKind::kCpu, why), "");
  EXPECT_EQ(no_code_line(DeviceKind::kAuto, ""), "");
  EXPECT_EQ(no_code_line(DeviceKind::kCuda, ""),
            "run.device: cuda ends with E7101 here, because no CUDA device with a driver is here");
  EXPECT_EQ(no_code_line(DeviceKind::kCpu), "");
}

TEST(Device, CudaIsRefusedWithWhatTheBuildIsFor) {
  const std::string text = no_device_text(why_no_code_here());
  EXPECT_NE(text.find("compute capability 9.0"), std::string::npos) << text;
  EXPECT_NE(text.find("this build is for sm_120"), std::string::npos) << text;
  EXPECT_NE(text.find("CMAKE_CUDA_ARCHITECTURES=90a-real"), std::string::npos) << text;
  EXPECT_NE(text.find("run.device=cpu"), std::string::npos) << text;
  EXPECT_NE(no_device_text("").find("no CUDA device with a driver"), std::string::npos);
}

TEST(Device, WithoutAGpuThatRunsThisBuildAutoIsTheProcessor) {
  if (has_cuda()) GTEST_SKIP() << "a GPU here runs this build";
  EXPECT_TRUE(device_of(DeviceKind::kAuto).is_cpu());
  try {
    device_of(DeviceKind::kCuda);
    FAIL() << "run.device: cuda must be refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("E7101"), std::string::npos) << error.what();
    if (why_no_gpu_code().empty()) return;
    EXPECT_NE(std::string(error.what()).find(why_no_gpu_code()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace troupe
