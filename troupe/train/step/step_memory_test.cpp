// The peak of a whole training step, in bytes of tensors: what a way to save memory promises is
// what the peak falls by.
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/live_bytes.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/step/learner.h"

namespace troupe {
namespace {

constexpr int64_t kLayers = 6, kSequence = 64, kBatch = 16, kTopK = 2, kHidden = 256;
constexpr const char* kBase =
    "model: {layers: 6, width: 32, heads: 4, vocab: 64, max_positions: 64,\n"
    "        moe: {experts: 2, top_k: 2, hidden: 256}}\n"
    "data: {sequence: 64}\n"
    "train: {global_batch: 16, micro_batch: 16, steps: 10, precision: bf16}\n"
    "checkpoint: {dir: run}\n"
    "run: {device: cpu}\n";

struct Step {
  int64_t peak = 0;  // above what lived before the step
  double loss = 0, norm = 0;
  std::map<std::string, at::Tensor> weights;
};

Feed feed(int64_t rows = kBatch, int64_t micro = kBatch, const RowCut& cut = {}) {
  TokenBatch batch{.B = rows, .S = kSequence};
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t s = 0; s <= kSequence; ++s) {
      batch.ids.push_back(static_cast<int32_t>((b * 31 + s * s * 7 + s) % 64));
      if (s == kSequence) continue;
      batch.weights.push_back(1);
      batch.positions.push_back(static_cast<int32_t>(s));
      batch.documents.push_back(0);
    }
    batch.sources.push_back(0);
  }
  return make_feed(batch, micro, c10::kCPU, 0, cut);
}

// The second of two steps: what is made once is there.
Step second_step(const std::string& more) {
  at::set_num_threads(1);
  const Faults none;
  Learner learner(resolve_alone(recipe_of(more, kBase)), c10::kCPU, none,
                  std::make_shared<ParallelSetup>());
  TrainState state;
  learner.step(feed(), state);
  const Feed next = feed();
  Step out;
  {
    const auto bytes = std::make_shared<testing::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    const StepReport report = learner.step(next, state);
    out.peak = bytes->peak;
    out.loss = report.loss;
    out.norm = report.grad_norm;
  }
  learner.model().for_each_param(
      -1, [&](const std::string& name, Param& p) { out.weights[name] = p.value.detach().clone(); });
  return out;
}

void expect_equal(const Step& a, const Step& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.norm, b.norm);
  for (const auto& [name, value] : a.weights) {
    EXPECT_TRUE(at::equal(value, b.weights.at(name))) << name;
  }
}

// Of six layers the gradients of two are there at most, and the bits are the same.
TEST(StepMemory, UpdatesInBackwardKeepTheGradientsOfTwoLayers) {
  const std::string model = "model: {moe: {experts: 32}}\n";
  const std::string train = "train: {recompute: '1', clip: 0";
  const Step whole = second_step(model + train + "}");
  const Step early = second_step(model + train + ", update: in_backward}");
  const double layer = 2. * 32 * 3 * 32 * kHidden;  // bytes of its experts' gradients in bf16
  EXPECT_LT(static_cast<double>(early.peak), static_cast<double>(whole.peak) - 3 * layer);
  expect_equal(whole, early);
}

// All blocks' hidden rows live at the peak, W1's and its gate's; rebuilt, those of one block do.
TEST(StepMemory, M1_M2_ThePeakOfAStepFallsByTheHiddenRowsThatAreRebuilt) {
  const Step kept = second_step(""), rebuilt = second_step("model: {moe: {recompute: expert}}\n");
  constexpr int64_t kHiddenRows = kBatch * kSequence * kTopK * 2 * kHidden * 2;  // bytes of a block
  const auto fell = static_cast<double>(kept.peak - rebuilt.peak);
  const auto predicted = static_cast<double>((kLayers - 1) * kHiddenRows);
  EXPECT_NEAR(fell, predicted, 0.02 * predicted);
  expect_equal(kept, rebuilt);
}

// Of six blocks that are recomputed, a step keeps only what enters them.
TEST(StepMemory, F117_ThePeakOfAStepIsThatOfOneBlockWhereAllAreRecomputed) {
  const Step kept = second_step(""), again = second_step("train: {recompute: \"1\"}\n");
  const Step shallow = second_step("model: {layers: 1}\n");
  EXPECT_LT(again.peak, kept.peak / 2);
  // The inputs of the other blocks, of bf16; beside them the gradients of their parameters.
  EXPECT_GT(again.peak, shallow.peak);
  expect_equal(kept, again);
}

// One rank that this process plays alone, from before it has a weight.
class Played {
 public:
  Played(const Recipe& recipe, int64_t rank, int64_t ranks) {
    at::set_num_threads(1);
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes_);
    const LauncherEnvironment place{
        .rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
    const auto world = std::make_shared<World>(place, c10::kCPU, WorldOptions{.played = true});
    run_ = resolve(recipe, *world);
    setup_ = std::make_shared<ParallelSetup>(world, run_);
    learner_.emplace(run_, c10::kCPU, none_, setup_);
  }

