#include "troupe/ops/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <tuple>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

// Targets 0, 3, 6, ... modulo V, the second one ignored.
at::Tensor targets(int64_t T, int64_t V) {
  at::Tensor target = at::arange(T, at::kLong).mul(3).remainder(V);
  if (T > 1) target[1] = -100;
  return target;
}

at::Tensor aten(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits, target, {}, /*reduction=*/0);
}

// The three sums of soft_targets.h in f64, of a whole head with a graph.
TaughtLoss taught_in_f64(const at::Tensor& logits, const at::Tensor& teacher,
                         const at::Tensor& target, const CrossEntropyOptions& o,
                         const SoftTargets& soft) {
  const at::Tensor weight = o.weight_T->to(at::kDouble) * target.ne(-100);
  const at::Tensor lse = at::logsumexp(logits, 1);
  const at::Tensor ce = (weight * (aten(logits, target) + o.z_loss * lse * lse)).sum();
  at::Tensor shown = teacher.to(at::kDouble);
  if (soft.top > 0) {
    const at::Tensor least = std::get<0>(at::topk(shown, soft.top, 1)).select(1, soft.top - 1);
    shown = shown.masked_fill(shown < least.unsqueeze(1), -1e30);
  }
  const double T = soft.temperature;
  const at::Tensor each = at::kl_div(at::log_softmax(logits / T, 1), at::log_softmax(shown / T, 1),
                                     /*reduction=*/0, /*log_target=*/true);
  const at::Tensor kl = (weight * each.sum(1)).sum();
  return {ce * (1 - soft.weight) + kl * (soft.weight * T * T), ce, kl};
}

bool is_near(const at::Tensor& ours, const at::Tensor& f64) {
  return at::allclose(ours.to(at::kDouble), f64, 1e-4, 1e-5);
}

class CrossEntropyOp : public testing::DeviceTest {};

TEST_P(CrossEntropyOp, AgreesWithAten) {
  const at::Tensor logits = at::randn({9, 37}, device()) * 3;
  const at::Tensor target = targets(9, 37).to(logits.device());
  const at::Tensor weight = at::rand({9}, device());
  const auto [loss, lse] = cross_entropy(logits, target, {});
  EXPECT_TRUE(at::allclose(loss, aten(logits, target), 1e-5, 1e-6));
  const at::Tensor kept = target.ne(-100).to(at::kFloat);
  EXPECT_TRUE(at::allclose(lse, at::logsumexp(logits, 1) * kept, 1e-5, 1e-6));
  const auto [weighed, same] = cross_entropy(logits, target, {.weight_T = weight, .z_loss = 0.1});
  const at::Tensor want = weight * (aten(logits, target) + 0.1 * lse * lse);
  EXPECT_TRUE(at::allclose(weighed, want, 1e-5, 1e-6));
}

TEST_P(CrossEntropyOp, TheGradientAgreesWithAtens) {
  at::Tensor ours = at::randn({9, 37}, device()).requires_grad_();
  at::Tensor theirs = ours.detach().clone().requires_grad_();
  const at::Tensor target = targets(9, 37).to(ours.device());
  (cross_entropy(ours, target, {}).first.sum() / 8).backward();
  (aten(theirs, target).sum() / 8).backward();
  EXPECT_TRUE(at::allclose(ours.grad(), theirs.grad(), 1e-5, 1e-7));
}

TEST_P(CrossEntropyOp, TakesAnyStrides) {
  const at::Tensor logits = at::randn({37, 9}, device()).t();
  const at::Tensor target = targets(9, 37).to(logits.device());
  EXPECT_TRUE(cross_entropy(logits, target, {})
                  .first.equal(cross_entropy(logits.contiguous(), target, {}).first));
}

