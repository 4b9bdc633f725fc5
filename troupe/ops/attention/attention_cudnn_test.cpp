// On a Hopper GPU: that attention by cuDNN is the function of ops/attention/attention, and the same
// bits each time. What it divides how is attention_slices_test's.
#include "troupe/ops/attention/attention_cudnn.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#ifdef TROUPE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <memory>
#include <new>
#include <numeric>
#include <set>

#include "troupe/ops/attention/attention_part_cudnn.h"
#include "troupe/ops/attention/kept_plans.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

struct Case {
  const char* name;
  int64_t heads, kv_heads, d, e;
  AttentionForm form;
  bool sinks = false;
  at::ScalarType type = at::kBFloat16;
};

AttentionForm causal(std::vector<int64_t> lengths, int64_t window = 0) {
  return {.scale = 0.09, .window = window, .lengths = std::move(lengths)};
}

AttentionForm over(std::vector<AttentionSegment> segments, int64_t window = 0) {
  return {.scale = 0.09, .window = window, .segments = std::move(segments)};
}
// Rows of 4 chunks each; first and last chunk are own, or the two between.
AttentionForm zigzag(int64_t rows, int64_t chunk, bool outer, int64_t window = 0) {
  std::vector<AttentionSegment> out;
  const int64_t first = outer ? 0 : 1, last = outer ? 3 : 2, keys = (last + 1) * chunk;
  for (int64_t b = 0; b < rows; ++b) {
    out.push_back({2 * b * chunk, chunk, b * keys, first * chunk});
    out.push_back({(2 * b + 1) * chunk, chunk, b * keys, last * chunk});
  }
  return over(std::move(out), window);
}
// Documents of many lengths, some begun elsewhere; some share keys, and keys 560 to 600 are none's.
AttentionForm parts(int64_t window = 0) {
  return over({{0, 100, 0, 0},
               {100, 37, 0, 211},
               {137, 1, 200, 130},
               {138, 65, 331, 3},
               {203, 150, 340, 70},
               {353, 300, 600, 7}},
              window);
}

std::vector<Case> cases() {
  return {
      {"one token", 4, 2, 64, 64, causal({1})},
      {"tokens of their own", 2, 2, 64, 64, causal({1, 1, 1})},
      {"two tokens", 2, 2, 64, 64, causal({2})},
      {"a prime", 4, 4, 128, 128, causal({1021})},
      {"grouped", 8, 2, 128, 128, causal({257, 257, 257})},
      {"one key head, wide", 4, 1, 256, 256, causal({300})},
      {"of 96", 4, 4, 96, 96, causal({200, 200})},
      {"of 12, padded", 2, 1, 12, 12, causal({70})},
      {"values of other width", 4, 4, 192, 128, causal({320, 320})},
      {"window", 4, 2, 64, 64, causal({515, 515}, 77)},
      {"window of one", 2, 2, 64, 64, causal({130}, 1)},
      {"window past the end", 2, 2, 64, 64, causal({130}, 200)},
      {"sinks", 4, 2, 64, 64, causal({200, 200}), true},
      {"sinks and window", 4, 2, 64, 64, causal({200, 200}, 50), true},
      {"documents", 4, 4, 128, 128, causal({1, 130, 0, 3, 700, 64, 65, 129})},
      {"documents, grouped, window, sinks", 8, 2, 64, 64, causal({1, 130, 0, 3, 700, 64}, 33),
       true},
      {"documents, values of other width", 4, 4, 192, 128, causal({100, 37, 300})},
      {"fp16", 4, 2, 128, 128, causal({300, 300}), true, at::kHalf},
      {"fp16, documents", 4, 2, 128, 128, causal({300, 1, 44}), false, at::kHalf},
      {"documents, twelve heads", 12, 4, 64, 64, causal({100, 90, 80, 70})},
      {"first and last chunks", 4, 4, 128, 128, zigzag(3, 256, true)},
      {"chunks between, grouped", 8, 2, 64, 64, zigzag(2, 100, false)},
      {"chunks, values of other width", 4, 4, 192, 128, zigzag(1, 64, true)},
      {"chunks, window and sinks", 4, 2, 64, 64, zigzag(2, 200, true, 77), true},
      {"parts", 4, 2, 64, 64, parts()},
      {"parts, window, sinks, fp16", 8, 2, 128, 128, parts(33), true, at::kHalf},
      {"parts, twelve heads", 12, 2, 96, 96, parts()},
  };
}

