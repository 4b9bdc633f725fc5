#include "troupe/kernels/moe_sm90/moe_sm90.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "troupe/kernels/device/build_code.h"
#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

using testing::expect_near_in_norm;
using testing::Matrix;
using testing::RoutedRows;

struct Shape {
  const char* name;
  int64_t T, D, F, E, K;
  double masked = 0;
  bool one_expert = false;
};

constexpr Shape kShapes[] = {{"one_token", 1, 64, 64, 1, 1},
                             {"no_token", 0, 64, 64, 3, 2},
                             {"tile_edges", 129, 128, 64, 2, 1},
                             {"odd_widths", 200, 192, 320, 3, 2},
                             {"empty_experts", 70, 64, 128, 40, 1},
                             {"masked", 257, 128, 192, 8, 4, 0.3},
                             {"all_to_one", 300, 128, 128, 5, 2, 0, true}};

// All tensors of one layer, forward and backward.
struct Layer {
  explicit Layer(const Shape& s)
      : rows({.tokens = s.T,
              .choices = s.K,
              .experts = s.E,
              .spare_rows = 3,
              .masked = s.masked,
              .all_to_first = s.one_expert}),
        plan(rows.read<PlanRef>()),
        x(Dtype::kBF16, s.T, s.D),
        grad_out(Dtype::kBF16, s.T, s.D),
        w1(Dtype::kBF16, s.E * 2 * s.F, s.D),
        w2(Dtype::kBF16, s.E * s.D, s.F),
        score(Dtype::kF32, s.T, s.K),
        h(Dtype::kBF16, plan.rows, 2 * s.F),
        a(Dtype::kBF16, plan.rows, s.F),
        y(Dtype::kBF16, plan.rows, s.D),
        grad_h(Dtype::kBF16, plan.rows, 2 * s.F),
        again(Dtype::kBF16, plan.rows, s.F),
        grad_score(Dtype::kF32, s.T, s.K),
        grad_rows(Dtype::kBF16, plan.rows, s.D),
        grad_w1(Dtype::kF32, s.E * 2 * s.F, s.D),
        grad_w2(Dtype::kBF16, s.E * s.D, s.F) {
    unsigned seed = 1;
    for (Matrix* m : {&x, &grad_out}) m->fill_normal(seed++, 0.5);
    for (Matrix* m : {&w1, &w2}) m->fill_normal(seed++, 0.1);
    score.each([&](int64_t t, int64_t k) { score.set(t, k, 0.1 + 0.01 * ((t * 7 + k * 3) % 50)); });
    for (Matrix* m : outputs()) m->fill(NAN);
  }
  std::vector<Matrix*> outputs() {
    return {&h, &a, &y, &grad_h, &again, &grad_score, &grad_rows, &grad_w1, &grad_w2};
  }

  // Each kernel reads what the one before it wrote.
  template <class Run>
  void run(const Run& go) {
    const auto* s = static_cast<const float*>(score.view().data);
    go(MoeUpSm90{plan, x.view(), w1.view(), s, h.mut(), a.mut()}, moe_up_sm90_ref,
       TROUPE_CUDA_PATH(moe_up_sm90_cuda));
    go(MoeDownSm90{plan, a.view(), w2.view(), y.mut()}, moe_down_sm90_ref,
       TROUPE_CUDA_PATH(moe_down_sm90_cuda));
    MoeHiddenGradSm90 hidden{plan,         grad_out.view(), w2.view(), h.view(), s,
                             grad_h.mut(), again.mut(),     nullptr,   nullptr};
    hidden.grad_score = static_cast<float*>(grad_score.mut().data);
    testing::Buffer<char> workspace(workspace_bytes(hidden) + 1);
    hidden.workspace = workspace.data();
    go(hidden, moe_hidden_grad_sm90_ref, TROUPE_CUDA_PATH(moe_hidden_grad_sm90_cuda));
    go(MoeRowsGradSm90{plan, grad_h.view(), w1.view(), grad_rows.mut()}, moe_rows_grad_sm90_ref,
       TROUPE_CUDA_PATH(moe_rows_grad_sm90_cuda));
    go(MoeDownGradSm90{plan, grad_out.view(), again.view(), grad_w2.mut(), false},
       moe_down_grad_sm90_ref, TROUPE_CUDA_PATH(moe_down_grad_sm90_cuda));
    go(MoeUpGradSm90{plan, x.view(), grad_h.view(), grad_w1.mut(), false}, moe_up_grad_sm90_ref,
       TROUPE_CUDA_PATH(moe_up_grad_sm90_cuda));
  }
  void run_ref() {
    run([](const auto& args, auto ref, auto) { ref(args); });
  }
  void run_cuda([[maybe_unused]] int waves = 1, [[maybe_unused]] int64_t segment_rows = 0) {
    run([=]([[maybe_unused]] auto args, auto, [[maybe_unused]] auto cuda) {
#ifdef TROUPE_CUDA
      args.waves = waves;
      testing::Buffer<char> workspace(0);
      if constexpr (requires { args.segments; }) {
        args.segments.rows = segment_rows;
        workspace = testing::Buffer<char>(workspace_bytes(args));
        args.segments.workspace = workspace.data();
      }
      testing::replay([&] { cuda(args, /*stream=*/nullptr); }, /*busy=*/true);
#endif
    });
  }