  // Bytes of tensors that are left by a step of so many microbatches of the recipe's size.
  int64_t step(int64_t microbatches) {
    const int64_t micro = run_.plan.micro_batch;
    Feed own = feed(micro * microbatches, micro, row_cut(run_, *setup_));
    own.all_microbatches *= setup_->state.data_ranks();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes_);
    bytes_->peak = bytes_->live;
    learner_->step(own, state_);
    return bytes_->live;
  }
  int64_t peak() const { return bytes_->peak; }  // of the last step
  const ParallelSetup& setup() const { return *setup_; }
  const ResolvedRun& run() const { return run_; }
  const ParamStore& store() { return learner_->store(); }

 private:
  const std::shared_ptr<testing::LiveBytes> bytes_ = std::make_shared<testing::LiveBytes>();
  const Faults none_;
  ResolvedRun run_;
  std::shared_ptr<const ParallelSetup> setup_;
  std::optional<Learner> learner_;
  TrainState state_;
};

// What lives behind a step lives behind the next, to the byte: no stage keeps an output, a gradient
// or a graph.
TEST(StepMemory, NothingIsLeftOfAStepOnAnyStage) {
  struct Kept {
    std::string parallel;
    int64_t ranks;
    std::string more = {};
    std::string train = {};
  };
  const std::string tied = "model: {tie_embeddings: true, mtp: {depth: 1}}\n";
  for (const Kept& c :
       {Kept{"pipeline: 2", 2}, Kept{"pipeline: 2", 2, tied}, Kept{"pipeline: 4", 4, tied},
        Kept{"pipeline: 2, schedule: gpipe", 2, "", ", recompute: \"1\""},
        Kept{"pipeline: 4, virtual: 2, stages: 'E|t|t|t|t|t|t|L'", 4},
        Kept{"pipeline: 2, schedule: zb1p", 2}, Kept{"pipeline: 2, schedule: zbv", 2, tied},
        Kept{"pipeline: 2, tensor: 2, expert: 2", 4}}) {
    const std::string expert = c.parallel.find("expert") == std::string::npos ? ", expert: 1" : "";
    const Recipe recipe =
        recipe_of(c.more + "train: {micro_batch: 4, global_batch: 16" + c.train + "}\n" +
                      "parallel: {shard: none, " + c.parallel + expert + "}\n",
                  kBase);
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      Played played(recipe, rank, c.ranks);
      for (int i = 0; i < 2; ++i) played.step(4);
      const int64_t left = played.step(4);
      EXPECT_EQ(played.step(4), left) << c.parallel << ", rank " << rank;
    }
  }
}

// Bytes of tensors that a rank has between two steps, for each parameter of a bf16 model with AdamW:
// the value 2, the other half of its master 2, moments 8 and the summed gradient 4. Of d ranks that
// share a parameter, zero1 has all values and one d-th of the rest, full one d-th of all.
TEST(StepMemory, N4_WhatARankKeepsOfAParameterByTheWayToShare) {
  const std::string base =
      "model: {layers: 6, width: 128, heads: 4, vocab: 1024, max_positions: 64,\n"
      "        moe: {experts: 8, top_k: 2, hidden: 128}}\n"
      "data: {sequence: 64}\n"
      "train: {global_batch: 8, micro_batch: 1, steps: 10, precision: bf16}\n"
      "checkpoint: {dir: run}\n"
      "run: {device: cpu}\n";
  for (const int64_t d : {2, 4}) {
    const auto ranks = static_cast<double>(d);
    for (const auto& [shard, part, bytes] :
         std::vector<std::tuple<std::string, double, double>>{{"none", 1, 16},
                                                              {"zero1", 1 / ranks, 2 + 14 / ranks},
                                                              {"full", 1 / ranks, 16 / ranks}}) {
      Played played(recipe_of("parallel: {expert: 1, shard: " + shard + "}", base), d - 1, d);
      for (int i = 0; i < 2; ++i) played.step(8 / d);
      const auto kept = static_cast<double>(played.step(8 / d));
      int64_t all = 0, own = 0;
      for (const auto& slot : played.store().slots()) all += slot.named.param->numel();
      for (const Bucket& bucket : played.store().buckets()) own += bucket.own_size;
      const auto elements = static_cast<double>(all);
      EXPECT_GT(elements, 2.5e6);
      EXPECT_NEAR(static_cast<double>(own), part * elements, 0.01 * part * elements) << shard << d;
      EXPECT_NEAR(kept, bytes * elements, 0.03 * bytes * elements) << shard << d;
    }
  }
}

// A rank of tensor ranks, and of each stage: bytes of tensors, the forecast's without libraries.
TEST(StepMemory, APlayedRankTakesWhatIsForecast) {
  const std::string base =
      "model: {layers: 6, width: 128, heads: 4, vocab: 1024, max_positions: 256,\n"
      "        moe: {experts: 8, top_k: 2, hidden: 128, router: {force: uniform}}}\n"
      "data: {sequence: 64}\n"
      "train: {global_batch: 32, micro_batch: 4, steps: 10, precision: fp32}\n"
      "checkpoint: {dir: run}\n"
      "run: {device: cpu}\n";
  struct PlayedRank {
    std::string parallel;
    int64_t ranks;
  };
  for (const PlayedRank& c : {PlayedRank{"{tensor: 4, shard: zero1, expert: 4}", 4},
                              PlayedRank{"{pipeline: 2, shard: none, expert: 1}", 2}}) {
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      Played played(recipe_of("parallel: " + c.parallel, base), rank, c.ranks);
      const ParallelState& state = played.setup().state;
      for (int i = 0; i < 2; ++i) played.step(8 / state.data_ranks());
      const StepMemory said = layout_memory(played.run(), c.ranks, false, state.stage_rank());
      const auto peak = static_cast<double>(played.peak());
      EXPECT_NEAR(said.total() - said.runtime, peak, 0.05 * peak)
          << c.parallel << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace troupe
