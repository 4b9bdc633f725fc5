#include "troupe/kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Shape {
  int64_t rows, cols;
  int64_t pad = 0;
};

struct Form {
  NormKind kind;
  bool residual, bias, round;
};
constexpr Form kForms[] = {{NormKind::kRms, false, false, false},
                           {NormKind::kRms, true, false, true},
                           {NormKind::kLayer, false, true, false},
                           {NormKind::kLayer, true, false, true}};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

struct Problem {
  Problem(Shape s, Dtype d, Form f)
      : form(f),
        x(d, s.rows, s.cols, s.pad),
        residual(d, s.rows, s.cols, s.pad),
        sum(d, s.rows, s.cols, s.pad),
        weight(d, 1, s.cols),
        bias(d, 1, s.cols),
        y(d, s.rows, s.cols, s.pad),
        mean(wide(d), s.rows, 1),
        rstd(wide(d), s.rows, 1),
        grad_y(d, s.rows, s.cols, s.pad),
        grad_sum(d, s.rows, s.cols, s.pad),
        grad_s(d, s.rows, s.cols, s.pad),
        grad_weight(wide(d), 1, s.cols),
        grad_bias(wide(d), 1, s.cols),
        workspace(1) {
    x.fill_normal(1);
    residual.fill_normal(2);
    weight.fill_normal(3);
    bias.fill_normal(4);
    grad_y.fill_normal(5);
    grad_sum.fill_normal(6);
    grad_weight.fill(77);
    grad_bias.fill(77);
    workspace = Buffer<char>(workspace_bytes(backward()));
  }
  Norm forward() {
    const bool layer = form.kind == NormKind::kLayer;
    return {.x = x.view(),
            .weight = weight.view(),
            .y = y.mut(),
            .residual = form.residual ? residual.view() : MatRef{},
            .sum = form.residual ? sum.mut() : MutRef{},
            .bias = form.bias ? bias.view() : MatRef{},
            .mean = layer ? mean.mut() : MutRef{},
            .rstd = rstd.mut(),
            .kind = form.kind,
            .round_before_weight = form.round};
  }
  NormBackward backward() {
    return {.s = form.residual ? sum.view() : x.view(),
            .weight = weight.view(),
            .rstd = rstd.view(),
            .grad_y = grad_y.view(),
            .grad_s = grad_s.mut(),
            .grad_weight = grad_weight.mut(),
            .grad_bias = form.bias ? grad_bias.mut() : MutRef{},
            .mean = form.kind == NormKind::kLayer ? mean.view() : MatRef{},
            .grad_sum = form.residual ? grad_sum.view() : MatRef{},
            .workspace = workspace.data(),
            .kind = form.kind,
            .round_before_weight = form.round};
  }
  Form form;
  Matrix x, residual, sum, weight, bias, y, mean, rstd;
  Matrix grad_y, grad_sum, grad_s, grad_weight, grad_bias;
  Buffer<char> workspace;
};

void run(Backend backend, Problem& p) {
  testing::run(backend, p.forward(), norm_cpu, TROUPE_CUDA_PATH(norm_cuda));
  testing::run(backend, p.backward(), norm_backward_cpu, TROUPE_CUDA_PATH(norm_backward_cuda));
}

class NormTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem(Form form) const { return {GetParam().shape, GetParam().dtype, form}; }
};

TEST_P(NormTest, AgreesWithTheReference) {
  for (const Form form : kForms) {
    Problem got = problem(form), want = problem(form);
    run(GetParam().backend, got);
    norm_ref(want.forward());
    // Backward from the same statistics and rounded sums, so that it alone is compared.
    norm_backward_ref(want.backward());
    const std::string what = form.kind == NormKind::kRms ? "rms" : "layer";
    testing::expect_near(got.sum, want.sum, what + " sum");
    testing::expect_near(got.y, want.y, what + " y");
    testing::expect_near(got.mean, want.mean, what + " mean");
    testing::expect_near(got.rstd, want.rstd, what + " rstd");
    testing::expect_near(got.grad_s, want.grad_s, what + " grad_s");
    // Sums over rows: of numbers that were rounded to the type, where the form rounds.
    const auto bound = testing::tolerance(form.round ? GetParam().dtype : wide(GetParam().dtype));
    testing::expect_near(got.grad_weight, want.grad_weight, bound, what + " grad_weight");
    testing::expect_near(got.grad_bias, want.grad_bias, what + " grad_bias");
  }
}

