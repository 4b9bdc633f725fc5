// Shapes and cases for the tests of kernels that move rows between tokens and experts.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "troupe/core/number/dtype.h"
#include "troupe/testing/routed_rows.h"

namespace troupe::testing {

struct RoutedCase {
  struct Shape {
    RoutedShape routed;
    int64_t width;
    int64_t pad;  // ld - width
  };
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class RoutedTest : public ::testing::TestWithParam<RoutedCase> {
 protected:
  void SetUp() override {
    if (!available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
};

inline constexpr RoutedCase::Shape kRoutedShapes[] = {
    {{.tokens = 0, .choices = 2, .experts = 3}, 8, 0},
    {{.tokens = 1, .choices = 1, .experts = 1}, 1, 0},
    {{.tokens = 5, .choices = 2, .experts = 3, .alignment = 4}, 3, 0},
    {{.tokens = 33, .choices = 8, .experts = 8, .alignment = 16, .spare_rows = 5}, 64, 0},
    {{.tokens = 17, .choices = 3, .experts = 60, .masked = 0.3}, 136, 8},
    {{.tokens = 16, .choices = 4, .experts = 4, .spare_rows = 9, .masked = 0.1}, 40, 1},
    {{.tokens = 7, .choices = 10, .experts = 16, .alignment = 2}, 2056, 0},
    {{.tokens = 9, .choices = 61, .experts = 61, .masked = 0.8}, 24, 0},  // Expert choice.
    {{.tokens = 40, .choices = 1, .experts = 4, .all_to_first = true}, 7, 2},
};
inline constexpr RoutedCase::Shape kRoutedShape = kRoutedShapes[3];  // for refusals

inline auto routed_cases(const std::vector<Dtype>& dtypes = {Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                                                             Dtype::kF64}) {
  std::vector<RoutedCase> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : dtypes) {
      if (b == Backend::kCuda && d == Dtype::kF64) continue;
      for (const RoutedCase::Shape& s : kRoutedShapes) cases.push_back({b, d, s});
    }
  }
  return ::testing::ValuesIn(cases);
}

inline std::string routed_name(const ::testing::TestParamInfo<RoutedCase>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.routed.tokens) +
         "_k" + std::to_string(s.routed.choices) + "_e" + std::to_string(s.routed.experts) + "_d" +
         std::to_string(s.width) + "_ld" + std::to_string(s.width + s.pad);
}

}  // namespace troupe::testing
