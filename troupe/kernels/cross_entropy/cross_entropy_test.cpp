#include "troupe/kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

constexpr int64_t kIgnore = -100;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t tokens, words;
  int64_t pad = 0;
};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

struct Problem {
  Problem(Shape s, Dtype d, float z = 0)
      : z_loss(z),
        logits(d, s.tokens, s.words, s.pad),
        target(s.tokens),
        weight(wide(d), s.tokens, 1),
        loss(wide(d), s.tokens, 1),
        lse(wide(d), s.tokens, 1),
        grad_loss(wide(d), s.tokens, 1),
        grad(d, s.tokens, s.words, s.pad) {
    logits.fill_normal(1, 3);
    for (int64_t t = 0; t < s.tokens; ++t) target[t] = t % 5 == 3 ? kIgnore : t * 7919 % s.words;
    for (int64_t t = 0; t < s.tokens; ++t) weight.set(t, 0, t % 4 * 0.5);
    grad_loss.fill_normal(2);
    loss.fill(77);
    lse.fill(77);
    grad.fill(77);
  }
  CrossEntropy forward() {
    return {.logits = logits.view(),
            .target = target.data(),
            .loss = loss.mut(),
            .lse = lse.mut(),
            .weight = weighted ? weight.view() : MatRef{},
            .z_loss = z_loss};
  }
  CrossEntropyBackward backward() {
    return {.logits = logits.view(),
            .target = target.data(),
            .lse = lse.view(),
            .grad_loss = grad_loss.view(),
            .grad_logits = grad.mut(),
            .weight = weighted ? weight.view() : MatRef{},
            .z_loss = z_loss};
  }
  bool weighted = true;
  float z_loss;
  Matrix logits;
  Buffer<int64_t> target;
  Matrix weight, loss, lse, grad_loss, grad;
};

void run_forward(Backend backend, const CrossEntropy& a) {
  testing::run(backend, a, cross_entropy_cpu, TROUPE_CUDA_PATH(cross_entropy_cuda));
}
void run_backward(Backend backend, const CrossEntropyBackward& a) {
  testing::run(backend, a, cross_entropy_backward_cpu,
               TROUPE_CUDA_PATH(cross_entropy_backward_cuda));
}
void run(Backend backend, Problem& p) {
  run_forward(backend, p.forward());
  run_backward(backend, p.backward());
}

class CrossEntropyTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem(float z_loss = 0) const { return {GetParam().shape, GetParam().dtype, z_loss}; }
  Backend backend() const { return GetParam().backend; }
};

TEST_P(CrossEntropyTest, AgreesWithTheReference) {
  for (const float z_loss : {0.0f, 0.125f}) {
    for (const bool weighted : {false, true}) {
      Problem got = problem(z_loss), want = problem(z_loss);
      got.weighted = want.weighted = weighted;
      run(backend(), got);
      cross_entropy_ref(want.forward());
      cross_entropy_backward_ref(want.backward());
      testing::expect_near(got.loss, want.loss, "loss");
      testing::expect_near(got.lse, want.lse, "lse");
      testing::expect_near(got.grad, want.grad, "grad");
    }
  }
}

TEST_P(CrossEntropyTest, AGradientRowSumsToZero) {
  if (GetParam().dtype == Dtype::kBF16 || GetParam().dtype == Dtype::kF16) {
    GTEST_SKIP() << "each word is rounded";
  }
  Problem p = problem();
  run(backend(), p);
  for (int64_t t = 0; t < p.grad.rows(); ++t) {
    double sum = 0;
    for (int64_t v = 0; v < p.grad.cols(); ++v) sum += p.grad.get(t, v);
    ASSERT_NEAR(sum, 0, 2e-5) << "token " << t;
  }
}

TEST_P(CrossEntropyTest, G3_IgnoredTokensCountForNothingAndAreNotRead) {
  Problem p = problem(0.1f);
  for (int64_t t = 0; t < p.logits.rows(); ++t) {
    if (p.target[t] == kIgnore) p.logits.set(t, 0, NAN);
  }
  run(backend(), p);
  for (int64_t t = 0; t < p.logits.rows(); ++t) {
    if (p.target[t] != kIgnore) continue;
    EXPECT_EQ(p.loss.get(t, 0), 0);
    EXPECT_EQ(p.lse.get(t, 0), 0);
    for (int64_t v = 0; v < p.grad.cols(); ++v) ASSERT_EQ(p.grad.get(t, v), 0);
  }
}

