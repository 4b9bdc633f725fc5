#include "troupe/kernels/activation/activation.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "troupe/kernels/activation/activation_row.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Shape {
  int64_t rows, units;
  bool gated;
  int64_t pad = 0;
};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

// All tensors of a forward and a backward.
struct Problem {
  Problem(Shape s, Dtype d, ActivationKind k = {}, bool with_score = true)
      : shape(s),
        kind(k),
        scored(with_score),
        h(d, s.rows, s.units * (s.gated ? 2 : 1), s.pad),
        u(d, s.rows, s.units, s.pad),
        score(wide(d), s.rows, 1),
        grad_u(d, s.rows, s.units, s.pad),
        grad_h(d, s.rows, h.cols(), s.pad),
        grad_score(wide(d), s.rows, 1),
        again(d, s.rows, s.units, s.pad) {
    h.fill_normal(1, 3);
    score.fill_normal(2);
    grad_u.fill_normal(3);
  }
  Activation forward() {
    return {.h = h.view(),
            .u = u.mut(),
            .score = scored ? score.view() : MatRef{},
            .expert_offset = expert_offset,
            .num_experts = num_experts,
            .kind = kind};
  }
  ActivationBackward backward() {
    return {.h = h.view(),
            .grad_u = grad_u.view(),
            .grad_h = grad_h.mut(),
            .score = scored ? score.view() : MatRef{},
            .grad_score = scored ? grad_score.mut() : MutRef{},
            .u = again.mut(),
            .expert_offset = expert_offset,
            .num_experts = num_experts,
            .kind = kind};
  }
  Shape shape;
  ActivationKind kind;
  bool scored;
  const int32_t* expert_offset = nullptr;
  int64_t num_experts = 0;
  Matrix h, u, score, grad_u, grad_h, grad_score, again;
};

void run(Backend backend, Problem& p) {
  testing::run(backend, p.forward(), activation_cpu, TROUPE_CUDA_PATH(activation_cuda));
  testing::run(backend, p.backward(), activation_backward_cpu,
               TROUPE_CUDA_PATH(activation_backward_cuda));
}

void run_ref(Problem& p) {
  activation_ref(p.forward());
  activation_backward_ref(p.backward());
}

void expect_near(Problem& got, Problem& want, const std::string& what) {
  testing::expect_near(got.u, want.u, what + ": u");
  testing::expect_near(got.grad_h, want.grad_h, what + ": grad_h");
  testing::expect_near(got.grad_score, want.grad_score, what + ": grad_score");
  testing::expect_near(got.again, want.again, what + ": u of backward");
}

bool same_bits(Problem& a, Problem& b) {
  return a.u.same_bits(b.u) && a.grad_h.same_bits(b.grad_h) &&
         a.grad_score.same_bits(b.grad_score) && a.again.same_bits(b.again);
}

std::vector<ActivationKind> kinds(bool gated) {
  std::vector<ActivationKind> all;
  for (int i = 0; i < kNumActs; ++i) {
    all.push_back({.act = static_cast<Act>(i)});
    all.push_back({.act = static_cast<Act>(i), .clamp = 2.5f, .offset = gated ? 1.0f : 0.0f});
  }
  return all;
}

class ActivationTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Backend backend() const { return GetParam().backend; }
};

TEST_P(ActivationTest, X1_X2_X3_X4_AgreesWithTheReference) {
  for (const ActivationKind& kind : kinds(GetParam().shape.gated)) {
    for (const bool scored : {true, false}) {
      Problem got(GetParam().shape, GetParam().dtype, kind, scored);
      Problem want(GetParam().shape, GetParam().dtype, kind, scored);
      run(backend(), got);
      run_ref(want);
      expect_near(got, want, std::string(name(kind.act)) + (scored ? " scored" : ""));
    }
  }
}

TEST_P(ActivationTest, X2_BackwardWritesTheSameBitsOfU) {
  for (const ActivationKind& kind : kinds(GetParam().shape.gated)) {
    Problem p(GetParam().shape, GetParam().dtype, kind);
    run(backend(), p);
    EXPECT_TRUE(p.u.same_bits(p.again)) << name(kind.act);
  }
}

