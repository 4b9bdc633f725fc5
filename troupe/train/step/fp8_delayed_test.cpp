// train.fp8.recipe delayed on ranks that are threads: all have the histories of one process.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr const char* kWide =
    "model: {layers: 2, width: 128, heads: 4, vocab: 200, max_positions: 64, ffn: 256, "
    "first_dense: 1, moe: {experts: 4, top_k: 2, hidden: 128, shared: {experts: 1, hidden: 256}}}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: BATCH, micro_batch: 1, steps: 10, precision: auto, fp8: {recipe: "
    "delayed, "
    "history: 3, FP8}, optimizer: {kind: adamw, lr: 0.01, eps: 1e-6}, schedule: {warmup: 0}}\n"
    "run: {device: cpu}\n"
    "checkpoint: {dir: run}\n";

constexpr int64_t kTrained = 4;  // steps: one more than a history has

struct DelayedRun {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> histories;
  int64_t saturated = 0;
};

DelayedRun delayed_run(const ResolvedRun& recipe,
                       const std::shared_ptr<const ParallelSetup>& setup) {
  const Faults none;
  Learner learner(recipe, c10::kCPU, none, setup);
  TrainState state;
  Interval interval;
  DelayedRun out;
  for (int64_t step = 0; step < kTrained; ++step) {
    const StepReport report = learner.step(feed_of(recipe, {}, *setup, step), state);
    out.losses.push_back(report.loss);
    interval.add(report, 0, 0);
    learner.evaluate(samples({}, 99, 0, setup->state.data_index() == 0 ? 3 : 0));
  }
  interval.add_other_ranks(setup->state.sum_over_all(), moe_units(recipe.model), c10::kCPU);
  out.saturated = interval.fp8_saturated().value_or(-1);
  require_equal_replicas(learner.store(), setup->state);
  learner.model().for_each_param(-1, [&](const std::string& name, const Param& p) {
    if (name.ends_with(".fp8.history")) out.histories[name] = p.value.clone();
  });
  return out;
}

struct DelayedLayout {
  std::string name, parallel;
  int ranks;
  std::string fp8 = "attention: true, ffn: true";
  int64_t batch = 8;

  Recipe recipe(bool of_one) const {
    std::string text = kWide;
    text.replace(text.find("FP8"), 3, fp8);
    text.replace(text.find("BATCH"), 5, std::to_string(batch));
    return recipe_of(of_one ? "" : "parallel: " + parallel + "\n", text.c_str());
  }
};

class DelayedLayouts : public ::testing::TestWithParam<DelayedLayout> {};

// The first step has scales of each rank's own values, which differ where values are far below the
// largest alone.
TEST_P(DelayedLayouts, Q8_21_RanksHaveTheHistoriesOfOneProcess) {
  const DelayedLayout& layout = GetParam();
  at::set_num_threads(1);
  const DelayedRun one =
      delayed_run(resolve_alone(layout.recipe(/*of_one=*/true)), std::make_shared<ParallelSetup>());
  std::mutex mutex;
  std::map<std::string, at::Tensor> seen;
  testing::in_threads(layout.ranks, {}, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun recipe = resolve(layout.recipe(/*of_one=*/false), world);
    const auto rank =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), recipe);
    const DelayedRun own = delayed_run(recipe, rank);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(own.losses[i], one.losses[i], 1e-3 * one.losses[i]) << "step " << i;
    }
    EXPECT_NEAR(static_cast<double>(own.saturated), static_cast<double>(one.saturated), 2);
    const std::lock_guard lock(mutex);
    for (const auto& [name, history] : own.histories) {
      const at::Tensor& want = one.histories.at(name);
      EXPECT_LT((history - want).abs().div(want).max().item<double>(), 0.1)
          << name << history << want;
      const auto [at, first] = seen.try_emplace(name, history);
      EXPECT_TRUE(at::equal(at->second, history)) << name << " differs between ranks";
    }
  });
  EXPECT_EQ(seen.size(), one.histories.size());
  for (const auto& [name, history] : one.histories) {
    EXPECT_TRUE(history.gt(0).all().item<bool>()) << name << history;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DelayedLayouts,
    ::testing::Values(DelayedLayout{"ddp_2", "{shard: none, expert: 1}", 2},
                      DelayedLayout{"full_2_ep_2", "{shard: full, expert: 2}", 2},
                      DelayedLayout{"tp_2", "{tensor: 2, shard: zero1, expert: 2}", 2, "ffn: true"},
                      DelayedLayout{"idle_2", "{shard: none, expert: 1}", 2, "ffn: true", 1},
                      DelayedLayout{"pp_2_dp_2", "{pipeline: 2, shard: zero1, expert: 2}", 4}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace troupe
