#include "troupe/kernels/rotary/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Shape {
  int64_t tokens, heads, head_dim, pairs, first;
  int64_t pad = 0;
};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

constexpr int64_t kPositions = 11;

struct Problem {
  Problem(Shape s, Dtype d, RotaryForm f = RotaryForm::kHalf)
      : shape(s),
        form(f),
        x(d, s.tokens, s.heads * s.head_dim, s.pad),
        y(d, s.tokens, s.heads * s.head_dim, s.pad),
        cos(wide(d), kPositions, s.pairs),
        sin(wide(d), kPositions, s.pairs) {
    x.fill_normal(1);
    cos.each([&](int64_t p, int64_t j) {
      const double angle = static_cast<double>(p) *
                           std::pow(1e4, -static_cast<double>(j) / static_cast<double>(s.pairs));
      cos.set(p, j, std::cos(angle));
      sin.set(p, j, std::sin(angle));
    });
  }
  Rotary args() {
    return {.x = x.view(),
            .y = y.mut(),
            .cos = cos.view(),
            .sin = sin.view(),
            .head_dim = shape.head_dim,
            .first = shape.first,
            .form = form};
  }
  Shape shape;
  RotaryForm form;
  Matrix x, y, cos, sin;
};

void run(Backend backend, const Rotary& args) {
  testing::run(backend, args, rotary_cpu, TROUPE_CUDA_PATH(rotary_cuda));
}

constexpr RotaryForm kForms[] = {RotaryForm::kHalf, RotaryForm::kInterleaved};

class RotaryTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem(RotaryForm form) const { return {GetParam().shape, GetParam().dtype, form}; }
  Backend backend() const { return GetParam().backend; }
};

TEST_P(RotaryTest, AgreesWithTheReference) {
  Buffer<int64_t> position(GetParam().shape.tokens);
  for (size_t t = 0; t < position.size(); ++t)
    position[t] = static_cast<int64_t>(t * 7 % kPositions);
  for (const RotaryForm form : kForms) {
    for (const bool inverse : {false, true}) {
      for (const int64_t* given :
           {static_cast<const int64_t*>(nullptr), static_cast<const int64_t*>(position.data())}) {
        Problem got = problem(form), want = problem(form);
        Rotary got_args = got.args(), want_args = want.args();
        got_args.inverse = want_args.inverse = inverse;
        got_args.position = want_args.position = given;
        run(backend(), got_args);
        rotary_ref(want_args);
        testing::expect_near(got.y, want.y);
      }
    }
  }
}

TEST_P(RotaryTest, TheInverseGivesBackTheInputAndLengthsStay) {
  for (const RotaryForm form : kForms) {
    Problem p = problem(form), back = problem(form);
    run(backend(), p.args());
    Rotary args = back.args();
    args.x = p.y.view();
    args.inverse = true;
    run(backend(), args);
    // Rounded twice.
    const auto bound = testing::tolerance(GetParam().dtype);
    testing::expect_near(back.y, p.x,
                         testing::Tolerance{2 * bound.rtol, 2 * bound.atol + bound.rtol});
    for (int64_t t = 0; t < p.x.rows(); ++t) {
      double before = 0, after = 0;
      for (int64_t d = 0; d < p.x.cols(); ++d) {
        before += p.x.get(t, d) * p.x.get(t, d);
        after += p.y.get(t, d) * p.y.get(t, d);
      }
      ASSERT_NEAR(after, before, 2 * bound.rtol * before + 1e-4);
    }
  }
}

TEST_P(RotaryTest, InPlaceGivesTheSameBits) {
  for (const RotaryForm form : kForms) {
    Problem apart = problem(form), in_place = problem(form);
    run(backend() == Backend::kCuda ? Backend::kCuda : Backend::kCpu, apart.args());
    Rotary args = in_place.args();
    args.y = in_place.x.mut();
    run(backend(), args);
    EXPECT_TRUE(in_place.x.same_bits(apart.y));
  }
}

TEST_P(RotaryTest, APositionBeyondTheTablesGivesNan) {
  if (GetParam().shape.tokens < 2 || GetParam().shape.pairs == 0) GTEST_SKIP() << "nothing to turn";
  Buffer<int64_t> position(GetParam().shape.tokens);
  for (size_t t = 0; t < position.size(); ++t) position[t] = 0;
  position[0] = kPositions, position[1] = -1;
  Problem p = problem(RotaryForm::kHalf);
  Rotary args = p.args();
  args.position = position.data();
  run(backend(), args);
  for (int64_t t = 0; t < p.y.rows(); ++t) {
    EXPECT_EQ(std::isnan(p.y.get(t, GetParam().shape.first)), t < 2) << "token " << t;
  }
}

// The formula by hand: a quarter turn.
TEST(Rotary, TurnsTheRightPairs) {
  for (const RotaryForm form : kForms) {
    Problem p({1, 1, 6, 2, 1}, Dtype::kF32, form);
    for (int d = 0; d < 6; ++d) p.x.set(0, d, d);
    p.cos.fill(0);
    p.sin.fill(1);
    rotary_cpu(p.args(), serial);
    const double half[] = {0, -3, -4, 1, 2, 5}, interleaved[] = {0, -2, 1, -4, 3, 5};
    for (int d = 0; d < 6; ++d) {
      EXPECT_EQ(p.y.get(0, d), form == RotaryForm::kHalf ? half[d] : interleaved[d]) << d;
    }
  }
}

TEST(Rotary, RefusesWhatItCannotMean) {
  Problem p({4, 2, 8, 4, 0}, Dtype::kF32);
  const auto refused = [&](auto&& spoil) {
    Rotary a = p.args();
    spoil(a);
    EXPECT_THROW(rotary_cpu(a, serial), Error);
    EXPECT_THROW(rotary_ref(a), Error);
  };
  refused([](Rotary& a) { a.head_dim = 5; });
  refused([](Rotary& a) { a.head_dim = 0; });
  refused([](Rotary& a) { a.first = 1; });
  refused([](Rotary& a) { a.first = -1; });
  refused([](Rotary& a) { a.sin.cols = 3; });
  refused([](Rotary& a) { a.cos.dtype = Dtype::kBF16; });
  refused([](Rotary& a) { a.cos.rows = a.sin.rows = 0; });
  refused([](Rotary& a) { a.y.cols = 8; });
}

std::vector<Case> all_cases() {
  const std::vector<Shape> shapes = {{0, 2, 8, 4, 0},     {1, 1, 2, 1, 0},   {5, 3, 10, 3, 2},
                                     {23, 4, 64, 32, 0},  {7, 2, 48, 8, 32}, {13, 3, 16, 4, 0, 8},
                                     {257, 2, 32, 16, 0}, {3, 1, 7, 0, 0},   {4, 9, 128, 64, 0}};
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
  return std::string(name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.tokens) + "_h" +
         std::to_string(s.heads) + "_d" + std::to_string(s.head_dim) + "_n" +
         std::to_string(2 * s.pairs);
}
INSTANTIATE_TEST_SUITE_P(All, RotaryTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
