#include "troupe/kernels/permute/permute.h"

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
      : rows(s.routed),
        x(dtype, s.routed.tokens, s.width, s.pad),
        weights(wide(dtype), s.routed.tokens, s.routed.choices),
        out(dtype, rows.rows, s.width, s.pad) {
    x.fill_normal(3);
    weights.fill_normal(4);
    out.fill(NAN);
  }
  Permute args(bool weighted) {
    Permute a{.plan = rows.read<PlanRef>(), .x = x.view(), .out = out.mut()};
    if (weighted) a.weights = weights.view();
    return a;
  }
  RoutedRows rows;
  Matrix x, weights, out;
};

void run(Backend backend, const Permute& args) {
  testing::run(backend, args, permute_cpu, TROUPE_CUDA_PATH(permute_cuda));
}

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class PermuteTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Problem problem() const { return {GetParam().shape, GetParam().dtype}; }
};

// One product, rounded once: no room for a difference. Rows past the last are left as they were.
TEST_P(PermuteTest, AgreesWithTheReferenceBitForBit) {
  for (bool weighted : {false, true}) {
    Problem want = problem(), got = problem();
    permute_ref(want.args(weighted));
    run(GetParam().backend, got.args(weighted));
    EXPECT_TRUE(got.out.same_bits(want.out)) << "weighted " << weighted;
  }
}

// Needs no reference: every row is its token's, pads are zero.
TEST_P(PermuteTest, P1_RowsAreThoseOfTheirTokens) {
  Problem p = problem();
  run(GetParam().backend, p.args(false));
  for (int64_t r = 0; r < p.out.rows(); ++r) {
    const int32_t src = p.rows.row_src[r];
    for (int64_t d = 0; d < p.out.cols(); ++d) {
      if (r >= p.rows.true_rows()) {
        ASSERT_TRUE(std::isnan(p.out.get(r, d))) << "wrote row " << r << ", which is not there";
      } else {
        ASSERT_EQ(p.out.get(r, d), src < 0 ? 0 : p.x.get(src, d)) << r << ", " << d;
      }
    }
  }
}

TEST_P(PermuteTest, ClearsTheTailWhereAsked) {
  Problem want = problem(), got = problem();
  Permute a = want.args(true), b = got.args(true);
  a.clear_tail = b.clear_tail = true;
  permute_ref(a);
  run(GetParam().backend, b);
  EXPECT_TRUE(got.out.same_bits(want.out));
  for (int64_t r = got.rows.true_rows(); r < got.rows.rows; ++r) {
    ASSERT_EQ(got.out.get(r, 0), 0.0) << "row " << r;
  }
}

constexpr Shape kShapes[] = {
    {{.tokens = 0, .choices = 2, .experts = 3}, 8, 0},
    {{.tokens = 1, .choices = 1, .experts = 1}, 1, 0},
    {{.tokens = 5, .choices = 2, .experts = 3, .alignment = 4}, 3, 0},
    {{.tokens = 33, .choices = 8, .experts = 8, .alignment = 16, .spare_rows = 5}, 64, 0},
    {{.tokens = 17, .choices = 3, .experts = 60, .masked = 0.3}, 136, 8},
    {{.tokens = 16, .choices = 2, .experts = 4, .spare_rows = 9, .masked = 0.1}, 40, 1},
    {{.tokens = 7, .choices = 4, .experts = 5, .alignment = 32}, 2056, 0},
    {{.tokens = 40, .choices = 1, .experts = 4, .all_to_first = true}, 7, 2},
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
         "_k" + std::to_string(s.routed.choices) + "_e" + std::to_string(s.routed.experts) + "_d" +
         std::to_string(s.width) + "_ld" + std::to_string(s.width + s.pad);
}
INSTANTIATE_TEST_SUITE_P(All, PermuteTest, ::testing::ValuesIn(all_cases()), case_name);

TEST(Permute, RefusesOutputsTooSmallForTheBound) {
  Problem p(kShapes[3], Dtype::kF32);
  Permute a = p.args(false);
  a.out.rows = a.plan.rows - 1;
  EXPECT_THROW(permute_cpu(a, serial), Error);
  a = p.args(false);
  a.x.rows += 1;
  EXPECT_THROW(permute_cpu(a, serial), Error);
  a = p.args(false);
  a.out.dtype = Dtype::kBF16;
  EXPECT_THROW(permute_cpu(a, serial), Error);
}

TEST(Permute, RefusesWeightsOfAnotherTypeOrShape) {
  Problem p(kShapes[3], Dtype::kF32);
  Permute a = p.args(true);
  a.weights.dtype = Dtype::kBF16;
  EXPECT_THROW(permute_cpu(a, serial), Error);
  a = p.args(true);
  a.weights.cols = 1;
  EXPECT_THROW(permute_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
