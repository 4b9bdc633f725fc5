#include "troupe/kernels/permute/permute.h"

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

class PermuteTest : public testing::RoutedTest {
 protected:
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

INSTANTIATE_TEST_SUITE_P(All, PermuteTest, testing::routed_cases(), testing::routed_name);

TEST(Permute, RefusesOutputsTooSmallForTheBound) {
  Problem p(testing::kRoutedShape, Dtype::kF32);
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
  Problem p(testing::kRoutedShape, Dtype::kF32);
  Permute a = p.args(true);
  a.weights.dtype = Dtype::kBF16;
  EXPECT_THROW(permute_cpu(a, serial), Error);
  a = p.args(true);
  a.weights.cols = 1;
  EXPECT_THROW(permute_cpu(a, serial), Error);
}

// The last rows of x and of the result begin past element 2^31.
TEST(Permute, E9_ElementOffsetsAre64Bit) {
  Problem p(testing::kRoutedShape, Dtype::kBF16), want(testing::kRoutedShape, Dtype::kBF16);
  permute_ref(want.args(true));
  testing::FarMatrix x(p.x.rows(), p.x.cols()), out(p.out.rows(), p.out.cols());
  testing::copy_into(x.mut(), p.x.view());
  testing::copy_into(out.mut(), p.out.view());
  Permute a = p.args(true);
  a.x = x.view();
  a.out = out.mut();
  permute_cpu(a, serial);
  testing::copy_into(p.out.mut(), out.view());
  EXPECT_TRUE(p.out.same_bits(want.out));
}

}  // namespace
}  // namespace troupe
