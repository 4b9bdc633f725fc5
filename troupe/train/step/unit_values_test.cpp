// By which of a channel's two groups a run of stages sends what: over NCCL the first of them goes
// through host memory (distributed/group/stage_channels.h).
#include "troupe/train/step/unit_values.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "troupe/testing/torch/ranks.h"
#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

// Two stages of two replicas, over which the experts are spread: with room for half of the rows that
// come, so that every step is repeated.
constexpr const char* kStages =
    "model: {layers: 2, width: 32, heads: 4, vocab: 200, max_positions: 64, "
    "moe: {experts: 4, top_k: 2, hidden: 16, capacity: {budget: 0.5}}}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: 8, micro_batch: 1, steps: 10, precision: fp32}\n"
    "parallel: {pipeline: 2, expert: 2, shard: zero1}\n"
    "run: {device: cpu}\n"
    "checkpoint: {dir: run}\n";
constexpr int64_t kMessages =
    2 * 4;  // of a replica's pass over its microbatches, with its gradients

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

// Messages since the last call, of all these groups.
class Counter {
 public:
  explicit Counter(const Groups& groups) : groups_(groups) { take(); }
  int64_t take() {
    int64_t now = 0;
    for (const auto& group : groups_) now += group->count(Collective::kBarrier, 0).number;
    // What count() was called for is no message.
    const int64_t out = now - seen_ - std::ssize(groups_);
    seen_ = now;
    return out;
  }

 private:
  const Groups& groups_;
  int64_t seen_ = 0;
};

// The channels of `setup` with two groups each, as over NCCL.
void count_channels(World& world, ParallelSetup& setup, Groups& usual, Groups& first) {
  const auto make = [&world](Groups& all, const std::string& prefix) {
    return [&world, &all, prefix](const std::vector<int64_t>& ranks, const std::string& name) {
      return all.emplace_back(world.group(ranks, prefix + name));
    };
  };
  setup.channels = std::make_shared<StageChannels>(
      StageChannels::Shape{
          .ranks = setup.state.mesh().ranks_of(GroupKind::kPipeline, setup.state.rank()),
          .own = setup.state.stage_rank(),
          .links = {{0, 1}}},
      make(usual, "usual "), make(first, "first "));
}

void expect_first_by_first(World& world) {
  at::set_num_threads(1);
  const ResolvedRun recipe = resolve(recipe_of("", kStages), world);
  const auto setup =
      std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), recipe);
  Groups usual, first;
  count_channels(world, *setup, usual, first);
  const Faults nan("forward.1:2=nan");
  Learner learner(recipe, c10::kCPU, nan, setup);
  Counter by_usual(usual), by_first(first);
  const auto expect = [&](int64_t in_usual, int64_t in_first, const std::string& of) {
    EXPECT_EQ(by_usual.take(), in_usual) << of;
    EXPECT_EQ(by_first.take(), in_first) << of;
  };
  const Text text;
  TrainState state;
  const auto step = [&] {
    return learner.step(feed_of(recipe, text, *setup, state.done.steps), state);
  };
  EXPECT_GT(step().lost_rows, 0);
  expect(0, 2 * kMessages, "the first step, and its repetition");
  EXPECT_TRUE(step().finite);
  expect(2 * kMessages, 0, "a step");
  EXPECT_FALSE(step().first_bad.empty());
  expect(2 * kMessages, kMessages / 2 + kMessages,
         "a NaN, whose forward and backward are searched");
  EXPECT_TRUE(step().finite);
  expect(2 * kMessages, 0, "a step after it");
  const TokenBatch row = samples(text, 99, 0, 1);
  learner.evaluate(row);
  expect(0, 1, "the first evaluation");
  learner.evaluate(row);
  expect(1, 0, "an evaluation");
  // A prompt of as many tokens, and one more behind it.
  generator_of(learner).generate({TokenList(16, 1)},
                                 {.sample = {.temperature = 0}, .max_tokens = 2});
  expect(0, 2, "generation");
}

TEST(UnitValues, PL14_WhatNoPassHasComputedGoesByTheFirstGroups) {
  testing::in_threads(4, expect_first_by_first);
}

}  // namespace
}  // namespace troupe
