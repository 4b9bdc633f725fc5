#include "troupe/kernels/slot_dot/slot_dot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Matrix;
using testing::RoutedRows;
using testing::RoutedShape;

struct Shape {
  RoutedShape routed;
  int64_t width;
  int64_t pad;  // ld - width
};

struct Problem {
  Problem(const Shape& s, Dtype dtype)
      : routed(s.routed),
        rows(dtype, routed.rows, s.width, s.pad),
        x(dtype, s.routed.tokens, s.width, s.pad),
        out(wide(dtype), s.routed.tokens, s.routed.choices) {
    rows.fill_normal(3);
    for (int64_t r = routed.true_rows(); r < routed.rows; ++r) {
      for (int64_t d = 0; d < s.width; ++d) rows.set(r, d, NAN);  // Must not be read.
    }
    x.fill_normal(4);
    out.fill(NAN);
  }
  SlotDot args() {
    return {.plan = routed.read<PlanRef>(), .rows = rows.view(), .x = x.view(), .out = out.mut()};
  }
  RoutedRows routed;
  Matrix rows, x, out;
};

void run(Backend backend, const SlotDot& args) {
  testing::run(backend, args, slot_dot_cpu, TROUPE_CUDA_PATH(slot_dot_cuda));
}

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class SlotDotTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Problem problem() const { return {GetParam().shape, GetParam().dtype}; }
};

// Terms are of size 1 and up to thousands of them cancel: the bound grows with their root.
TEST_P(SlotDotTest, AgreesWithTheReference) {
  Problem want = problem(), got = problem();
  slot_dot_ref(want.args());
  run(GetParam().backend, got.args());
  const double size = std::sqrt(static_cast<double>(GetParam().shape.width));
  const double one = wide(GetParam().dtype) == Dtype::kF64 ? 1e-15 : 1e-6;
  testing::expect_near(got.out, want.out, testing::Tolerance{.rtol = one, .atol = one * size});
}

TEST_P(SlotDotTest, SlotsWithoutRowAreExactlyZero) {
  Problem p = problem();
  run(GetParam().backend, p.args());
  p.out.each([&](int64_t t, int64_t k) {
    const bool has_row = p.routed.slot_row[t * p.out.cols() + k] >= 0;
    if (!has_row) {
      ASSERT_EQ(p.out.get(t, k), 0.0) << t << ", " << k;
    }
  });
}

TEST_P(SlotDotTest, G4_RepeatsBitForBit) {
  Problem first = problem();
  run(GetParam().backend, first.args());
  for (int i = 0; i < 3; ++i) {
    Problem again = problem();
    run(GetParam().backend, again.args());
    EXPECT_TRUE(again.out.same_bits(first.out));
  }
}

constexpr Shape kShapes[] = {
    {{.tokens = 0, .choices = 2, .experts = 3}, 8, 0},
    {{.tokens = 1, .choices = 1, .experts = 1}, 1, 0},
    {{.tokens = 5, .choices = 2, .experts = 3, .alignment = 4}, 3, 0},
    {{.tokens = 33, .choices = 8, .experts = 8, .alignment = 16, .spare_rows = 5}, 64, 0},
    {{.tokens = 17, .choices = 3, .experts = 60, .masked = 0.3}, 136, 8},
    {{.tokens = 16, .choices = 4, .experts = 4, .spare_rows = 9, .masked = 0.1}, 40, 1},
    {{.tokens = 7, .choices = 10, .experts = 16, .alignment = 2}, 2056, 0},
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      if (b == Backend::kCuda && d == Dtype::kF64) continue;
      for (const Shape& s : kShapes) cases.push_back({b, d, s});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.routed.tokens) +
         "_k" + std::to_string(s.routed.choices) + "_d" + std::to_string(s.width) + "_ld" +
         std::to_string(s.width + s.pad);
}
INSTANTIATE_TEST_SUITE_P(All, SlotDotTest, ::testing::ValuesIn(all_cases()), case_name);

TEST(SlotDot, RefusesWhatDoesNotFitThePlan) {
  Problem p(kShapes[3], Dtype::kBF16);
  SlotDot a = p.args();
  a.rows.rows = a.plan.rows - 1;
  EXPECT_THROW(slot_dot_cpu(a, serial), Error);
  a = p.args();
  a.out.cols -= 1;
  EXPECT_THROW(slot_dot_cpu(a, serial), Error);
  a = p.args();
  a.out.dtype = Dtype::kBF16;
  EXPECT_THROW(slot_dot_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
