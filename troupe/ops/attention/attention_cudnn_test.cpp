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

#include <numeric>

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
  };
}

struct Leaves {
  Tensors x;  // q, k, v and, where there are, sinks
  AttentionForm form;
  at::Tensor grad;
};

Leaves leaves_of(const Case& c) {
  const int64_t T = std::accumulate(c.form.lengths.begin(), c.form.lengths.end(), int64_t{0});
  const auto options = at::TensorOptions(at::kCUDA).dtype(c.type);
  Leaves out{{at::randn({T, c.heads, c.d}, options), at::randn({T, c.kv_heads, c.d}, options),
              at::randn({T, c.kv_heads, c.e}, options)},
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
    for (const SequenceGroup& group : groups_of(c.form.lengths)) {
      head = std::max(head, attention_head_bytes(group.length));
    }
    const Tensors whole = by_cudnn(in);
    expect_same(whole, by_cudnn(in, 2 * (c.heads / c.kv_heads) * head));
    expect_close(by_cudnn(in, 2 * head), on_the_cpu(in), c);
  }
}

TEST_F(AttentionCudnn, G4_TwentyTimesTheSameBits) {
  std::vector<Case> all = cases();
  all.push_back({"long", 8, 8, 128, 128, causal({4096, 4096, 4096})});
  all.push_back({"long, grouped", 16, 2, 128, 128, causal({4096, 4096})});
  for (const Case& c : all) {
    SCOPED_TRACE(c.name);
    const Leaves in = leaves_of(c);
    const Tensors first = by_cudnn(in);
    for (int i = 1; i < 20; ++i) expect_same(first, by_cudnn(in));
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
  const Leaves in = leaves_of(cases()[4]);
  const Tensors ours = by_cudnn(in);
  expect_same(ours,
              results(in, in.x[0].options(), [](const auto&... x) { return attention(x...); }));
  EXPECT_FALSE(fits_cudnn(in.x[0].to(at::kFloat), in.x[2], in.form));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  EXPECT_FALSE(fits_cudnn(in.x[0], in.x[2], in.form));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_F(AttentionCudnn, WhatItLeavesToPyTorchIsSaid) {
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_NE(why_not_cudnn({at::kFloat, 64, 64, 64}, gpu).find("bf16 and fp16"), std::string::npos);
  EXPECT_NE(why_not_cudnn({at::kHalf, 512, 64, 64}, gpu).find("heads of 256"), std::string::npos);
  EXPECT_NE(why_not_cudnn({at::kHalf, 64, 64, 32768}, gpu).find("32768 tokens"), std::string::npos);
}

TEST(AttentionWithoutCudnn, OnACpuIsItsOwn) {
  EXPECT_NE(why_not_cudnn({at::kBFloat16, 64, 64, 64}, c10::kCPU).find("cpu"), std::string::npos);
}

#ifdef TROUPE_CUDA
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