  RoutedRows rows;
  PlanRef plan;
  Matrix x, grad_out, w1, w2, score, h, a, y, grad_h, again, grad_score, grad_rows, grad_w1,
      grad_w2;
};

class MoeSm90 : public ::testing::TestWithParam<Shape> {};

TEST_P(MoeSm90, SixKernelsAgreeWithTheReferenceAndWriteNothingElse) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  Layer got(GetParam()), want(GetParam());
  want.run_ref();
  got.run_cuda();
  expect_near_in_norm(got.h, want.h, 6e-3, "h");
  expect_near_in_norm(got.a, want.a, 6e-3, "a");
  expect_near_in_norm(got.y, want.y, 6e-3, "y");
  expect_near_in_norm(got.grad_h, want.grad_h, 6e-3, "grad_h");
  expect_near_in_norm(got.grad_score, want.grad_score, 4e-3, "grad_score");
  expect_near_in_norm(got.grad_rows, want.grad_rows, 6e-3, "grad_rows");
  expect_near_in_norm(got.grad_w1, want.grad_w1, 6e-3, "grad_w1");
  expect_near_in_norm(got.grad_w2, want.grad_w2, 6e-3, "grad_w2");
}

TEST_P(MoeSm90, G4_TwoRunsAreTheSameBits) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  Layer one(GetParam()), two(GetParam());
  one.run_cuda();
  two.run_cuda();
  for (size_t i = 0; i < one.outputs().size(); ++i) {
    EXPECT_TRUE(one.outputs()[i]->same_bits(*two.outputs()[i])) << i;
  }
}

// Enough tiles that waves have blocks of their own.
TEST(MoeSm90Waves, ChangeNoBit) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  const Shape shape{"many_tiles", 3000, 1024, 512, 16, 2};
  Layer one(shape), four(shape);
  one.run_cuda();
  four.run_cuda(/*waves=*/4);
  for (size_t i = 0; i < one.outputs().size(); ++i) {
    EXPECT_TRUE(one.outputs()[i]->same_bits(*four.outputs()[i])) << i;
  }
}

// Sums of the weight gradients in segments of 64 rows, by which most experts have several: the same
// gradients within the bounds of whole sums, twice the same bits, whatever the grid.
TEST_P(MoeSm90, SegmentsOfWeightGradientsAgreeWithTheReference) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  Layer want(GetParam()), got(GetParam()), again(GetParam());
  want.run_ref();
  got.run_cuda(/*waves=*/1, /*segment_rows=*/64);
  again.run_cuda(/*waves=*/4, /*segment_rows=*/64);
  expect_near_in_norm(got.grad_w1, want.grad_w1, 6e-3, "grad_w1");
  expect_near_in_norm(got.grad_w2, want.grad_w2, 6e-3, "grad_w2");
  EXPECT_TRUE(got.grad_w1.same_bits(again.grad_w1));
  EXPECT_TRUE(got.grad_w2.same_bits(again.grad_w2));
}

// The reference's own rounding contract: backward's A is forward's, bit for bit.
TEST_P(MoeSm90, X1_BackwardMakesTheSameActivation) {
  Layer layer(GetParam());
  runs_sm90_code() ? layer.run_cuda() : layer.run_ref();
  for (int64_t r = 0; r < layer.rows.true_rows(); ++r) {
    for (int64_t c = 0; c < layer.a.cols(); ++c) {
      ASSERT_EQ(layer.a.get(r, c), layer.again.get(r, c)) << r << ", " << c;
    }
  }
}