TEST_P(CrossEntropyTest, G4_EveryRunGivesTheSameBits) {
  Problem first = problem(0.1f), second = problem(0.1f);
  run(backend() == Backend::kCuda ? Backend::kCuda : Backend::kCpu, first);
  run(backend(), second);
  EXPECT_TRUE(first.loss.same_bits(second.loss));
  EXPECT_TRUE(first.lse.same_bits(second.lse));
  EXPECT_TRUE(first.grad.same_bits(second.grad));
}

TEST_P(CrossEntropyTest, InPlaceGivesTheSameBits) {
  Problem apart = problem(0.1f), in_place = problem(0.1f);
  run(backend(), apart);
  run_forward(backend(), in_place.forward());
  CrossEntropyBackward args = in_place.backward();
  args.grad_logits = in_place.logits.mut();
  run_backward(backend(), args);
  for (int64_t t = 0; t < apart.grad.rows(); ++t) {
    for (int64_t v = 0; v < apart.grad.cols(); ++v) {
      ASSERT_EQ(in_place.logits.get(t, v), apart.grad.get(t, v)) << t << ", " << v;
    }
  }
}

// A head that sees a few tokens at a time computes what it would of all at once.
TEST_P(CrossEntropyTest, ChunksGiveTheSameBits) {
  Problem whole = problem(0.1f), chunked = problem(0.1f);
  run(backend(), whole);
  for (int64_t begin = 0; begin < chunked.logits.rows(); begin += 2) {
    const int64_t rows = std::min<int64_t>(2, chunked.logits.rows() - begin);
    const auto cut = [&](auto m) {
      using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(m.data)>>,
                                      const char, char>;
      m.data = static_cast<Byte*>(m.data) + begin * m.ld * size_bytes(m.dtype);
      m.rows = rows;
      return m;
    };
    CrossEntropy forward = chunked.forward();
    forward.logits = cut(forward.logits), forward.target += begin;
    forward.loss = cut(forward.loss), forward.lse = cut(forward.lse);
    forward.weight = cut(forward.weight);
    run_forward(backend(), forward);
    CrossEntropyBackward backward = chunked.backward();
    backward.logits = cut(backward.logits), backward.target += begin;
    backward.lse = cut(backward.lse), backward.grad_loss = cut(backward.grad_loss);
    backward.grad_logits = cut(backward.grad_logits), backward.weight = cut(backward.weight);
    run_backward(backend(), backward);
  }
  EXPECT_TRUE(whole.loss.same_bits(chunked.loss));
  EXPECT_TRUE(whole.grad.same_bits(chunked.grad));
}

class CrossEntropyEdge : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(CrossEntropyEdge, E14_HugeLogitsStayFinite) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    Problem got({4, 33}, dtype), want({4, 33}, dtype);
    for (Problem* p : {&got, &want}) {
      p->logits.each([&](int64_t t, int64_t v) { p->logits.set(t, v, (v + t) % 2 ? 1e4 : -1e4); });
      p->grad_loss.fill(1);
    }
    run(GetParam(), got);
    cross_entropy_ref(want.forward());
    cross_entropy_backward_ref(want.backward());
    testing::expect_near(got.loss, want.loss, "loss");
    // lse is kept in float: at 1e4 its last place is 1e-3, and so is the error of a probability.
    testing::expect_near(got.grad, want.grad, testing::Tolerance{1.6e-2, 1e-5}, "grad");
  }
}

// Wherever the largest stands, no other thread's words may be taken for it.
TEST_P(CrossEntropyEdge, E14_OneHugeLogitStaysFiniteInAnyPlace) {
  constexpr int64_t kWords = 300;
  Problem p({kWords, kWords}, Dtype::kF32);
  p.logits.each([&](int64_t t, int64_t v) { p.logits.set(t, v, v == t ? 1e4 : -1e4); });
  for (int64_t t = 0; t < kWords; ++t) p.target[t] = t;
  p.weighted = false;
  p.grad_loss.fill(1);
  run(GetParam(), p);
  for (int64_t t = 0; t < kWords; ++t) {
    ASSERT_EQ(p.loss.get(t, 0), 0) << "word " << t;
    ASSERT_EQ(p.lse.get(t, 0), 1e4) << "word " << t;
  }
}

