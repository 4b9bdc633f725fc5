#include "troupe/kernels/group_bias/group_bias.h"

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
  std::vector<int> counts;  // rows of each expert
  int64_t cols;
  int64_t pad = 0;
  int64_t rows() const {  // The bound: three rows more than there are.
    int64_t n = 3;
    for (const int count : counts) n += count;
    return n;
  }
};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

struct Problem {
  Problem(const Shape& s, Dtype d)
      : offset(s.counts.size() + 1),
        x(d, s.rows(), s.cols, s.pad),
        y(d, s.rows(), s.cols, s.pad),
        bias(d, s.counts.size(), s.cols),
        score(wide(d), s.rows(), 1),
        grad_y(d, s.rows(), s.cols, s.pad),
        grad_bias(wide(d), s.counts.size(), s.cols),
        grad_score(wide(d), s.rows(), 1) {
    offset[0] = 0;
    for (size_t e = 0; e < s.counts.size(); ++e) offset[e + 1] = offset[e] + s.counts[e];
    x.fill_normal(1);
    bias.fill_normal(2);
    score.fill_normal(3);
    grad_y.fill_normal(4);
    grad_bias.fill(77);  // Must be overwritten, by 0 where an expert has no rows.
    y.fill(77);
    grad_score.fill(77);
  }
  GroupBias forward(bool scored) {
    return {.x = x.view(),
            .bias = bias.view(),
            .y = y.mut(),
            .expert_offset = offset.data(),
            .score = scored ? score.view() : MatRef{}};
  }
  GroupBiasBackward backward(bool scored) {
    return {.grad_y = grad_y.view(),
            .grad_bias = grad_bias.mut(),
            .expert_offset = offset.data(),
            .score = scored ? score.view() : MatRef{},
            .bias = scored ? bias.view() : MatRef{},
            .grad_score = scored ? grad_score.mut() : MutRef{},
            .add_to_grad_score = false};
  }
  Buffer<int32_t> offset;
  Matrix x, y, bias, score, grad_y, grad_bias, grad_score;
};

void run(Backend backend, Problem& p, bool scored) {
  testing::run(backend, p.forward(scored), group_bias_cpu, TROUPE_CUDA_PATH(group_bias_cuda));
  testing::run(backend, p.backward(scored), group_bias_backward_cpu,
               TROUPE_CUDA_PATH(group_bias_backward_cuda));
}

class GroupBiasTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem() const { return {GetParam().shape, GetParam().dtype}; }
};

TEST_P(GroupBiasTest, X6_AgreesWithTheReference) {
  for (const bool scored : {false, true}) {
    Problem got = problem(), want = problem();
    run(GetParam().backend, got, scored);
    group_bias_ref(want.forward(scored));
    group_bias_backward_ref(want.backward(scored));
    testing::expect_near(got.y, want.y, "y");
    testing::expect_near(got.grad_bias, want.grad_bias, "grad_bias");
    testing::expect_near(got.grad_score, want.grad_score, "grad_score");
  }
}

TEST_P(GroupBiasTest, X6_TheGradientOfAnEmptyExpertIsZero) {
  Problem p = problem();
  run(GetParam().backend, p, true);
  for (size_t e = 0; e + 1 < p.offset.size(); ++e) {
    if (p.offset[e] != p.offset[e + 1]) continue;
    for (int64_t d = 0; d < p.grad_bias.cols(); ++d) {
      ASSERT_EQ(p.grad_bias.get(static_cast<int64_t>(e), d), 0);
    }
  }
}

TEST_P(GroupBiasTest, X6_OnesSumToTheRowCounts) {
  Problem p = problem();
  p.grad_y.fill(1);
  run(GetParam().backend, p, false);
  p.grad_bias.each([&](int64_t e, int64_t d) {
    ASSERT_EQ(p.grad_bias.get(e, d), p.offset[e + 1] - p.offset[e]);
  });
}

TEST_P(GroupBiasTest, G4_EveryRunGivesTheSameBits) {
  Problem first = problem(), second = problem();
  const Backend other = GetParam().backend == Backend::kCuda ? Backend::kCuda : Backend::kCpu;
  run(other, first, true);
  run(GetParam().backend, second, true);
  EXPECT_TRUE(first.y.same_bits(second.y));
  EXPECT_TRUE(first.grad_bias.same_bits(second.grad_bias));
  EXPECT_TRUE(first.grad_score.same_bits(second.grad_score));
}

TEST_P(GroupBiasTest, AddsToTheScoresGradientWhereAsked) {
  Problem p = problem(), plain = problem();
  run(GetParam().backend, plain, true);
  GroupBiasBackward args = p.backward(true);
  args.add_to_grad_score = true;
  testing::run(GetParam().backend, args, group_bias_backward_cpu,
               TROUPE_CUDA_PATH(group_bias_backward_cuda));
  const int64_t rows = p.offset[p.offset.size() - 1];
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_NEAR(p.grad_score.get(r, 0), 77 + plain.grad_score.get(r, 0), 1e-4);
  }
  for (int64_t r = rows; r < p.grad_score.rows(); ++r) ASSERT_EQ(p.grad_score.get(r, 0), 77);
}

TEST_P(GroupBiasTest, MayWriteOverItsInput) {
  Problem want = problem(), got = problem();
  run(GetParam().backend, want, true);
  GroupBias args = got.forward(true);
  args.y = got.x.mut();
  testing::run(GetParam().backend, args, group_bias_cpu, TROUPE_CUDA_PATH(group_bias_cuda));
  for (int64_t r = 0; r < got.offset[got.offset.size() - 1]; ++r) {
    for (int64_t d = 0; d < got.x.cols(); ++d) ASSERT_EQ(got.x.get(r, d), want.y.get(r, d));
  }
}

TEST(GroupBias, RefusesWhatItCannotMean) {
  Problem p({{2, 1}, 4}, Dtype::kF32);
  const auto refused = [&](auto&& spoil) {
    GroupBias a = p.forward(true);
    spoil(a);
    EXPECT_THROW(group_bias_cpu(a, serial), Error);
  };
  refused([](GroupBias& a) { a.bias.cols = 3; });
  refused([](GroupBias& a) { a.bias.dtype = Dtype::kBF16; });
  refused([](GroupBias& a) { a.y.rows = 1; });
  refused([](GroupBias& a) { a.score.dtype = Dtype::kF16; });
  refused([](GroupBias& a) { a.expert_offset = nullptr; });
  GroupBiasBackward b = p.backward(true);
  b.bias = {};
  EXPECT_THROW(group_bias_backward_cpu(b, serial), Error);
  b = p.backward(true);
  p.offset[2] = 1000;
  EXPECT_THROW(group_bias_backward_cpu(b, serial), Error);
}

std::vector<Case> all_cases() {
  const std::vector<Shape> shapes = {{{0}, 8},           {{1}, 1},
                                     {{0, 3, 0, 1}, 13}, {{127, 0, 1, 64}, 64, 8},
                                     {{300, 65}, 257},   {{2, 2, 2}, 512}};
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
  return std::string(name(backend)) + "_" + name(dtype) + "_e" + std::to_string(s.counts.size()) +
         "_r" + std::to_string(s.rows()) + "_d" + std::to_string(s.cols);
}
INSTANTIATE_TEST_SUITE_P(All, GroupBiasTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
