#include "troupe/ops/gated_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

constexpr int64_t kKeyHeads = 2, kHeads = 4, kKeyDim = 6, kValueDim = 5;

GatedDeltaInputs drawn(int64_t T, const at::TensorOptions& options) {
  return {at::randn({T, kKeyHeads, kKeyDim}, options), at::randn({T, kKeyHeads, kKeyDim}, options),
          at::randn({T, kHeads, kValueDim}, options), -at::rand({T, kHeads}, options),
          at::sigmoid(at::randn({T, kHeads}, options))};
}

GatedDeltaInputs rows_of(const GatedDeltaInputs& in, int64_t from, int64_t n) {
  const auto part = [&](const at::Tensor& x) { return x.narrow(0, from, n); };
  return {part(in.q_TGd), part(in.k_TGd), part(in.v_THe), part(in.g_TH), part(in.beta_TH)};
}

double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.cpu().to(at::kDouble) - b.cpu().to(at::kDouble)).abs().max().item<double>();
}

class GatedDeltaOp : public testing::DeviceTest {};

TEST_P(GatedDeltaOp, EqualsTheRecurrenceOverDocumentsOfAllLengths) {
  const std::vector<int64_t> lengths = {3, 150, 64, 1, 0, 65, 128};
  const GatedDeltaInputs in = drawn(411, device());
  const GatedDeltaResult got = gated_delta(in, {.lengths = lengths});
  const GatedDeltaResult want = gated_delta_ref(in, {.lengths = lengths});
  EXPECT_LT(largest(got.o_THe, want.o_THe), 2e-5);
  EXPECT_LT(largest(got.state, want.state), 2e-5);
}

TEST_P(GatedDeltaOp, ADocumentIsComputedAsIfItWereAlone) {
  const GatedDeltaInputs in = drawn(200, device());
  const at::Tensor both = gated_delta(in, {.lengths = {90, 110}}).o_THe;
  const at::Tensor second = gated_delta(rows_of(in, 90, 110), {.lengths = {110}}).o_THe;
  EXPECT_LT(largest(both.narrow(0, 90, 110), second), 1e-6);
  EXPECT_GT(largest(gated_delta(in, {.lengths = {200}}).o_THe.narrow(0, 90, 110), second), 1e-3);
}

TEST_P(GatedDeltaOp, GoesOnFromAState) {
  const GatedDeltaInputs in = drawn(130, device());
  const at::Tensor whole = gated_delta(in, {.lengths = {130}}).o_THe;
  at::Tensor state = gated_delta(rows_of(in, 0, 100), {.lengths = {100}}).state;
  for (int64_t t = 100; t < 130; ++t) {
    const GatedDeltaResult one = gated_delta(rows_of(in, t, 1), {.lengths = {1}, .state = state});
    EXPECT_LT(largest(one.o_THe, whole.narrow(0, t, 1)), 2e-5) << t;
    state = one.state;
  }
}

TEST_P(GatedDeltaOp, E1_NoTokens) {
  GatedDeltaInputs in = drawn(0, device());
  in.q_TGd.requires_grad_();
  const GatedDeltaResult r = gated_delta(in, {.lengths = {}});
  r.o_THe.sum().backward();
  EXPECT_EQ(r.o_THe.size(0), 0);
  EXPECT_EQ(in.q_TGd.grad().size(0), 0);
}
INSTANTIATE_TEST_SUITE_P(On, GatedDeltaOp, testing::devices(), testing::device_name);

TEST(GatedDeltaOp, AgreesWithTheNumericJacobian) {
  const std::vector<int64_t> lengths = {3, 66, 1};
  const at::TensorOptions wide(at::kDouble);
  Tensors leaves = {at::randn({70, 1, 2}, wide), at::randn({70, 1, 2}, wide),
                    at::randn({70, 2, 2}, wide), -at::rand({70, 2}, wide),
                    at::sigmoid(at::randn({70, 2}, wide))};
  for (at::Tensor& x : leaves) x.requires_grad_();
  testing::expect_gradients(
      [&](const Tensors& x) {
        return gated_delta({x[0], x[1], x[2], x[3], x[4]}, {.lengths = lengths}).o_THe;
      },
      leaves);
}

TEST(GatedDeltaOp, X8_FrozenInputsHaveNoGraph) {
  EXPECT_FALSE(gated_delta(drawn(9, at::kFloat), {.lengths = {9}}).o_THe.requires_grad());
}

TEST(GatedDeltaOp, RefusalsNameTheArgument) {
  const GatedDeltaInputs in = drawn(6, at::kFloat);
  TROUPE_EXPECT_REFUSAL(gated_delta(in, {.lengths = {5}}), "the documents have 5 tokens");
  GatedDeltaInputs bad = in;
  bad.k_TGd = in.k_TGd[0];
  TROUPE_EXPECT_REFUSAL(gated_delta(bad, {.lengths = {6}}), "q and k must be [T, G, d]");
  bad = in;
  bad.v_THe = in.v_THe.narrow(1, 0, 3);
  TROUPE_EXPECT_REFUSAL(gated_delta(bad, {.lengths = {6}}), "a multiple of the key heads");
  bad = in;
  bad.g_TH = in.g_TH.narrow(1, 0, 2);
  TROUPE_EXPECT_REFUSAL(gated_delta(bad, {.lengths = {6}}), "g and beta must be [T, H]");
  TROUPE_EXPECT_REFUSAL(gated_delta(in, {.lengths = {6}, .state = at::zeros({1, 2})}),
                        "gated_delta: state must be");
}

}  // namespace
}  // namespace troupe