struct Leaves {
  Tensors x;  // q, k, v and, where there are, sinks
  AttentionForm form;
  at::Tensor grad;
};

Leaves leaves_of(const Case& c) {
  const std::vector<AttentionSegment>& segments = c.form.segments;
  const int64_t sum = std::accumulate(c.form.lengths.begin(), c.form.lengths.end(), int64_t{0});
  const int64_t T = segments.empty() ? sum : segments.back().q + segments.back().rows;
  const int64_t P = segments.empty() ? T : segments.back().k + segments.back().keys;
  const auto options = at::TensorOptions(at::kCUDA).dtype(c.type);
  Leaves out{{at::randn({T, c.heads, c.d}, options), at::randn({P, c.kv_heads, c.d}, options),
              at::randn({P, c.kv_heads, c.e}, options)},
             c.form,
             at::randn({T, c.heads, c.e}, options)};
  if (c.sinks) out.x.push_back(at::randn({c.heads}, options));
  return out;
}

// The output and the gradients of q, k, v and the sinks.
template <class F>
Tensors results(const Leaves& in, const at::TensorOptions& to, F&& f) {
  Tensors x;
  for (const at::Tensor& leaf : in.x) x.push_back(leaf.to(to).detach().clone().requires_grad_());
  AttentionForm form = in.form;
  if (x.size() > 3) form.sinks_H = x[3];
  const at::Tensor y = f(x[0], x[1], x[2], form);
  y.backward(in.grad.to(to));
  Tensors out = {y.detach()};
  for (const at::Tensor& leaf : x) out.push_back(leaf.grad());
  return out;
}

Tensors by_cudnn(const Leaves& in, int64_t limit = kAttentionBytes) {
  return results(in, in.x[0].options(),
                 [&](const auto&... x) { return attention_cudnn(x..., limit); });
}

Tensors on_the_cpu(const Leaves& in) {
  return results(in, at::TensorOptions(at::kCPU).dtype(at::kDouble),
                 [](const auto&... x) { return attention(x...); });
}

// Against the size of what was asked for, or 1: where only one key is seen, gradients are 0.
double apart(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kDouble), got = a.to(at::kCPU).to(at::kDouble);
  return ((got - want).norm() / want.norm().clamp_min(1)).item<double>();
}

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

// The output, the gradients of q, k, v; a sink's is a sum over tokens of what was rounded twice.
void expect_close(const Tensors& got, const Tensors& want, const Case& c) {
  ASSERT_EQ(got.size(), want.size());
  const double bound = c.type == at::kHalf ? 2e-3 : 1.6e-2;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(apart(got[i], want[i]), i == 4 ? 3 * bound : bound) << i;
  }
}

class AttentionCudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << why_no_cuda();
    const std::string why = why_not_cudnn({at::kBFloat16, 64, 64, 64}, {c10::kCUDA, 0});
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(AttentionCudnn, AgreesWithTheCpuInF64) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Leaves in = leaves_of(c);
    const Tensors got = by_cudnn(in);
    expect_close(got, on_the_cpu(in), c);
  }
}

// With a limit that cuts every sequence's heads apart, as in long sequences, and key heads too.
TEST_F(AttentionCudnn, SlicesAreTheWhole) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Leaves in = leaves_of(c);
    int64_t head = 0;
    for (const SequenceGroup& group :
         c.form.segments.empty() ? groups_of(c.form.lengths) : groups_of(c.form.segments)) {
      head = std::max(head, attention_head_bytes(group.length, group.keys));
    }
    const Tensors whole = by_cudnn(in);
    expect_same(whole, by_cudnn(in, 2 * (c.heads / c.kv_heads) * head));
    expect_same(whole, by_cudnn(in, 2 * 3 * c.heads * head));  // three sequences, and the rest
    expect_close(by_cudnn(in, 2 * head), on_the_cpu(in), c);
  }
}

