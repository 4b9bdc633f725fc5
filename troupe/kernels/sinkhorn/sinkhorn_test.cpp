#include "troupe/kernels/sinkhorn/sinkhorn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Shape {
  int64_t tokens, experts, choices = 2;
};

struct Problem {
  Problem(Shape s, Dtype type, double deviation)
      : shape(s),
        logits(type, s.tokens, s.experts, 1),
        u(wide(type), 1, s.tokens),
        v(wide(type), 1, s.experts),
        valid(s.tokens),
        ids(s.tokens * s.choices),
        iterations(1) {
    logits.fill_normal(7, deviation);
    for (size_t t = 0; t < valid.size(); ++t) valid[t] = t % 5 != 3;
  }
  Sinkhorn args() {
    Sinkhorn a{.logits = logits.view(),
               .choices = shape.choices,
               .valid = with_valid ? valid.data() : nullptr,
               .tolerance = tolerance,
               .max_iterations = max_iterations,
               .ids = ids.data(),
               .u = u.mut(),
               .v = v.mut(),
               .iterations = iterations.data()};
    workspace.emplace(workspace_bytes(a));
    a.workspace = workspace->data();
    return a;
  }
  std::vector<int32_t> choices() { return {ids.data(), ids.data() + ids.size()}; }

  Shape shape;
  bool with_valid = false;
  float tolerance = 1e-4f;
  int64_t max_iterations = 100;
  Matrix logits, u, v;
  Buffer<uint8_t> valid;
  Buffer<int32_t> ids, iterations;
  std::optional<Buffer<char>> workspace;
};

void run(Backend backend, Problem& p) {
  testing::run(backend, p.args(), sinkhorn_cpu, TROUPE_CUDA_PATH(sinkhorn_cuda));
}

double share_equal(Problem& a, Problem& b) {
  const auto x = a.choices(), y = b.choices();
  double equal = 0;
  for (size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i];
  return x.empty() ? 1 : equal / static_cast<double>(x.size());
}

void copy_logits(Problem& from, Problem& to) {
  from.logits.each([&](int64_t t, int64_t e) { to.logits.set(t, e, from.logits.get(t, e)); });
}

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class SinkhornTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Backend backend() const { return GetParam().backend; }
  Problem problem(double deviation) const {
    return {GetParam().shape, GetParam().dtype, deviation};
  }
};

// A fixed number of iterations, so that both stop at the same one.
TEST_P(SinkhornTest, R12_AgreesWithTheReference) {
  for (const bool masked : {false, true}) {
    Problem got = problem(1), want = problem(1);
    for (Problem* p : {&got, &want}) {
      p->with_valid = masked;
      p->tolerance = -1;
      p->max_iterations = 6;
    }
    run(backend(), got);
    sinkhorn_ref(want.args());
    EXPECT_EQ(got.iterations[0], want.iterations[0]);
    const testing::Tolerance bound = GetParam().dtype == Dtype::kF64
                                         ? testing::Tolerance{1e-9, 1e-9}
                                         : testing::Tolerance{1e-6, 2e-6};
    testing::expect_near(got.u, want.u, bound, "u");
    testing::expect_near(got.v, want.v, bound, "v");
    if (got.shape.tokens == 1) continue;  // Balanced, one token prefers no expert.
    // One of many choices may hang on a last bit.
    const double slots = static_cast<double>(got.ids.size());
    EXPECT_GE(share_equal(got, want), slots > 1000 ? 0.999 : 1.0);
  }
}

TEST_P(SinkhornTest, R12_ColumnsSumToOneOverE) {
  Problem p = problem(1);
  p.with_valid = true;
  run(backend(), p);
  const double E = static_cast<double>(p.shape.experts);
  for (int64_t e = 0; p.shape.tokens > 0 && e < p.shape.experts; ++e) {
    double sum = 0;
    for (int64_t t = 0; t < p.shape.tokens; ++t) {
      if (p.valid[t]) sum += std::exp(p.logits.get(t, e) + p.u.get(0, t) + p.v.get(0, e));
    }
    EXPECT_NEAR(sum * E, 1, 1e-5) << "column " << e;
  }
}

TEST_P(SinkhornTest, G4_EveryRunGivesTheSameBits) {
  Problem first = problem(2), second = problem(2);
  run(backend() == Backend::kCpuThreads ? Backend::kCpu : backend(), first);
  run(backend(), second);
  EXPECT_EQ(first.choices(), second.choices());
  EXPECT_TRUE(first.u.same_bits(second.u));
  EXPECT_TRUE(first.v.same_bits(second.v));
  EXPECT_EQ(first.iterations[0], second.iterations[0]);
}