TEST_P(ActivationTest, G4_EveryRunGivesTheSameBits) {
  for (const ActivationKind& kind : kinds(GetParam().shape.gated)) {
    Problem first(GetParam().shape, GetParam().dtype, kind);
    Problem second(GetParam().shape, GetParam().dtype, kind);
    // One thread against three: the CPU's results do not depend on the split.
    run(backend() == Backend::kCpuThreads ? Backend::kCpu : backend(), first);
    run(backend(), second);
    EXPECT_TRUE(same_bits(first, second)) << name(kind.act);
  }
}

TEST_P(ActivationTest, MayWriteOverItsInputs) {
  Problem want(GetParam().shape, GetParam().dtype), got(GetParam().shape, GetParam().dtype);
  run(backend(), want);
  ActivationBackward in_place = got.backward();
  in_place.grad_h = got.h.mut();
  in_place.u = got.grad_u.mut();
  testing::run(backend(), in_place, activation_backward_cpu,
               TROUPE_CUDA_PATH(activation_backward_cuda));
  EXPECT_TRUE(got.h.same_bits(want.grad_h));
  EXPECT_TRUE(got.grad_u.same_bits(want.again));
}

TEST_P(ActivationTest, X2_BackwardNeedsNoPlaceForUAndTheScores) {
  Problem got(GetParam().shape, GetParam().dtype), want(GetParam().shape, GetParam().dtype);
  ActivationBackward bare = got.backward();
  bare.u = {}, bare.grad_score = {};
  testing::run(backend(), bare, activation_backward_cpu,
               TROUPE_CUDA_PATH(activation_backward_cuda));
  activation_backward_ref(want.backward());
  testing::expect_near(got.grad_h, want.grad_h);
}

// f(element) for what is between one row and the next.
template <class F>
void each_pad(Matrix& m, F&& f) {
  dispatch_float64(m.dtype(), [&]<class T>() {
    const auto rows = m.mut().as<T>();
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t c = rows.cols; c < rows.ld; ++c) f(rows.row(r)[c]);
    }
  });
}

TEST_P(ActivationTest, NeitherReadsNorWritesBetweenItsRows) {
  Problem clean(GetParam().shape, GetParam().dtype), p(GetParam().shape, GetParam().dtype);
  for (Matrix* in : {&p.h, &p.grad_u}) {
    each_pad(*in, [](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(NAN); });
  }
  for (Matrix* out : {&p.u, &p.grad_h, &p.again}) {
    each_pad(*out, [](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(77.0f); });
  }
  run(backend(), clean);
  run(backend(), p);
  const auto expect_same = [](Matrix& got, Matrix& want) {
    want.each([&](int64_t r, int64_t c) { ASSERT_EQ(got.get(r, c), want.get(r, c)) << r; });
  };
  expect_same(p.u, clean.u);
  expect_same(p.grad_h, clean.grad_h);
  expect_same(p.grad_score, clean.grad_score);
  expect_same(p.again, clean.again);
  for (Matrix* out : {&p.u, &p.grad_h, &p.again}) {
    each_pad(*out, [](auto& x) { ASSERT_EQ(static_cast<float>(x), 77); });
  }
}

TEST_P(ActivationTest, RowsPastTheLastExpertAreNotTouched) {
  const Shape shape = GetParam().shape;
  Buffer<int32_t> offset(3);
  offset[0] = 0, offset[1] = 0, offset[2] = static_cast<int32_t>(shape.rows / 2);
  Problem p(shape, GetParam().dtype);
  p.expert_offset = offset.data();
  p.num_experts = 2;
  for (Matrix* out : {&p.u, &p.grad_h, &p.grad_score, &p.again}) out->fill(77);
  run(backend(), p);
  for (Matrix* out : {&p.u, &p.grad_h, &p.grad_score, &p.again}) {
    out->each([&](int64_t r, int64_t c) {
      ASSERT_EQ(out->get(r, c) == 77, r >= offset[2]) << "row " << r << " of " << offset[2];
    });
  }
}