TEST_P(CrossEntropyEdge, InfinitiesAndNan) {
  Problem p({5, 3}, Dtype::kF32);
  const double rows[5][3] = {
      {0, -kInf, 0}, {kInf, 0, 0}, {0, NAN, 0}, {-kInf, -kInf, -kInf}, {-kInf, 2, 3}};
  p.logits.each([&](int64_t t, int64_t v) { p.logits.set(t, v, rows[t][v]); });
  for (int t = 0; t < 5; ++t) p.target[t] = 0;
  p.weighted = false;
  p.grad_loss.fill(1);
  run(GetParam(), p);
  EXPECT_NEAR(p.loss.get(0, 0), std::log(2.0), 1e-6);
  EXPECT_EQ(p.grad.get(0, 1), 0);
  EXPECT_TRUE(std::isnan(p.loss.get(1, 0)));
  EXPECT_TRUE(std::isnan(p.loss.get(2, 0)));
  EXPECT_TRUE(std::isnan(p.grad.get(2, 0)));
  EXPECT_EQ(p.lse.get(3, 0), -kInf);
  EXPECT_EQ(p.loss.get(4, 0), kInf);  // The target is impossible.
  EXPECT_NEAR(p.grad.get(4, 0), -1, 1e-6);
}

TEST_P(CrossEntropyEdge, AnUnknownTargetGivesNan) {
  Problem p({4, 8}, Dtype::kF32);
  p.weighted = false;
  p.target[0] = 8, p.target[1] = -1, p.target[2] = 7, p.target[3] = kIgnore;
  run(GetParam(), p);
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(std::isnan(p.loss.get(t, 0)), t < 2) << t;
    EXPECT_EQ(std::isnan(p.grad.get(t, 5)), t < 2) << t;
  }
}

TEST_P(CrossEntropyEdge, OneGradientMayServeAllTokens) {
  Problem one({7, 9}, Dtype::kF32), each({7, 9}, Dtype::kF32);
  one.grad_loss.fill(0.25), each.grad_loss.fill(0.25);
  run(GetParam(), each);
  run_forward(GetParam(), one.forward());
  CrossEntropyBackward args = one.backward();
  args.grad_loss.ld = 0;
  run_backward(GetParam(), args);
  EXPECT_TRUE(one.grad.same_bits(each.grad));
}

TEST_P(CrossEntropyEdge, EqualLogitsCostTheLogOfTheirNumberAndItsSquare) {
  Problem p({3, 1000}, Dtype::kF32, 0.5f);
  p.weighted = false;
  p.logits.fill(0);
  run(GetParam(), p);
  const double log_v = std::log(1000.0);
  EXPECT_NEAR(p.loss.get(0, 0), log_v + 0.5 * log_v * log_v, 3e-5);
}

TEST(CrossEntropy, RefusesWhatItCannotMean) {
  Problem p({4, 8}, Dtype::kF32);
  const auto refused = [&](auto&& spoil) {
    CrossEntropy a = p.forward();
    CrossEntropyBackward b = p.backward();
    spoil(a);
    spoil(b);
    EXPECT_THROW(cross_entropy_cpu(a, serial), Error);
    EXPECT_THROW(cross_entropy_backward_cpu(b, serial), Error);
  };
  refused([](auto& a) { a.target = nullptr; });
  refused([](auto& a) { a.lse.rows = 3; });
  refused([](auto& a) { a.lse.dtype = Dtype::kBF16; });
  refused([](auto& a) { a.weight.cols = 2; });
  refused([](auto& a) { a.logits.ld = 7; });
  refused([](auto& a) { a.logits.dtype = Dtype::kF64; });
  refused([](auto& a) { a.z_loss = -1; });
  refused([](auto& a) { a.z_loss = NAN; });
}

std::vector<Case> all_cases() {
  const std::vector<Shape> shapes = {{0, 8},     {1, 1},       {3, 7},     {5, 512, 8},
                                     {13, 2048}, {6, 2049, 1}, {2, 50304}, {9, 1031}};
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
  return std::string(name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.tokens) + "_v" +
         std::to_string(s.words);
}
INSTANTIATE_TEST_SUITE_P(All, CrossEntropyTest, ::testing::ValuesIn(all_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(All, CrossEntropyEdge, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         testing::backend_name);

}  // namespace
}  // namespace troupe