TEST_F(AttentionCudnn, G4_TwentyTimesTheSameBits) {
  std::vector<Case> all = cases();
  all.push_back({"long", 8, 8, 128, 128, causal({4096, 4096, 4096})});
  all.push_back({"long, grouped", 16, 2, 128, 128, causal({4096, 4096})});
  all.push_back({"long chunks", 16, 16, 128, 128, zigzag(3, 1024, true)});
  for (const Case& c : all) {
    SCOPED_TRACE(c.name);
    const Leaves in = leaves_of(c);
    const Tensors first = by_cudnn(in);
    for (int i = 1; i < 20; ++i) expect_same(first, by_cudnn(in));
  }
}

TEST_F(AttentionCudnn, G4_AThousandTimesTheSameBits) {
  const Leaves in = leaves_of({"grouped", 16, 2, 128, 128, causal({4096, 1024})});
  const Tensors first = by_cudnn(in);
  for (int i = 1; i < 1000; ++i) expect_same(first, by_cudnn(in));
}

// Ring attention: three parts of the keys, joined, in f64 on the CPU.
TEST_F(AttentionCudnn, PartsJoinedAreTheWhole) {
  const std::vector<std::vector<AttentionSegment>> passes = {
      {{0, 40, 0, 0}, {40, 90, 0, 40, 40}, {200, 100, 300, 0}},
      {{40, 50, 40, 0}, {90, 40, 40, 50, 50}, {200, 100, 180, 120, 120}},
      {{90, 40, 90, 0}, {130, 70, 130, 0}}};
  const int64_t T = 300, P = 400;
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 4}, {8, 2}}) {
    const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
    const PartInputs in{at::randn({T, heads, 64}, options), at::randn({P, kv_heads, 64}, options),
                        at::randn({P, kv_heads, 64}, options)};
    const at::Tensor grad = at::randn({T, heads, 64}, options);
    const auto through = [&](const PartInputs& x) {
      AttentionPart sum = no_keys(x.q_THd, 64, {});
      for (const auto& segments : passes) {
        join(sum, attention_part(x, {0.09, 0, segments}));
      }
      const at::ScalarType type = x.q_THd.scalar_type();
      const at::ScalarType wide = sum.out_THe.scalar_type();
      sum.out_THe = sum.out_THe.to(type).to(wide);  // as ring attention keeps it
      Tensors out = {sum.out_THe, sum.lse_HT};
      for (const auto& segments : passes) {
        const PartGradients g = attention_part_backward(x, {0.09, 0, segments}, sum,
                                                        grad.to(x.q_THd.options()).to(wide));
        out.insert(out.end(), {g.q_THd, g.k_PGd, g.v_PGe});
      }
      return out;
    };
    for (const auto& segments : passes) EXPECT_TRUE(part_fits_cudnn(in, {0.09, 0, segments}));
    const Tensors got = through(in);
    const auto exact = [](const at::Tensor& x) { return x.to(at::kCPU).to(at::kDouble); };
    const Tensors want = through({exact(in.q_THd), exact(in.k_PGd), exact(in.v_PGe)});
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(apart(got[i], want[i]), 1.6e-2) << i;
    expect_same(got, through(in));
  }
}

