#include "troupe/kernels/combine/combine.h"

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

enum class Addend { kNone, kSame, kF32 };

struct Problem {
  Problem(const Shape& s, Dtype dtype, Addend kind = Addend::kNone)
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

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class CombineTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
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

constexpr Shape kShapes[] = {
    {{.tokens = 0, .choices = 2, .experts = 3}, 8, 0},
    {{.tokens = 1, .choices = 1, .experts = 1}, 1, 0},
    {{.tokens = 5, .choices = 2, .experts = 3, .alignment = 4}, 3, 0},
    {{.tokens = 33, .choices = 8, .experts = 8, .alignment = 16, .spare_rows = 5}, 64, 0},
    {{.tokens = 17, .choices = 3, .experts = 60, .masked = 0.3}, 136, 8},
    {{.tokens = 16, .choices = 4, .experts = 4, .spare_rows = 9, .masked = 0.1}, 40, 1},
    {{.tokens = 7, .choices = 10, .experts = 16, .alignment = 2}, 2056, 0},
    {{.tokens = 9, .choices = 61, .experts = 61, .masked = 0.8}, 24, 0},  // Expert choice.
};

std::vector<Case> cases_of(const std::vector<Dtype>& dtypes) {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : dtypes) {
      if (b == Backend::kCuda && d == Dtype::kF64) continue;
      for (const Shape& s : kShapes) cases.push_back({b, d, s});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.routed.tokens) +
         "_k" + std::to_string(s.routed.choices) + "_e" + std::to_string(s.routed.experts) + "_d" +
         std::to_string(s.width) + "_ld" + std::to_string(s.width + s.pad);
}
INSTANTIATE_TEST_SUITE_P(All, CombineTest,
                         ::testing::ValuesIn(cases_of({Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                                                       Dtype::kF64})),
                         case_name);

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

INSTANTIATE_TEST_SUITE_P(All, CombineHalfTest,
                         ::testing::ValuesIn(cases_of({Dtype::kBF16, Dtype::kF16})), case_name);

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
  // Experts in falling order, so that rows do not lie in the order of slots.
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
  Problem p(kShapes[3], Dtype::kBF16, Addend::kSame);
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

}  // namespace
}  // namespace troupe
