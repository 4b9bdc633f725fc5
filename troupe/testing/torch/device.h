// The same test of an operator on every device, and the text of a refusal.
//   class NormOp : public testing::DeviceTest {};
//   TEST_P(NormOp, ...) { at::randn({3, 8}, device()); }
//   TROUPE_ON_DEVICES(NormOp);
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe::testing {

// A device, and the options of a tensor on it.
struct Place : at::TensorOptions {
  explicit Place(at::Device on) : at::TensorOptions(on), place(on) {}
  operator const at::Device&() const { return place; }  // NOLINT(google-explicit-constructor)
  at::Device place;
};

class DeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "cuda" && !has_cuda()) GTEST_SKIP() << why_no_cuda();
  }
  Place device() const { return Place(at::Device(GetParam())); }
  at::TensorOptions options(at::ScalarType type = at::kFloat) const { return device().dtype(type); }
};

inline auto devices() {
  (void)has_cuda();  // Before any test makes PyTorch ask (ops/support/cuda_plugin.h).
  return ::testing::Values("cpu", "cuda");
}
inline std::string device_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

#define TROUPE_ON_DEVICES(Suite) \
  INSTANTIATE_TEST_SUITE_P(On, Suite, ::troupe::testing::devices(), ::troupe::testing::device_name)

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
