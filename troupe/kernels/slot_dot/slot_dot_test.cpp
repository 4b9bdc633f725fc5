#include "troupe/kernels/slot_dot/slot_dot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/backend.h"
#include "troupe/testing/far_matrix.h"
#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_cases.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Matrix;
using testing::RoutedCase;
using testing::RoutedRows;

struct Problem {
  Problem(const RoutedCase::Shape& s, Dtype dtype)
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

class SlotDotTest : public testing::RoutedTest {
 protected:
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

INSTANTIATE_TEST_SUITE_P(All, SlotDotTest, testing::routed_cases(), testing::routed_name);

TEST(SlotDot, RefusesWhatDoesNotFitThePlan) {
  Problem p(testing::kRoutedShape, Dtype::kBF16);
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

// The last rows of both operands begin past element 2^31.
TEST(SlotDot, E9_ElementOffsetsAre64Bit) {
  Problem p(testing::kRoutedShape, Dtype::kBF16), want(testing::kRoutedShape, Dtype::kBF16);
  slot_dot_cpu(want.args(), serial);
  testing::FarMatrix rows(p.rows.rows(), p.rows.cols()), x(p.x.rows(), p.x.cols());
  testing::copy_into(rows.mut(), p.rows.view());
  testing::copy_into(x.mut(), p.x.view());
  SlotDot a = p.args();
  a.rows = rows.view();
  a.x = x.view();
  slot_dot_cpu(a, serial);
  EXPECT_TRUE(p.out.same_bits(want.out));
}

}  // namespace
}  // namespace troupe