TEST_P(CrossEntropyOp, TheHeadInChunksIsTheHeadInOnePiece) {
  const at::Tensor data = at::randn({11, 8}, device()), words = at::randn({37, 8}, device());
  const at::Tensor target = targets(11, 37).to(data.device());
  const CrossEntropyOptions o{.weight_T = at::rand({11}, device()), .z_loss = 0.01};
  at::Tensor x = data.clone().requires_grad_(), w = words.clone().requires_grad_();
  (cross_entropy(at::matmul(x, w.t()), target, o).first.sum() * 0.25).backward();
  for (const int64_t chunk : {1, 4, 11, 100}) {
    at::Tensor cx = data.clone().requires_grad_(), cw = words.clone().requires_grad_();
    const auto [loss, lse] = linear_cross_entropy(cx, cw, target, o, chunk);
    (loss * 0.25).backward();
    EXPECT_TRUE(at::allclose(cx.grad(), x.grad(), 1e-4, 1e-6)) << chunk;
    EXPECT_TRUE(at::allclose(cw.grad(), w.grad(), 1e-4, 1e-6)) << chunk;
    EXPECT_EQ(lse.sizes(), at::IntArrayRef({11}));
  }
}

TEST_P(CrossEntropyOp, BesideATeacherItIsTheFormulaInF64) {
  const at::Tensor data = at::randn({11, 8}, device()), words = at::randn({37, 8}, device());
  const at::Tensor teacher = at::randn({11, 37}, device()) * 2;
  const at::Tensor target = targets(11, 37).to(data.device());
  at::Tensor weight = at::rand({11}, device());
  weight[3] = 0;  // a masked target
  const CrossEntropyOptions o{.weight_T = weight, .z_loss = 0.01};
  const auto logits = [&](int64_t from, int64_t n) { return teacher.narrow(0, from, n); };
  for (const auto& [share, temperature, top] :
       {std::tuple(0.3, 1., 0), std::tuple(0.7, 2., 0), std::tuple(1., 0.5, 5)}) {
    const SoftTargets soft{logits, share, temperature, top};
    at::Tensor x = data.to(at::kDouble).requires_grad_(),
               w = words.to(at::kDouble).requires_grad_();
    const TaughtLoss want = taught_in_f64(at::matmul(x, w.t()), teacher, target, o, soft);
    (want.loss * 0.25).backward();
    for (const int64_t chunk : {1, 4, 100}) {
      at::Tensor cx = data.clone().requires_grad_(), cw = words.clone().requires_grad_();
      const TaughtLoss got = taught_cross_entropy(cx, cw, target, o, soft, chunk);
      (got.loss * 0.25).backward();
      EXPECT_TRUE(is_near(got.loss, want.loss)) << got.loss << " and " << want.loss;
      EXPECT_TRUE(is_near(got.ce, want.ce)) << got.ce << " and " << want.ce;
      EXPECT_TRUE(is_near(got.kl, want.kl)) << got.kl << " and " << want.kl;
      EXPECT_TRUE(is_near(cx.grad(), x.grad())) << share << ' ' << chunk;
      EXPECT_TRUE(is_near(cw.grad(), w.grad())) << share << ' ' << chunk;
      EXPECT_EQ(cx.grad()[1].abs().sum().item<float>(), 0);  // an ignored target
      EXPECT_EQ(cx.grad()[3].abs().sum().item<float>(), 0);
    }
  }
}

TEST_P(CrossEntropyOp, ATeacherOfWeight0ChangesNoBit) {
  const at::Tensor data = at::randn({11, 8}, device()), words = at::randn({37, 8}, device());
  const at::Tensor teacher = at::randn({11, 37}, device());
  const at::Tensor target = targets(11, 37).to(data.device());
  const SoftTargets soft{[&](int64_t from, int64_t n) { return teacher.narrow(0, from, n); }, 0.,
                         3., 0};
  at::Tensor x = data.clone().requires_grad_(), w = words.clone().requires_grad_();
  const at::Tensor plain = linear_cross_entropy(x, w, target, {}, 4).first;
  plain.backward();
  at::Tensor tx = data.clone().requires_grad_(), tw = words.clone().requires_grad_();
  const TaughtLoss taught = taught_cross_entropy(tx, tw, target, {}, soft, 4);
  taught.loss.backward();
  EXPECT_TRUE(taught.loss.equal(plain));
  EXPECT_TRUE(tx.grad().equal(x.grad()));
  EXPECT_TRUE(tw.grad().equal(w.grad()));
  EXPECT_GT(taught.kl.item<float>(), 0);
}

