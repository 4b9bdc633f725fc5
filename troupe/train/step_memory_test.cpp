// The peak of a whole training step, in bytes of tensors: what a way to save memory promises is
// what the peak falls by.
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "troupe/testing/torch/live_bytes.h"
#include "troupe/train/learner.h"
#include "troupe/train/recipe/recipe_of_test.h"

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

Feed feed() {
  TokenBatch batch{.B = kBatch, .S = kSequence};
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t s = 0; s <= kSequence; ++s) {
      batch.ids.push_back(static_cast<int32_t>((b * 31 + s * s * 7 + s) % 64));
      if (s == kSequence) continue;
      batch.weights.push_back(1);
      batch.positions.push_back(static_cast<int32_t>(s));
      batch.documents.push_back(0);
    }
    batch.sources.push_back(0);
  }
  return make_feed(batch, kBatch, c10::kCPU);
}

// The second of two steps: what is made once is there.
Step second_step(const std::string& more) {
  at::set_num_threads(1);
  const Faults none;
  Learner learner(recipe_of(more, kBase), c10::kCPU, none, std::make_shared<ParallelSetup>());
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

// All blocks' hidden rows live at the peak, W1's and its gate's; rebuilt, those of one block do.
TEST(StepMemory, M1_M2_ThePeakOfAStepFallsByTheHiddenRowsThatAreRebuilt) {
  const Step kept = second_step(""), rebuilt = second_step("model: {moe: {recompute: expert}}\n");
  constexpr int64_t kHiddenRows = kBatch * kSequence * kTopK * 2 * kHidden * 2;  // bytes of a block
  const auto fell = static_cast<double>(kept.peak - rebuilt.peak);
  const auto predicted = static_cast<double>((kLayers - 1) * kHiddenRows);
  EXPECT_NEAR(fell, predicted, 0.02 * predicted);
  expect_equal(kept, rebuilt);
}

// Of six blocks that are recomputed only what enters them is kept.
TEST(StepMemory, F117_ThePeakOfAStepIsThatOfOneBlockWhereAllAreRecomputed) {
  const Step kept = second_step(""), again = second_step("train: {recompute: \"1\"}\n");
  const Step shallow = second_step("model: {layers: 1}\n");
  EXPECT_LT(again.peak, kept.peak / 2);
  // The inputs of the other blocks, of bf16; beside them the gradients of their parameters.
  EXPECT_GT(again.peak, shallow.peak);
  expect_equal(kept, again);
}

}  // namespace
}  // namespace troupe