TEST_P(MoeSm90, E2_AnExpertWithoutRowsGetsAGradientOfExactlyZero) {
  Layer layer(GetParam());
  runs_sm90_code() ? layer.run_cuda() : layer.run_ref();
  for (int64_t e = 0; e < GetParam().E; ++e) {
    if (layer.rows.counts[e] != 0) continue;
    for (int64_t i = 0; i < 2 * GetParam().F; ++i) {
      ASSERT_EQ(layer.grad_w1.get(e * 2 * GetParam().F + i, i % GetParam().D), 0) << e;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeSm90, ::testing::ValuesIn(kShapes),
                         [](const auto& test) { return test.param.name; });

// In long sums the experts' last rows come after all whole tiles, and a warp finds 32 experts' at a
// time: here the experts beyond them have some too, and one has whole tiles.
TEST(MoeSm90LongSums, LastRowsOfMoreThan32ExpertsAreComputed) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  constexpr int64_t kExperts = 70, kLong = 4096, kUnits = 64;
  std::vector<int32_t> expert_of_slot(600, 36);
  for (int32_t i = 0; i < 100; ++i) expert_of_slot[i] = static_cast<int32_t>(i * 3 % kExperts);
  RoutedRows rows({.tokens = 600, .choices = 1, .experts = kExperts}, expert_of_slot);
  const auto plan = rows.read<PlanRef>();
  Matrix a(Dtype::kBF16, plan.rows, kLong), w2(Dtype::kBF16, kExperts * kUnits, kLong);
  for (Matrix* m : {&a, &w2}) {
    uint32_t word = 1;
    m->each(
        [&](int64_t r, int64_t c) { word = word * 69069 + 5, m->set(r, c, (word >> 28) - 7.5); });
  }
  Matrix got(Dtype::kBF16, plan.rows, kUnits), want(Dtype::kBF16, plan.rows, kUnits);
  for (Matrix* m : {&got, &want}) m->fill(NAN);
  moe_down_sm90_ref({plan, a.view(), w2.view(), want.mut()});
  testing::run(testing::Backend::kCuda, MoeDownSm90{plan, a.view(), w2.view(), got.mut()}, nullptr,
               TROUPE_CUDA_PATH(moe_down_sm90_cuda));
  expect_near_in_norm(got, want, 6e-3, "y");
}

// Rows that threads copy into shared memory are the copy engine's: the same sums, of the same bits.
TEST(MoeSm90Gather, RowsThatAreGatheredAHundredTimesAreThePackedOnes) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  constexpr int64_t kExperts = 8, kWidth = 512, kColumns = 768;
  RoutedRows rows({.tokens = 4000, .choices = 2, .experts = kExperts});
  const int64_t R = rows.rows;
  Matrix tokens(Dtype::kBF16, rows.shape.tokens, kWidth), packed(Dtype::kBF16, R, kWidth);
  tokens.fill_normal(1);
  packed.each([&](int64_t r, int64_t c) { packed.set(r, c, tokens.get(rows.row_src[r], c)); });
  for (const bool transpose : {true, false}) {
    Matrix b(Dtype::kBF16, kExperts * (transpose ? kColumns : kWidth),
             transpose ? kWidth : kColumns);
    b.fill_normal(2, 0.1);
    Matrix want(Dtype::kBF16, R, kColumns), got(Dtype::kBF16, R, kColumns);
    RowsProductSm90 args{
        kExperts, rows.expert_offset.data(), nullptr, packed.view(), b.view(), want.mut(),
        transpose};
    testing::run(testing::Backend::kCuda, args, nullptr, TROUPE_CUDA_PATH(rows_product_sm90_cuda));
    args.row_src = rows.row_src.data(), args.a = tokens.view(), args.c = got.mut();
    for (int i = 0; i < 100; ++i) {
      got.fill(NAN);
      testing::run(testing::Backend::kCuda, args, nullptr,
                   TROUPE_CUDA_PATH(rows_product_sm90_cuda));
      ASSERT_TRUE(got.same_bits(want)) << "transposed " << transpose << ", run " << i;
    }
  }
}

TEST(MoeSm90Layout, HiddenColumnsAreAPermutation) {
  std::set<int64_t> seen;
  for (int64_t u = 0; u < 192; ++u) {
    seen.insert(hidden_column(u));
    seen.insert(hidden_column(u) + 2);
  }
  EXPECT_EQ(seen.size(), 384u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 383);
}

TEST(MoeSm90Layout, RefusesWidthsThatAreNotMultiplesOf64) {
  Layer layer(kShapes[0]);
  Matrix narrow(Dtype::kBF16, 1, 32), w1(Dtype::kBF16, 128, 32);
  EXPECT_THROW(moe_up_sm90_ref(
                   {layer.plan, narrow.view(), w1.view(), nullptr, layer.h.mut(), layer.a.mut()}),
               Error);
}

}  // namespace
}  // namespace troupe
