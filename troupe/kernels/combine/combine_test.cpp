#include "troupe/kernels/combine/combine.h"

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
using testing::RoutedShape;

enum class Addend { kNone, kSame, kF32 };

struct Problem {
  Problem(const RoutedCase::Shape& s, Dtype dtype, Addend kind = Addend::kNone)
      : rows(s.routed),
        addend_kind(kind),
        y(dtype, rows.rows, s.width, s.pad),
        weights(wide(dtype), s.routed.tokens, s.routed.choices),
        addend(kind == Addend::kF32 ? Dtype::kF32 : dtype, s.routed.tokens, s.width, s.pad),
        out(dtype, s.routed.tokens, s.width, s.pad) {
    y.fill_normal(3);
    for (int64_t r = rows.true_rows(); r < rows.rows; ++r) {
      for (int64_t d = 0; d < s.width; ++d) y.set(r, d, NAN);  // Must not be read.
    }
    weights.fill_normal(4);
    addend.fill_normal(5);
    out.fill(NAN);
  }
  Combine args(bool weighted) {
    Combine a{.plan = rows.read<PlanRef>(), .y = y.view(), .out = out.mut()};
    if (weighted) a.weights = weights.view();
    if (addend_kind != Addend::kNone) a.addend = addend.view();
    return a;
  }
  RoutedRows rows;
  Addend addend_kind;
  Matrix y, weights, addend, out;
};

void run(Backend backend, const Combine& args) {
  testing::run(backend, args, combine_cpu, TROUPE_CUDA_PATH(combine_cuda));
}

class CombineTest : public testing::RoutedTest {
 protected:
  Problem problem(Addend kind = Addend::kNone) const {
    return {GetParam().shape, GetParam().dtype, kind};
  }
};

TEST_P(CombineTest, AgreesWithTheReference) {
  for (Addend kind : {Addend::kNone, Addend::kSame, Addend::kF32}) {
    for (bool weighted : {false, true}) {
      Problem want = problem(kind), got = problem(kind);
      combine_ref(want.args(weighted));
      run(GetParam().backend, got.args(weighted));
      testing::expect_near(got.out, want.out, weighted ? "weighted" : "plain");
    }
  }
}

TEST_P(CombineTest, P3_TokensWithoutRowsAreExactlyZero) {
  Problem p = problem();
  for (int64_t s = 0; s < p.rows.shape.tokens * p.rows.shape.choices; ++s) p.rows.slot_row[s] = -1;
  run(GetParam().backend, p.args(true));
  p.out.each([&](int64_t t, int64_t d) { ASSERT_EQ(p.out.get(t, d), 0.0) << t << ", " << d; });
}

TEST_P(CombineTest, G4_RepeatsBitForBit) {
  Problem first = problem(Addend::kSame);
  run(GetParam().backend, first.args(true));
  for (int i = 0; i < 3; ++i) {
    Problem again = problem(Addend::kSame);
    run(GetParam().backend, again.args(true));
    EXPECT_TRUE(again.out.same_bits(first.out));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CombineTest, testing::routed_cases(), testing::routed_name);

class CombineHalfTest : public CombineTest {};

// The reference sums in double and rounds once; a sum in float may land one place beside it.
TEST_P(CombineHalfTest, P2_IsWithinOnePlaceOfTheExactSumRoundedOnce) {
  Problem want = problem(), got = problem();
  combine_ref(want.args(false));
  run(GetParam().backend, got.args(false));
  const int bits = GetParam().dtype == Dtype::kBF16 ? 8 : 11;
  want.out.each([&](int64_t t, int64_t d) {
    const double x = want.out.get(t, d);
    const double place = std::ldexp(1.0, std::max(-24, std::ilogb(x == 0 ? 1e-3 : x) - bits + 1));
    ASSERT_NEAR(got.out.get(t, d), x, place) << t << ", " << d;
  });
}

INSTANTIATE_TEST_SUITE_P(All, CombineHalfTest, testing::routed_cases({Dtype::kBF16, Dtype::kF16}),
                         testing::routed_name);

class CombineCase : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

// Slot order k = 0 .. K-1, seen in the last bits: 1 + 2^-24 + 2^-24 is 1 in float from the left.
TEST_P(CombineCase, P2_AddsTheSlotsInOrder) {
  const RoutedShape shape{.tokens = 3, .choices = 3, .experts = 3};
  Problem p({shape, 40, 0}, Dtype::kF32);
  // Experts in falling order, so that rows are not in the order of slots.
  p.rows = RoutedRows(shape, std::vector<int32_t>{2, 1, 0, 2, 1, 0, 2, 1, 0});
  const double value[] = {1, 0x1p-24, 0x1p-24};
  p.y.each([&](int64_t r, int64_t d) { p.y.set(r, d, value[p.rows.row_slot[r] % 3]); });
  run(GetParam(), p.args(false));
  p.out.each([&](int64_t t, int64_t d) { ASSERT_EQ(p.out.get(t, d), 1.0) << t << ", " << d; });
}

INSTANTIATE_TEST_SUITE_P(All, CombineCase,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Combine, RefusesWhatDoesNotFitThePlan) {
  Problem p(testing::kRoutedShape, Dtype::kBF16, Addend::kSame);
  Combine a = p.args(true);
  a.y.rows = a.plan.rows - 1;
  EXPECT_THROW(combine_cpu(a, serial), Error);
  a = p.args(true);
  a.out.rows += 1;
  EXPECT_THROW(combine_cpu(a, serial), Error);
  a = p.args(true);
  a.addend.cols -= 1;
  EXPECT_THROW(combine_cpu(a, serial), Error);
  a = p.args(true);
  a.addend.dtype = Dtype::kF16;
  EXPECT_THROW(combine_cpu(a, serial), Error);
  a = p.args(true);
  a.weights.dtype = Dtype::kBF16;
  EXPECT_THROW(combine_cpu(a, serial), Error);
}

// The last rows of y and of the result begin past element 2^31.
TEST(Combine, E9_ElementOffsetsAre64Bit) {
  Problem p(testing::kRoutedShape, Dtype::kBF16), want(testing::kRoutedShape, Dtype::kBF16);
  combine_cpu(want.args(true), serial);
  testing::FarMatrix y(p.y.rows(), p.y.cols()), out(p.out.rows(), p.out.cols());
  testing::copy_into(y.mut(), p.y.view());
  Combine a = p.args(true);
  a.y = y.view();
  a.out = out.mut();
  combine_cpu(a, serial);
  testing::copy_into(p.out.mut(), out.view());
  EXPECT_TRUE(p.out.same_bits(want.out));
}

}  // namespace
}  // namespace troupe
