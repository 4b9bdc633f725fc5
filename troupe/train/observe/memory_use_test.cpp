#include "troupe/train/observe/memory_use.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

void sees_a_tensor_of_64_mib(const c10::Device& device) {
  at::zeros({1}, at::TensorOptions(at::kByte).device(device));  // a device has an allocator then
  const MemoryUse before = memory_use(device);
  constexpr int64_t kBytes = 64 << 20;
  const at::Tensor x = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(device));
  x.fill_(1);
  const MemoryUse after = memory_use(device);
  EXPECT_GE(after.allocated - before.allocated, kBytes * 9 / 10);
  EXPECT_LE(after.allocated - before.allocated, kBytes * 2);
  EXPECT_GE(after.peak, after.allocated * 9 / 10);
  EXPECT_GE(after.reserved, after.allocated);
  EXPECT_GT(after.total, after.allocated);
}

TEST(MemoryUse, SeesWhatATensorTakesOfTheHost) {
  sees_a_tensor_of_64_mib(c10::kCPU);
}

TEST(MemoryUse, SeesWhatATensorTakesOfTheDevice) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  sees_a_tensor_of_64_mib({c10::kCUDA, 0});
}

}  // namespace
}  // namespace troupe
