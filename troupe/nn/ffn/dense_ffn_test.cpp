// Dense feed-forwards and shared experts with 8-bit operands (train.fp8.ffn).
#include "troupe/nn/ffn/dense_ffn.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>

#include "troupe/distributed/world/world.h"
#include "troupe/nn/moe/shared_expert.h"
#include "troupe/ops/moe_ffn/e4m3_groups_test.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kTokens = 150, kWidth = 128, kHidden = 256;

// y, then the gradients of x, w1 and w2.
using Results = std::array<at::Tensor, 4>;
constexpr const char* kResults[] = {"y", "dx", "dw1", "dw2"};

at::Tensor in_f64(const at::Tensor& t) {
  return t.detach().to(at::kDouble);
}

// moe_ffn_fp8.h's formulas for one SwiGLU expert that all rows take with weight 1, in f64; sides
// are multiples of 128, so that no group reaches from gates to ups.
Results by_definition(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2,
                      const at::Tensor& dy) {
  const at::NoGradGuard no_grad;
  const int64_t F = w2.size(1);
  const Rounded x8 = round_groups(in_f64(x)), dy8 = round_groups(in_f64(dy));
  const at::Tensor W1 = blocks(in_f64(w1)), W2 = blocks(in_f64(w2));
  const at::Tensor H = at::mm(x8.value(), W1.t());
  const at::Tensor gate = H.slice(1, 0, F), up = H.slice(1, F);
  const at::Tensor sigma = at::sigmoid(gate), silu = gate * sigma, A = silu * up;
  const at::Tensor dA = at::mm(dy8.value(), W2);
  const at::Tensor dH = at::cat({dA * up * (sigma + silu * (1 - sigma)), dA * silu}, 1);
  return {at::mm(tiles(A), W2.t()), at::mm(tiles(dH), W1),
          at::mm(blocks(x8.scale * dH).t(), x8.unscaled),
          at::mm(dy8.unscaled.t(), blocks(dy8.scale * A))};
}

template <class Module>
void fill(Module& module) {
  for_each_param(module, "ffn", [](const std::string& name, Param& p) {
    p.init = {.kind = Init::kNormal, .std = 0.1};
    p.allocate(at::TensorOptions(at::kFloat));
    initialize(p, name, 1);
  });
}

template <class Module>
Results results(Module& module, const at::Tensor& x_in, const at::Tensor& dy, int64_t all) {
  const at::Tensor x = x_in.detach().clone().requires_grad_();
  for (const Param* p : {&module.w1, &module.w2}) p->value.mutable_grad().reset();
  const at::Tensor y = module.forward(x, all);
  y.backward(dy);
  return {y.detach(), x.grad(), module.w1.value.grad().clone(), module.w2.value.grad().clone()};
}

ModelConfig model_of(FfnAct act = FfnAct::kSwiglu) {
  ModelConfig c;
  c.layers = 2;
  c.width = kWidth;
  c.heads = 4;
  c.ffn = kHidden;
  c.act = act;
  return c;
}

SharedExpert shared_of(const TensorParts& parts = {}) {
  ExpertsConfig routed;
  routed.hidden = kHidden;
  return SharedExpert({.experts = 1}, routed, kWidth, 2, parts);
}

void expect_near(const Results& got, const Results& want, const char* what) {
  for (int i = 0; i < 4; ++i) EXPECT_LT(distance(got[i], want[i]), 2e-3) << what << kResults[i];
}

template <class Module>
void expect_the_definition(Module& module, const char* what) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({kTokens, kWidth}, at::kFloat),
                   dy = at::randn({kTokens, kWidth}, at::kFloat);
  const Results unrounded = results(module, x, dy, kTokens);
  module.compute_in_fp8({});
  const Results got = results(module, x, dy, kTokens);
  expect_near(got, by_definition(x, module.w1.value, module.w2.value, dy), what);
  for (int i = 0; i < 4; ++i) {
    EXPECT_GT(distance(got[i], unrounded[i]), 0.01) << what << kResults[i] << ": not rounded";
  }
  module.keep_rounded_weights(true);
  for (int call = 0; call < 2; ++call) {
    const Results kept = results(module, x, dy, kTokens);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(kept[i], got[i])) << what << kResults[i];
  }
  module.keep_rounded_weights(false);
}

TEST(DenseFfn, Q8_18_InFp8EqualsTheDefinitionInOutputAndGradients) {
  DenseFfn ffn(model_of(), kHidden);
  fill(ffn);
  expect_the_definition(ffn, "dense ");
}

TEST(DenseFfn, Q8_18_ASharedExpertInFp8EqualsTheDefinition) {
  SharedExpert shared = shared_of();
  fill(shared);
  expect_the_definition(shared, "shared ");
}

// What no tensor core takes is rounded as well.
TEST(DenseFfn, Q8_18_OtherActivationsAreEmulated) {
  for (const FfnAct act : {FfnAct::kGelu, FfnAct::kGeglu}) {
    DenseFfn ffn(model_of(act), kHidden);
    fill(ffn);
    const at::Tensor x = at::randn({kTokens, kWidth}, at::kFloat);
    const Results wide = results(ffn, x, x, kTokens);
    ffn.compute_in_fp8({});
    const Results got = results(ffn, x, x, kTokens);
    for (int i = 0; i < 4; ++i) {
      EXPECT_GT(distance(got[i], wide[i]), 0.01) << kResults[i];
      EXPECT_LT(distance(got[i], wide[i]), 0.1) << kResults[i];
    }
  }
}

// Over two ranks each has half of the hidden width, whose groups are those of the whole; gradients
// of the weights are made while those of x travel.
template <class Make>
void expect_one_process(const Make& make, const char* what) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({kTokens, kWidth}, at::kFloat),
                   dy = at::randn({kTokens, kWidth}, at::kFloat);
  auto whole = make(TensorParts());
  fill(whole);
  const Results want = by_definition(x, whole.w1.value, whole.w2.value, dy);
  std::mutex mutex;
  in_threads(2, [&](World& world) {
    const TensorParts parts{.sharding = TokenSharding(world.group(world.all()->ranks(), "tensor")),
                            .split_shared = true};
    auto module = make(parts);
    fill(module);
    module.compute_in_fp8({});
    const TokenRange own = parts.sharding.own(kTokens);
    const int64_t F = kHidden / 2, from = parts.sharding.rank() * F;
    const Results got = results(module, x.narrow(0, own.from, own.count),
                                dy.narrow(0, own.from, own.count), kTokens);
    const at::Tensor dw1 = want[2].view({2, kHidden, kWidth}).narrow(1, from, F);
    const std::lock_guard<std::mutex> lock(mutex);
    expect_near(got,
                {want[0].narrow(0, own.from, own.count), want[1].narrow(0, own.from, own.count),
                 dw1.reshape({2 * F, kWidth}), want[3].narrow(1, from, F)},
                what);
  });
}

TEST(DenseFfn, Q8_18_OverTensorRanksInFp8IsOneProcess) {
  expect_one_process([](const TensorParts& parts) { return DenseFfn(model_of(), kHidden, parts); },
                     "dense ");
  expect_one_process(shared_of, "shared ");
}

TEST(DenseFfn, Q8_18_RefusesBiasesAndCutGroups) {
  ModelConfig c = model_of();
  c.bias = true;
  DenseFfn biased(c, kHidden);
  TROUPE_EXPECT_REFUSAL(biased.compute_in_fp8({}), "biases");
  DenseFfn narrow(model_of(), 192);
  TROUPE_EXPECT_REFUSAL(narrow.compute_in_fp8({}), "192");
}

}  // namespace
}  // namespace troupe