TEST_P(SinkhornTest, G3_InvalidTokensTakeNoPart) {
  Problem masked = problem(1);
  masked.with_valid = true;
  run(backend(), masked);
  Problem other = problem(1);
  other.with_valid = true;
  for (int64_t t = 3; t < other.shape.tokens; t += 5) {
    for (int64_t e = 0; e < other.shape.experts; ++e) other.logits.set(t, e, NAN);
  }
  run(backend(), other);
  EXPECT_EQ(masked.choices(), other.choices());
  EXPECT_TRUE(masked.v.same_bits(other.v));
  for (int64_t t = 3; t < masked.shape.tokens; t += 5) {
    EXPECT_EQ(masked.ids[t * masked.shape.choices], -1);
    EXPECT_EQ(masked.u.get(0, t), 0);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (Shape s :
           {Shape{0, 8}, {1, 3}, {61, 7}, {500, 64}, {97, 300, 3}, {40, 1, 1}, {9, 9, 9}}) {
        cases.push_back({b, d, s});
      }
    }
  }
  return cases;
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(testing::name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.tokens) +
         "_e" + std::to_string(s.experts);
}
INSTANTIATE_TEST_SUITE_P(All, SinkhornTest, ::testing::ValuesIn(all_cases()), case_name);

class SinkhornRules : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(Problem& p) { troupe::run(GetParam(), p); }
};

// The limit that f64 reaches.
Problem limit_of(Problem& p) {
  Problem limit(p.shape, Dtype::kF64, 1);
  copy_logits(p, limit);
  limit.tolerance = 1e-10f;
  limit.max_iterations = 2000;
  sinkhorn_cpu(limit.args(), serial);
  return limit;
}

TEST_P(SinkhornRules, R12_ChoicesAreThoseOfTheLimit) {
  for (const double deviation : {0.1, 1.0, 3.0}) {
    Problem p({4096, 64, 1}, Dtype::kF32, deviation);
    run(p);
    Problem limit = limit_of(p);
    EXPECT_GE(share_equal(p, limit), 0.999) << "std " << deviation;
  }
}

TEST_P(SinkhornRules, R12_WideLogitsEndSoon) {
  Problem p({4096, 64, 1}, Dtype::kF32, 6);
  run(p);
  EXPECT_LE(p.iterations[0], 40);
  EXPECT_GT(p.iterations[0], 1);
}

TEST_P(SinkhornRules, R12_ShiftChangesNoChoice) {
  Problem p({1000, 32, 2}, Dtype::kF32, 1), shifted({1000, 32, 2}, Dtype::kF32, 1);
  p.logits.each([&](int64_t t, int64_t e) {
    const double z = std::round(p.logits.get(t, e) * 1024) / 1024;
    p.logits.set(t, e, z);
    shifted.logits.set(t, e, z + 256);
  });
  run(p);
  run(shifted);
  EXPECT_EQ(p.choices(), shifted.choices());
  EXPECT_EQ(p.iterations[0], shifted.iterations[0]);
}

TEST_P(SinkhornRules, R12_StopsAtTheGivenIterations) {
  Problem fixed({300, 16}, Dtype::kF32, 3), capped({300, 16}, Dtype::kF32, 3);
  fixed.tolerance = -1;
  fixed.max_iterations = 17;
  capped.tolerance = 0;
  capped.max_iterations = 3;
  run(fixed);
  run(capped);
  EXPECT_EQ(fixed.iterations[0], 17);
  EXPECT_EQ(capped.iterations[0], 3);
}

TEST_P(SinkhornRules, R12_BalancesWhatTheLogitsDoNot) {
  Problem p({2048, 16, 1}, Dtype::kF32, 1);
  p.logits.each(
      [&](int64_t t, int64_t e) { p.logits.set(t, e, p.logits.get(t, e) + (e == 3) * 50); });
  run(p);
  std::vector<int> counts(16);
  for (const int32_t id : p.choices()) ++counts[id];
  EXPECT_LT(counts[3], 2048 / 4);
}