// Rule X3's test: value and slope on [-20, 20] and at the ends of float, against fp64.
class ActivationCurve : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(ActivationCurve, X3_ValueAndSlopeFromMinus20To20) {
  constexpr int64_t kPoints = 40001;
  for (int i = 0; i < kNumActs; ++i) {
    const ActivationKind kind{.act = static_cast<Act>(i)};
    Problem got({kPoints, 1, false}, Dtype::kF32, kind, false);
    Problem want({kPoints, 1, false}, Dtype::kF32, kind, false);
    for (Problem* p : {&got, &want}) {
      p->h.each([&](int64_t r, int64_t) { p->h.set(r, 0, -20 + r * 1e-3); });
      p->grad_u.fill(1);
    }
    run(GetParam(), got);
    run_ref(want);
    for (int64_t r = 0; r < kPoints; ++r) {
      const double value = want.u.get(r, 0), slope = want.grad_h.get(r, 0);
      ASSERT_NEAR(got.u.get(r, 0), value, 1e-6 * std::abs(value) + 1e-7) << name(kind.act) << r;
      ASSERT_NEAR(got.grad_h.get(r, 0), slope, 1e-6 * std::abs(slope) + 1e-6)
          << name(kind.act) << r;
    }
  }
}

TEST_P(ActivationCurve, X3_IsFiniteNextToInfinity) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> points = {kMax,   -kMax,   kMax / 2, -kMax / 2, 1e30f,  -1e30f,
                                     1e10f,  -1e10f,  1e4f,     -1e4f,     100.0f, -100.0f,
                                     1e-38f, -1e-38f, 1e-45f,   -1e-45f,   0.0f,   -0.0f};
  const auto n = static_cast<int64_t>(points.size());
  for (int i = 0; i < kNumActs; ++i) {
    const ActivationKind kind{.act = static_cast<Act>(i)};
    Problem got({1, n, false}, Dtype::kF32, kind, false),
        want({1, n, false}, Dtype::kF32, kind, false);
    for (Problem* p : {&got, &want}) {
      for (int64_t f = 0; f < n; ++f) p->h.set(0, f, points[f]);
      p->grad_u.fill(1);
    }
    run(GetParam(), got);
    run_ref(want);
    for (int64_t f = 0; f < n; ++f) {
      const double value = want.u.get(0, f), slope = want.grad_h.get(0, f);
      ASSERT_FALSE(std::isnan(got.u.get(0, f))) << name(kind.act) << " of " << points[f];
      if (got.u.get(0, f) != value) {  // Infinity equals itself.
        ASSERT_NEAR(got.u.get(0, f), value, 1e-6 * std::abs(value) + 1e-37)
            << name(kind.act) << " of " << points[f];
      }
      if (got.grad_h.get(0, f) != slope) {
        ASSERT_NEAR(got.grad_h.get(0, f), slope, 1e-6 * std::abs(slope) + 1e-37)
            << "slope of " << name(kind.act) << " at " << points[f];
      }
    }
  }
}

TEST_P(ActivationCurve, X3_ANanStaysOne) {
  for (int i = 0; i < kNumActs; ++i) {
    const ActivationKind kind{.act = static_cast<Act>(i), .clamp = 7, .offset = 1};
    Problem p({1, 2, true}, Dtype::kF32, kind);
    p.h.fill(1);
    p.h.set(0, 0, NAN);
    p.h.set(0, 3, NAN);
    run(GetParam(), p);
    EXPECT_TRUE(std::isnan(p.u.get(0, 0))) << name(kind.act);
    EXPECT_TRUE(std::isnan(p.u.get(0, 1))) << name(kind.act);
    EXPECT_TRUE(std::isnan(p.grad_score.get(0, 0))) << name(kind.act);
  }
}

TEST_P(ActivationCurve, X4_TheGradientIsExactlyZeroBeyondTheClamp) {
  constexpr float kClamp = 7;
  const float above = std::nextafter(kClamp, 8.0f);
  for (int i = 0; i < kNumActs; ++i) {
    const ActivationKind kind{.act = static_cast<Act>(i), .clamp = kClamp, .offset = 1};
    Problem p({4, 1, true}, Dtype::kF32, kind);
    p.score.fill(1);
    p.grad_u.fill(1);
    const float gates[] = {kClamp, above, 1, 1}, ups[] = {kClamp, above, -kClamp, -above};
    for (int r = 0; r < 4; ++r) p.h.set(r, 0, gates[r]), p.h.set(r, 1, ups[r]);
    run(GetParam(), p);
    EXPECT_GT(p.grad_h.get(0, 0), 0) << name(kind.act);
    EXPECT_GT(p.grad_h.get(0, 1), 0) << name(kind.act);
    EXPECT_EQ(p.grad_h.get(1, 0), 0) << name(kind.act);
    EXPECT_EQ(p.grad_h.get(1, 1), 0) << name(kind.act);
    EXPECT_EQ(p.u.get(1, 0), p.u.get(0, 0)) << name(kind.act);
    EXPECT_GT(p.grad_h.get(2, 1), 0) << name(kind.act);
    EXPECT_EQ(p.grad_h.get(3, 1), 0) << name(kind.act);
  }
}

