#include "troupe/train/layout/resolved_run.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "troupe/testing/torch/ranks.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr const char* kNano =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64, moe: {experts: 4, "
    "hidden: 32}}\n"
    "data: {sequence: 16}\ntrain: {global_batch: 12, steps: 10}\n"
    "checkpoint: {dir: run}\nrun: {device: cpu}\n";

TEST(ResolvedRun, OneProcessHasTheDefaultLayoutWithAllAxesOne) {
  const Recipe recipe =
      recipe_of("parallel: {expert: 4, overlap: experts, backend: gloo}\n", kNano);
  const ResolvedRun run = resolve_alone(recipe);
  ParallelConfig want = with_closed_axes({});
  want.backend = CommBackend::kGloo;
  EXPECT_TRUE(same(run.parallel, want));
  EXPECT_TRUE(same(run.given_parallel, recipe.parallel));
  EXPECT_TRUE(same(run.model, recipe.model));
}

TEST(ResolvedRun, ThePlanIsThatOfTheRecipeWithTheSettledMicrobatch) {
  const ResolvedRun open = resolve_alone(recipe_of("", kNano));
  EXPECT_EQ(open.plan.batch, 12);
  EXPECT_EQ(open.plan.micro_batch, 12);  // 192 tokens
  EXPECT_EQ(open.train.micro_batch, 12);
  EXPECT_EQ(open.plan.run.samples, 120);
  const ResolvedRun given = resolve_alone(recipe_of("train: {micro_batch: 3}\n", kNano));
  EXPECT_EQ(given.plan.micro_batch, 3);
  EXPECT_EQ(given.plan.run.samples, 120);
}

// Between what one sequence and what all twelve of a batch need.
TEST(ResolvedRun, AnOpenMicrobatchOfATrainingFitsItsMemory) {
  const Recipe recipe = recipe_of("model: {vocab: 4096}\ndata: {sequence: 64}\n", kNano);
  const auto needs = [&](int64_t sequences) {
    Recipe with = recipe;
    with.train.micro_batch = sequences;
    return needed_memory(with, /*on_gpu=*/false);
  };
  const double some = (needs(1) + needs(12)) / 2;
  const ResolvedRun run = resolve_alone(recipe, some);
  EXPECT_LT(run.plan.micro_batch, 12);
  EXPECT_EQ(run.train.micro_batch, run.plan.micro_batch);
  EXPECT_NE(run.micro_why.find("12 would need"), std::string::npos) << run.micro_why;
  EXPECT_EQ(resolve_alone(recipe, 0).plan.micro_batch, 12);  // unknown
}

// No key of the layout is left open, every rank has rank 0's, and the mesh is made of it.
TEST(ResolvedRun, RanksAgreeOnOneLayout) {
  const Recipe recipe = recipe_of("parallel: {expert: 2}\n", kNano);
  std::mutex mutex;
  std::vector<ResolvedRun> runs;
  testing::in_threads(2, [&](World& world) {
    const ResolvedRun run = resolve(recipe, world);
    const ParallelSetup setup(std::shared_ptr<World>(&world, [](World*) {}), run);
    EXPECT_EQ(setup.state.mesh().shape().expert, run.parallel.expert);
    const std::lock_guard lock(mutex);
    runs.push_back(run);
  });
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_TRUE(same(runs[0].parallel, runs[1].parallel));
  EXPECT_NE(runs[0].parallel.shard, ShardKind::kAuto);
  EXPECT_EQ(runs[0].parallel.tensor, 1);
  EXPECT_EQ(runs[0].given_parallel.tensor, 0);
  EXPECT_EQ(runs[0].given_parallel.expert, 2);
  EXPECT_FALSE(runs[0].layout_why.empty());
  EXPECT_EQ(runs[0].plan.micro_batch, *runs[1].train.micro_batch);
  EXPECT_LE(runs[0].plan.micro_batch, 6);  // each of two replicas has one
}

}  // namespace
}  // namespace troupe