TEST_P(SinkhornRules, E14_LargeLogitsStayFinite) {
  Problem p({64, 8, 1}, Dtype::kBF16, 1);
  p.logits.each([&](int64_t t, int64_t e) {  // One column is out of every float's reach.
    p.logits.set(t, e, e == 2 ? -1e4 : e == 5 ? 1e4 : p.logits.get(t, e));
  });
  Problem want({64, 8, 1}, Dtype::kBF16, 1);
  copy_logits(p, want);
  run(p);
  sinkhorn_ref(want.args());
  EXPECT_EQ(p.iterations[0], want.iterations[0]);
  testing::expect_near(p.v, want.v, {1e-6, 1e-6}, "v");
  EXPECT_GE(share_equal(p, want), 0.95);
}

TEST_P(SinkhornRules, E12_BrokenRowsHarmNoOther) {
  Problem p({100, 8, 3}, Dtype::kF32, 1);
  p.logits.set(4, 2, NAN);
  p.logits.set(50, 1, std::numeric_limits<double>::infinity());
  run(p);
  for (int64_t t = 0; t < 100; ++t) {
    const std::set<int32_t> ids(p.ids.data() + 3 * t, p.ids.data() + 3 * t + 3);
    EXPECT_EQ(ids.size(), 3u) << "token " << t;
    EXPECT_TRUE(0 <= *ids.begin() && *ids.rbegin() < 8) << "token " << t;
  }
  p.v.each([&](int64_t r, int64_t e) { EXPECT_TRUE(std::isfinite(p.v.get(r, e))); });
}

TEST_P(SinkhornRules, E15_NoValidTokenEndsAtOnce) {
  Problem p({20, 8}, Dtype::kF32, 1);
  p.with_valid = true;
  std::fill_n(p.valid.data(), 20, uint8_t{0});
  run(p);
  EXPECT_EQ(p.iterations[0], 0);
  EXPECT_EQ(p.choices(), std::vector<int32_t>(40, -1));
  p.v.each([&](int64_t r, int64_t e) { EXPECT_EQ(p.v.get(r, e), 0); });
}

TEST_P(SinkhornRules, E8_ManyExperts) {
  Problem p({5, 70000, 2}, Dtype::kF32, 1), want({5, 70000, 2}, Dtype::kF32, 1);
  p.max_iterations = want.max_iterations = 2;
  p.tolerance = want.tolerance = -1;
  run(p);
  sinkhorn_ref(want.args());
  testing::expect_near(p.v, want.v, {1e-6, 2e-5}, "v");  // Sums of 70,000 floats.
}

INSTANTIATE_TEST_SUITE_P(All, SinkhornRules,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

// Captured instead of run, a call that waited for the device would be refused, and the graph shows
// what it did: one kernel, no copy.
TEST(Sinkhorn, R12_IsOneKernelAndNoCopyToTheHost) {
  if (!testing::available(Backend::kCuda)) GTEST_SKIP() << "no GPU here";
#ifdef TROUPE_CUDA
  Problem p({500, 64}, Dtype::kF32, 1), want({500, 64}, Dtype::kF32, 1);
  const Sinkhorn args = p.args();
  cudaStream_t stream = nullptr;
  TROUPE_CUDA_CHECK(cudaStreamCreate(&stream));
  TROUPE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sinkhorn_cuda(args, stream);
  cudaGraph_t graph = nullptr;
  TROUPE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  TROUPE_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  ASSERT_EQ(nodes, 1u);
  cudaGraphNode_t node = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  TROUPE_CUDA_CHECK(cudaGraphGetNodes(graph, &node, &nodes));
  TROUPE_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  cudaGraphExec_t exec = nullptr;
  TROUPE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  TROUPE_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  TROUPE_CUDA_CHECK(cudaStreamSynchronize(stream));
  run(Backend::kCuda, want);
  EXPECT_EQ(p.choices(), want.choices());
  TROUPE_CUDA_CHECK(cudaGraphExecDestroy(exec));
  TROUPE_CUDA_CHECK(cudaGraphDestroy(graph));
  TROUPE_CUDA_CHECK(cudaStreamDestroy(stream));
#endif
}

TEST(Sinkhorn, RefusesBadArguments) {
  Problem p({6, 4, 5}, Dtype::kF32, 1);
  EXPECT_THROW(sinkhorn_cpu(p.args(), serial), Error) << "5 choices of 4";
  Problem q({6, 4}, Dtype::kF32, 1);
  q.max_iterations = 0;
  EXPECT_THROW(sinkhorn_cpu(q.args(), serial), Error);
  Problem r({6, 4}, Dtype::kF32, 1);
  Sinkhorn a = r.args();
  a.u = r.v.mut();
  EXPECT_THROW(sinkhorn_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