TEST_F(AttentionCudnn, PartsThatAWindowCutsAreNotCudnns) {
  const at::Tensor x = at::randn({64, 1, 64}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  EXPECT_TRUE(part_fits_cudnn({x, x, x}, {1, 16, {{0, 64, 0, 0}}}));
  EXPECT_TRUE(part_fits_cudnn({x, x, x}, {1, 200, {{0, 64, 0, 64, 64}}}));
  EXPECT_FALSE(part_fits_cudnn({x, x, x}, {1, 100, {{0, 64, 0, 64, 64}}}));
  EXPECT_FALSE(part_fits_cudnn({x, x, x}, {1, 0, {{0, 64, 0, 10, 30}}}));
}

// Keys and values of one tensor, which has one gradient.
TEST_F(AttentionCudnn, JoinedIsApart) {
  for (const bool sinks : {false, true}) {
    const Leaves in = leaves_of({"", 8, 2, 64, 32, parts(), sinks});
    const Tensors want = by_cudnn(in);
    Leaves joined = in;
    joined.x = {in.x[0], at::cat({in.x[1].flatten(1), in.x[2].flatten(1)}, 1), in.x[0]};
    if (sinks) joined.x.push_back(in.x[3]);
    const Tensors got =
        results(joined, in.x[0].options(),
                [](const at::Tensor& q, const at::Tensor& kv, const at::Tensor&,
                   const AttentionForm& f) { return joined_attention(q, kv, 2, f); });
    EXPECT_TRUE(at::equal(got[0], want[0]));
    EXPECT_TRUE(at::equal(got[1], want[1]));
    EXPECT_TRUE(at::equal(got[2], at::cat({want[2].flatten(1), want[3].flatten(1)}, 1)));
    if (sinks) {
      EXPECT_TRUE(at::equal(got[4], want[4]));
    }
  }
}

// Queries and values as the parts of one product, whose rows are longer than theirs.
TEST_F(AttentionCudnn, ReadsRowsOfAnyStride) {
  const int64_t T = 130, H = 4, G = 2, d = 64;
  const at::Tensor product =
      at::randn({T, (H + 2 * G) * d}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  const auto parts = product.split_with_sizes({H * d, G * d, G * d}, 1);
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(1, {-1, d}); };
  for (const AttentionForm& form : {causal({65, 65}), causal({100, 30})}) {
    const at::Tensor apart_ =
        attention_cudnn(heads(parts[0]), heads(parts[1]), heads(parts[2]), form);
    const at::Tensor dense =
        attention_cudnn(heads(parts[0]).contiguous(), heads(parts[1]).contiguous(),
                        heads(parts[2]).contiguous(), form);
    EXPECT_TRUE(at::equal(apart_, dense));
  }
}

TEST_F(AttentionCudnn, IsWhatAttentionTakesUnlessItMayOnlyWarn) {
  for (const AttentionForm& form : {causal({257, 257, 257}), parts()}) {
    const Leaves of = leaves_of({"", 8, 2, 128, 128, form});
    expect_same(by_cudnn(of),
                results(of, of.x[0].options(), [](const auto&... x) { return attention(x...); }));
  }
  const Leaves in = leaves_of(cases()[4]);
  EXPECT_FALSE(fits_cudnn(in.x[0].to(at::kFloat), in.x[2], in.form));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  EXPECT_FALSE(fits_cudnn(in.x[0], in.x[2], in.form));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_F(AttentionCudnn, WhatItLeavesToPyTorchIsSaid) {
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_NE(why_not_cudnn({at::kFloat, 64, 64, 64}, gpu).find("bf16 and fp16"), std::string::npos);
  EXPECT_NE(why_not_cudnn({at::kHalf, 512, 64, 64}, gpu).find("heads of 256"), std::string::npos);
  EXPECT_NE(why_not_cudnn({at::kHalf, 64, 64, 65536}, gpu).find("65536 tokens"), std::string::npos);
  EXPECT_EQ(why_not_cudnn({at::kHalf, 64, 64, 32768}, gpu), "");
  EXPECT_EQ(why_not_cudnn({at::kHalf, 64, 64, 8192, 131072}, gpu), "");
}

TEST(AttentionWithoutCudnn, OnACpuIsItsOwn) {
  EXPECT_NE(why_not_cudnn({at::kBFloat16, 64, 64, 64}, c10::kCPU).find("cpu"), std::string::npos);
}

// Tells which of its keys are still there.
struct CountedPlan {
  CountedPlan(std::set<int>& all, int number) : there(all), key(number) { there.insert(key); }
  ~CountedPlan() { there.erase(key); }
  std::set<int>& there;
  int key;
};

TEST(KeptPlans, TheOneThatWasNotAskedForLongestGoes) {
  std::set<int> there;
  KeptPlans<int, CountedPlan> plans(3);
  const auto ask = [&](int key) {
    const auto make = [&] { return std::make_unique<CountedPlan>(there, key); };
    EXPECT_EQ(plans.get(key, /*captured=*/false, make).key, key);
  };
  for (const int key : {1, 2, 3, 1, 4}) ask(key);
  EXPECT_EQ(there, (std::set<int>{1, 3, 4}));
  for (const int key : {1, 3, 5}) ask(key);
  EXPECT_EQ(there, (std::set<int>{1, 3, 5}));
  EXPECT_THROW(
      plans.get(6, false, []() -> std::unique_ptr<CountedPlan> { throw std::bad_alloc(); }),
      std::bad_alloc);
  ask(7);
  EXPECT_LE(plans.size(), 3);
}

// Beside as many others as there may be; and no capture drops one.
TEST(KeptPlans, WhatAGraphCapturedOutlivesAllOthers) {
  std::set<int> there;
  KeptPlans<int, CountedPlan> plans(512);
  const auto ask = [&](int key, bool captured) {
    return &plans.get(key, captured, [&] { return std::make_unique<CountedPlan>(there, key); });
  };
  ask(1, /*captured=*/false);  // an eager step before the capture
  const CountedPlan* const one = ask(1, /*captured=*/true);
  for (int key = 10; key < 610; ++key) ask(key, false);
  EXPECT_TRUE(there.contains(1));
  EXPECT_EQ(ask(1, false), one);
  EXPECT_EQ(there.size(), 513);
  const size_t before = there.size();
  for (int key = 1000; key < 1020; ++key) ask(key, /*captured=*/true);
  EXPECT_EQ(there.size(), before + 20);
  for (int key = 2000; key < 2600; ++key) ask(key, false);
  EXPECT_EQ(there.size(), 512 + 21);
}

#ifdef TROUPE_CUDA
// By one shape more than are kept (cudnn_plans.cpp), some minutes: a plan takes 40 ms to 1 s.
TEST_F(AttentionCudnn, AGraphOutlivesTheShapesThatFollow) {
  const Leaves in = leaves_of({"", 2, 2, 64, 64, causal({700, 700})});
  const auto forward = [](const Leaves& of) {
    return attention_cudnn(of.x[0], of.x[1], of.x[2], of.form, kAttentionBytes);
  };
  const at::Tensor eager = forward(in);
  at::cuda::CUDAGraph graph;
  at::Tensor captured;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    c10::cuda::device_synchronize();
    graph.capture_begin();
    captured = forward(in);
    graph.capture_end();
  }
  for (int64_t length = 1; length <= 520; ++length) {
    forward(leaves_of({"", 1, 1, 64, 64, causal({length})}));
  }
  captured.zero_();
  c10::cuda::device_synchronize();
  graph.replay();
  c10::cuda::device_synchronize();
  EXPECT_TRUE(at::equal(eager, captured));
}

TEST_F(AttentionCudnn, AGraphOfItIsTheSame) {
  const Case c = {"", 16, 4, 128, 128, causal({2048, 2048})};  // two slices in flight
  const Leaves in = leaves_of(c);
  const int64_t limit = int64_t{64} << 20;
  const Tensors eager = by_cudnn(in, limit);
  at::cuda::CUDAGraph graph;
  Tensors captured;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    c10::cuda::device_synchronize();
    graph.capture_begin();
    captured = by_cudnn(in, limit);
    graph.capture_end();
  }
  for (int i = 0; i < 2; ++i) {
    for (const at::Tensor& x : captured) x.zero_();
    c10::cuda::device_synchronize();
    graph.replay();
    c10::cuda::device_synchronize();
    expect_same(eager, captured);
  }
}
#endif

}  // namespace
}  // namespace troupe