TEST_P(ActivationCurve, X1_TheScoreMultipliesTheOutputAndScalesNothingElse) {
  Problem scored({5, 33, true}, Dtype::kF32), plain({5, 33, true}, Dtype::kF32, {}, false);
  scored.score.fill(0.5);  // A power of two: exact.
  run(GetParam(), scored);
  run(GetParam(), plain);
  plain.u.each([&](int64_t r, int64_t f) {
    ASSERT_EQ(scored.u.get(r, f), 0.5 * plain.u.get(r, f));
    ASSERT_EQ(scored.grad_h.get(r, f), 0.5 * plain.grad_h.get(r, f));
  });
}

// x^2 sigmoid(x): no entry of ours, and one functor is all that it takes.
struct SquaredSilu {
  template <class W>
  ValueSlope<W> operator()(W g) const {
    const auto s = fast::sigmoid(g);
    return {g * g * s.p, g * s.p * (2 + g * s.q)};
  }
};

TEST(Activation, X3_TakesAUsersFunctor) {
  const float h[] = {0.5f, -2, 3, 4}, grad_u[] = {1, 1};
  float u[2], grad_h[4];
  activation_row<SquaredSilu, true>(h, u, 2, {}, 2.0f);
  const ActivationRowGrad<float> row{h, grad_u, grad_h, u};
  activation_backward_row<SquaredSilu, true, false>(row, 2, {}, 2.0f);
  EXPECT_NEAR(u[0], 2 * 3 * 0.25 / (1 + std::exp(-0.5)), 1e-6);
  EXPECT_NEAR(grad_h[3], 2 * 4 / (1 + std::exp(2.0)), 1e-6);
}

TEST(Activation, NamesReadBack) {
  for (int i = 0; i < kNumActs; ++i) {
    EXPECT_EQ(act_of_name(name(static_cast<Act>(i))), static_cast<Act>(i));
  }
  EXPECT_THROW(act_of_name("swish"), Error);
}

TEST(Activation, RefusesWhatItCannotMean) {
  const auto refused = [](auto&& spoil) {
    Problem p({4, 8, true}, Dtype::kF32);
    Activation forward = p.forward();
    ActivationBackward backward = p.backward();
    spoil(forward);
    spoil(backward);
    EXPECT_THROW(activation_cpu(forward, serial), Error);
    EXPECT_THROW(activation_ref(forward), Error);
    EXPECT_THROW(activation_backward_cpu(backward, serial), Error);
  };
  refused([](auto& a) { a.h.cols = 12; });
  refused([](auto& a) { a.h.ld = 3; });
  refused([](auto& a) { a.h.dtype = Dtype::kBF16; });
  refused([](auto& a) { a.score.dtype = Dtype::kBF16; });
  refused([](auto& a) { a.score.rows = 3; });
  refused([](auto& a) { a.kind.clamp = 0; });
  refused([](auto& a) { a.kind.clamp = NAN; });
  refused([](auto& a) { a.kind.offset = NAN; });
  refused([](auto& a) { a.h.cols = 8, a.kind.offset = 1; });
  const int32_t too_many[] = {0, 5};
  refused([&](auto& a) { a.expert_offset = too_many; });  // num_experts is missing
  Problem p({4, 8, true}, Dtype::kF32);
  p.expert_offset = too_many, p.num_experts = 1;
  EXPECT_THROW(activation_cpu(p.forward(), serial), Error);
}

std::vector<Case> all_cases() {
  const std::vector<Shape> shapes = {
      {0, 8, true},       {3, 0, true},    {1, 1, true},   {7, 13, true},    {5, 64, true, 8},
      {67, 257, true, 3}, {130, 96, true}, {9, 31, false}, {33, 128, false}, {21, 129, false, 7}};
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
  return std::string(name(backend)) + "_" + name(dtype) + "_r" + std::to_string(s.rows) + "_f" +
         std::to_string(s.units) + (s.gated ? "_glu" : "_mlp");
}
INSTANTIATE_TEST_SUITE_P(All, ActivationTest, ::testing::ValuesIn(all_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(All, ActivationCurve, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         testing::backend_name);

}  // namespace
}  // namespace troupe
