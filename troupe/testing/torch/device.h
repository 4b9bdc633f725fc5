// The same test of an operator on every device, and the text of a refusal.
//   class NormOp : public testing::DeviceTest {};
//   TEST_P(NormOp, ...) { at::randn({3, 8}, device()); }
//   INSTANTIATE_TEST_SUITE_P(On, NormOp, testing::devices(), testing::device_name);
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "troupe/core/check.h"
#include "troupe/ops/cuda_plugin.h"

namespace troupe::testing {

class DeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cuda" && !has_cuda()) GTEST_SKIP() << why_no_cuda();
  }
  at::TensorOptions device() const { return at::TensorOptions(at::Device(GetParam())); }
};

inline auto devices() {
  (void)has_cuda();  // Before any test makes PyTorch ask (ops/cuda_plugin.h).
  return ::testing::Values("cpu", "cuda");
}
inline std::string device_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

// The refusal's message, or "accepted".
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

// Does a refusal name the argument that was wrong?
#define TROUPE_EXPECT_REFUSAL(expression, text)                                          \
  do {                                                                                   \
    const std::string message = ::troupe::testing::refusal([&] { (void)(expression); }); \
    EXPECT_NE(message.find(text), std::string::npos) << #expression << ": " << message;  \
  } while (0)

}  // namespace troupe::testing