TEST_P(NormTest, NormalizedRowsHaveMeanZeroAndSquareOne) {
  if (GetParam().shape.cols < 8) GTEST_SKIP() << "eps and rounding are all there is";
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    Problem p = problem({kind, false, false, false});
    p.weight.fill(1);
    run(GetParam().backend, p);
    for (int64_t r = 0; r < p.y.rows(); ++r) {
      double sum = 0, squares = 0;
      for (int64_t d = 0; d < p.y.cols(); ++d) {
        sum += p.y.get(r, d);
        squares += p.y.get(r, d) * p.y.get(r, d);
      }
      const auto D = static_cast<double>(p.y.cols());
      ASSERT_NEAR(squares / D, 1, 5e-3) << "row " << r;
      ASSERT_NEAR(kind == NormKind::kLayer ? sum / D : 0, 0, 5e-3) << "row " << r;
    }
  }
}

TEST_P(NormTest, G4_EveryRunGivesTheSameBits) {
  for (const Form form : kForms) {
    Problem first = problem(form), second = problem(form);
    run(GetParam().backend == Backend::kCuda ? Backend::kCuda : Backend::kCpu, first);
    run(GetParam().backend, second);
    EXPECT_TRUE(first.y.same_bits(second.y));
    EXPECT_TRUE(first.sum.same_bits(second.sum));
    EXPECT_TRUE(first.grad_s.same_bits(second.grad_s));
    EXPECT_TRUE(first.grad_weight.same_bits(second.grad_weight));
    EXPECT_TRUE(first.grad_bias.same_bits(second.grad_bias));
  }
}

TEST_P(NormTest, MayWriteOverItsInputs) {
  const Form form = kForms[1];
  Problem want = problem(form), got = problem(form);
  run(GetParam().backend, want);
  Norm forward = got.forward();
  forward.sum = got.residual.mut();
  forward.y = got.x.mut();
  testing::run(GetParam().backend, forward, norm_cpu, TROUPE_CUDA_PATH(norm_cuda));
  NormBackward backward = got.backward();
  backward.s = got.residual.view();
  backward.grad_s = got.grad_y.mut();
  testing::run(GetParam().backend, backward, norm_backward_cpu,
               TROUPE_CUDA_PATH(norm_backward_cuda));
  EXPECT_TRUE(got.x.same_bits(want.y));
  EXPECT_TRUE(got.residual.same_bits(want.sum));
  EXPECT_TRUE(got.grad_y.same_bits(want.grad_s));
  EXPECT_TRUE(got.grad_weight.same_bits(want.grad_weight));
}

TEST_P(NormTest, LayerNormSurvivesALargeMean) {
  if (GetParam().dtype != Dtype::kF32 && GetParam().dtype != Dtype::kF64) {
    GTEST_SKIP() << "the input itself cannot hold it";
  }
  const Form form = kForms[2];
  Problem got = problem(form), want = problem(form);
  for (Problem* p : {&got, &want}) {
    p->x.each([&](int64_t r, int64_t d) { p->x.set(r, d, p->x.get(r, d) + 4096); });
  }
  run(GetParam().backend, got);
  norm_ref(want.forward());
  testing::expect_near(
      got.y, want.y, testing::Tolerance{1e-3, 1e-3});  // A variance of squares would be all noise.
}

TEST(Norm, RangesCoverTheRowsOnce) {
  for (const int64_t rows : {0, 1, 31, 32, 33, 1000, 16384, 16385, 1000003}) {
    const NormRanges ranges = norm_ranges(rows);
    EXPECT_LE(ranges.count, 512);
    EXPECT_GE(ranges.count * ranges.rows_per_range, rows);
    EXPECT_LT((ranges.count - 1) * ranges.rows_per_range, std::max<int64_t>(rows, 1));
  }
}

TEST(Norm, RefusesWhatItCannotMean) {
  Problem p({4, 8}, Dtype::kF32, kForms[2]);
  const auto refused = [&](auto&& spoil) {
    Norm a = p.forward();
    spoil(a);
    EXPECT_THROW(norm_cpu(a, serial), Error);
  };
  refused([](Norm& a) { a.weight.cols = 7; });
  refused([](Norm& a) { a.y.dtype = Dtype::kBF16; });
  refused([](Norm& a) { a.x.ld = 7; });
  refused([](Norm& a) { a.eps = -1; });
  refused([](Norm& a) { a.kind = NormKind::kRms; });          // with a mean
  refused([&](Norm& a) { a.residual = p.residual.view(); });  // without a sum
  NormBackward b = p.backward();
  b.workspace = nullptr;
  EXPECT_THROW(norm_backward_cpu(b, serial), Error);
  b = p.backward();
  b.mean = {};
  EXPECT_THROW(norm_backward_cpu(b, serial), Error);
}

std::vector<Case> all_cases() {
  const std::vector<Shape> shapes = {{0, 8},    {1, 1},      {3, 7},        {67, 128, 8},
                                     {33, 257}, {1030, 64},  {5, 2048, 16}, {2, 1031, 1},
                                     {3, 4104}, {2, 4099, 1}};
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (const Shape& s : shapes) cases.push_back({b, d, s});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_r" + std::to_string(s.rows) + "_d" +
         std::to_string(s.cols);
}
INSTANTIATE_TEST_SUITE_P(All, NormTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
