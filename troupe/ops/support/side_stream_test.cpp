#include "troupe/ops/support/side_stream.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

constexpr int64_t kSide = 1 << 20;

class SideStreamOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << why_no_cuda();
    device_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
    slow_ = at::randn({4096, 4096}, at::TensorOptions(device_).dtype(at::kFloat));
  }
  // Milliseconds of the current stream.
  void keep_busy() const {
    at::Tensor x = slow_;
    for (int i = 0; i < 8; ++i) x = x.mm(slow_);
  }
  at::TensorOptions options() const { return at::TensorOptions(device_).dtype(at::kFloat); }

  c10::Device device_ = c10::kCPU;
  at::Tensor slow_;
};

TEST_F(SideStreamOnGpu, WorkIsBehindTheCurrentStreamAndAWaitIsBehindTheWork) {
  SideStream side;
  for (int turn = 0; turn < 50; ++turn) {
    const at::Tensor x = at::ones({kSide}, options()), y = at::empty({kSide}, options());
    keep_busy();
    x.fill_(turn);
    const auto work = side.run(device_, [&] {
      keep_busy();
      y.copy_(x);
    });
    work->wait();
    x.fill_(-1);
    EXPECT_EQ(y.sum().item<double>(), double{kSide} * turn) << turn;
  }
}

// A block that goes back before its work has ended is given out again at once, in the same stream.
TEST_F(SideStreamOnGpu, MemoryOfWorkThatNobodyWaitedForIsFreeBehindIt) {
  SideStream side;
  for (int turn = 0; turn < 20; ++turn) {
    at::Tensor y = at::empty({kSide}, options());
    const void* const place = y.const_data_ptr();
    auto work = side.run(device_, [&] {
      keep_busy();
      y.fill_(7);
    });
    work = nullptr;
    y = at::Tensor();
    const at::Tensor next = at::ones({kSide}, options());
    EXPECT_EQ(next.const_data_ptr(), place) << "the allocator took another block";
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device_.index());
    EXPECT_EQ(next.sum().item<double>(), double{kSide});
  }
}

TEST_F(SideStreamOnGpu, WorkThatThrowsLeavesTheStreamsInOrder) {
  SideStream side;
  at::Tensor y = at::empty({kSide}, options());
  EXPECT_THROW(side.run(device_,
                        [&] {
                          keep_busy();
                          y.fill_(7);
                          throw std::runtime_error("after a launch");
                        }),
               std::runtime_error);
  y.fill_(1);
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device_.index());
  EXPECT_EQ(y.sum().item<double>(), double{kSide});
}

}  // namespace
}  // namespace troupe