TEST_P(CrossEntropyOp, TheHeadInManyBf16ChunksKeepsTheTablesGradient) {
  const at::Tensor data = at::randn({96, 32}, device()).to(at::kBFloat16);
  const at::Tensor words = at::randn({40, 32}, device()).to(at::kBFloat16);
  const at::Tensor target = targets(96, 40).to(data.device());
  at::Tensor x = data.to(at::kFloat).requires_grad_(), w = words.to(at::kFloat).requires_grad_();
  linear_cross_entropy(x, w, target, {}, 96).first.backward();
  at::Tensor cx = data.clone().requires_grad_(), cw = words.clone().requires_grad_();
  linear_cross_entropy(cx, cw, target, {}, 3).first.backward();
  EXPECT_EQ(cw.grad().scalar_type(), at::kBFloat16);
  EXPECT_LT((cw.grad().to(at::kFloat) - w.grad()).norm().item<double>(),
            2e-2 * w.grad().norm().item<double>());  // bf16 logits
}

TEST_P(CrossEntropyOp, E1_NoTokens) {
  at::Tensor x = at::randn({0, 8}, device()).requires_grad_();
  at::Tensor w = at::randn({5, 8}, device()).requires_grad_();
  const at::Tensor target = at::arange(0, at::kLong).to(x.device());
  linear_cross_entropy(x, w, target, {}).first.backward();
  EXPECT_TRUE(w.grad().eq(0).all().item<bool>());
  at::Tensor logits = at::randn({0, 5}, device()).requires_grad_();
  cross_entropy(logits, target, {}).first.sum().backward();
  EXPECT_EQ(logits.grad().sizes(), logits.sizes());
}

INSTANTIATE_TEST_SUITE_P(On, CrossEntropyOp, testing::devices(), testing::device_name);

at::Tensor input(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

TEST(CrossEntropyGradient, AgreesWithTheNumericJacobian) {
  const CrossEntropyOptions o{.weight_T = at::rand({4}, at::kDouble), .z_loss = 0.3};
  testing::expect_gradients(
      [&](const Tensors& x) { return cross_entropy(x[0], targets(4, 5), o).first; },
      {input({4, 5})});
  testing::expect_gradients(
      [&](const Tensors& x) { return linear_cross_entropy(x[0], x[1], targets(4, 5), o, 3).first; },
      {input({4, 3}), input({5, 3})});
}

TEST(CrossEntropyGradient, BackwardOfAGraphThatIsKeptIsThatOfTheLastOne) {
  const at::Tensor x = input({4, 3}), w = input({5, 3});
  const at::Tensor loss = linear_cross_entropy(x, w, targets(4, 5), {}).first * 0.3;
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first_x = x.grad().clone(), first_w = w.grad().clone();
  x.mutable_grad().reset();
  w.mutable_grad().reset();
  loss.backward();
  EXPECT_TRUE(x.grad().equal(first_x));
  EXPECT_TRUE(w.grad().equal(first_w));
}

TEST(CrossEntropyGradient, X8_AFrozenHeadGetsNone) {
  const at::Tensor x = input({4, 3}), w = at::randn({5, 3}, at::kDouble);
  linear_cross_entropy(x, w, targets(4, 5), {}).first.backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(CrossEntropyRefusal, NamesTheArgument) {
  const at::Tensor logits = at::ones({4, 5}), target = targets(4, 5);
  TROUPE_EXPECT_REFUSAL(cross_entropy(logits[0], target, {}), "cross_entropy: logits");
  TROUPE_EXPECT_REFUSAL(cross_entropy(logits, target.narrow(0, 0, 3), {}), "cross_entropy: target");
  TROUPE_EXPECT_REFUSAL(cross_entropy(logits, target.to(at::kInt), {}), "cross_entropy: target");
  TROUPE_EXPECT_REFUSAL(cross_entropy(logits, target, {.weight_T = at::ones({5})}),
                        "cross_entropy: weight");
  TROUPE_EXPECT_REFUSAL(cross_entropy(logits, target, {.z_loss = -1}), "z_loss");
  TROUPE_EXPECT_REFUSAL(linear_cross_entropy(logits, at::ones({7, 4}), target, {}),
                        "linear_cross_entropy: weight");
  TROUPE_EXPECT_REFUSAL(linear_cross_entropy(logits, at::ones({7, 5}), target, {}, 0),
                        "linear_cross_entropy: chunk");
}

}  // namespace
}  // namespace troupe
