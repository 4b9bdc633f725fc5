// An update in two parts that wait for no host, as a CUDA graph replays it, beside the eager one: the
// same weights, state and report, whatever the gradients are.
#include "troupe/train/step/step_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr const char* kModel =
    "model: {layers: 1, width: 16, heads: 2, vocab: 32, moe: {experts: 2, hidden: 16}}\n"
    "data: {sequence: 16}\ncheckpoint: {dir: run}\nrun: {device: cpu}\n"
    "train: {global_batch: 8, micro_batch: 8, steps: 100, clip: 1}\n";

struct Side {
  explicit Side(const std::string& more)
      : recipe(resolve_alone(recipe_of(more, kModel))),
        precision(recipe.train.precision),
        model(build_model(recipe.model, {})) {
    std::vector<NamedParam> params;
    model->for_each_param(-1, [&](const std::string& name, Param& p) {
      params.push_back({name, &p, 0});
    });
    const OptimizerBase& base = base_of(recipe.train.optimizer);
    const auto type = precision == Precision::kFp16 ? at::kHalf : at::kBFloat16;
    store = std::make_unique<ParamStore>(
        std::move(params), at::TensorOptions(type),
        [&](const NamedParam& named) { return bucket_key(base, named); }, setup.sharing);
    store->initialize_all(1);
    optimizer = std::visit([](const auto& c) { return c.build(); }, recipe.train.optimizer);
    make_state(*optimizer, base.moments, *store);
    state.loss_scale = start_of(recipe.train.loss_scale);
    update = std::make_unique<StepUpdate>(StepUpdate::Run{.recipe = recipe,
                                                          .precision = precision,
                                                          .setup = setup,
                                                          .faults = faults,
                                                          .model = *model,
                                                          .store = *store,
                                                          .optimizer = *optimizer});
  }

  // Every gradient `grad`, but one element `odd`.
  StepReport step(double loss, double grad, double odd, bool in_parts) {
    store->gradients().begin_step();
    for (size_t s = 0; s < store->slots().size(); ++s) {
      const Param& p = *store->slots()[s].named.param;
      const at::Tensor g = at::full(p.shown, grad, p.value.options().requires_grad(false));
      if (s == 1) g.view({-1})[0] = odd;
      store->gradients().add(static_cast<int64_t>(s), g);
    }
    store->gradients().end_step();
    StepOutput output;
    output.loss = at::scalar_tensor(loss, at::kDouble);
    StepReport report;
    if (in_parts) {
      const at::Tensor numbers = at::tensor(update->numbers(state), at::kDouble);
      const StepUpdate::Measured measured = update->measure(output, numbers);
      update->apply(measured, numbers);
      update->learn(measured.seen, {2, 3}, state, report);
    } else {
      update->run(output, {2, 3}, state, report);
    }
    ++state.done.steps;
    state.done.samples += 8;
    return report;
  }

  ResolvedRun recipe;
  Precision precision;
  ParallelSetup setup;
  Faults faults;
  std::unique_ptr<Model> model;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<StepUpdate> update;
  TrainState state;
};

void expect_same_bits(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.defined(), b.defined());
  EXPECT_TRUE(!a.defined() || a.equal(b));
}

void expect_same(const Side& a, const Side& b) {
  for (size_t i = 0; i < a.store->buckets().size(); ++i) {
    const Bucket &x = a.store->buckets()[i], &y = b.store->buckets()[i];
    expect_same_bits(x.own, y.own);
    expect_same_bits(x.low, y.low);
    expect_same_bits(x.master, y.master);
    for (size_t k = 0; k < x.state.size(); ++k) expect_same_bits(x.state[k], y.state[k]);
    EXPECT_EQ(x.stale, y.stale);
  }
  EXPECT_EQ(a.state.updates, b.state.updates);
  EXPECT_EQ(a.state.skipped, b.state.skipped);
  EXPECT_EQ(a.state.nonfinite, b.state.nonfinite);
  EXPECT_EQ(a.state.loss_scale.scale, b.state.loss_scale.scale);
}

void expect_same(const StepReport& a, const StepReport& b) {
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.finite, b.finite);
  EXPECT_EQ(a.spike, b.spike);
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.weight_decay, b.weight_decay);
  EXPECT_EQ(a.votes, b.votes);
  if (!a.finite) return;
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
}

class InParts : public ::testing::TestWithParam<const char*> {};

TEST_P(InParts, G4_ChangeTheBitsThatTheEagerUpdateChanges) {
  Side eager(GetParam()), parts(GetParam());
  ASSERT_TRUE(update_in_graph(eager.recipe.train.optimizer));
  for (int i = 0; i < 24; ++i) {
    const double loss = i == 5    ? NAN
                        : i == 11 ? INFINITY
                        : i == 12 ? -INFINITY
                        : i == 16 ? 9
                                  : 3 + 0.01 * std::sin(i);
    const double grad = i == 18 ? 2 : 1e-2 * (1.5 + std::cos(i));
    const double odd = i == 8 ? NAN : i == 13 ? INFINITY : grad;
    SCOPED_TRACE(i);
    const StepReport a = eager.step(loss, grad, odd, /*in_parts=*/false);
    expect_same(a, parts.step(loss, grad, odd, /*in_parts=*/true));
    expect_same(eager, parts);
    const bool bad = !std::isfinite(loss) || !std::isfinite(odd);
    EXPECT_EQ(a.finite, !bad);
    const bool spike = eager.recipe.train.spike.skip && (i == 16 || i == 18);
    EXPECT_EQ(a.skipped, bad || spike);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, InParts,
    ::testing::Values("{train: {precision: bf16}}",
                      "{train: {precision: bf16, spike: {sigmas: 20, window: 4, skip: true}}}",
                      "{train: {precision: fp16, loss_scale: {initial: 16, window: 5}}}",
                      "{train: {precision: bf16, optimizer: {kind: adamw, moments: int8, "
                      "weight_decay_end: 0.3, groups: [{names: '*norm*', lr_scale: 3}]}}}"));

}  // namespace
}  // namespace troupe
