// Rules D1 to D3: both means of the loss, of one process and of ranks that are threads, in f64. Masks
// are uneven and one replica has no sequence; of seven sequences one has no target. And rows of
// which nearly nothing counts: one target a sequence, which one rank of those that cut it has, and
// sequences that are padding but for two tokens (docs/develop/NUMERICS.md lists whose faults).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr int64_t kSteps = 2;
constexpr const char* kModel =
    "model: {layers: 4, width: 32, heads: 8, kv_heads: 2, vocab: 200, vocab_pad: 512, "
    "max_positions: 64, ffn: 64, first_dense: 1, qk_norm: head, tie_embeddings: true, "
    "mtp: {depth: 1}, moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, "
    "router: {kind: topk_softmax, balance: {aux_loss: 0.05, seq_loss: 0.05, z_loss: 0.001}}}}\n"
    "data: {sequence: 16}\n"
    "train: {micro_batch: 1, steps: 10, clip: 0.5, precision: fp64, optimizer: "
    "{kind: adamw, lr: 0.003, eps: 1e-6}, schedule: {warmup: 0}}\n"
    "run: {device: cpu}\n"
    "checkpoint: {dir: run}\n";

struct Case {
  std::string name, parallel;
  int ranks = 8;
  int64_t batch = 7;       // sequences, each a microbatch
  std::string model = {};  // more of the recipe
  bool few = false;        // Text::few
};

Text text_of(const Case& c) {
  return {.few = c.few};
}

Recipe recipe_for(const Case& c, LossMean mean, const std::string& parallel) {
  return recipe_of(c.model + "train: {global_batch: " + std::to_string(c.batch) +
                       ", loss_mean: " + to_text(mean) + "}\nparallel: " + parallel + "\n",
                   kModel);
}

// One process's figures, computed once for the layouts that differ in nothing else.
const Figures& alone(const Case& c, LossMean mean) {
  static std::map<std::string, Figures> kept;
  const auto [found, is_new] = kept.try_emplace(c.model + to_text(mean) + ' ' +
                                                std::to_string(c.batch) + (c.few ? " few" : ""));
  if (is_new) {
    found->second = figures_of(resolve_alone(recipe_for(c, mean, "{}")), text_of(c),
                               std::make_shared<ParallelSetup>(), kSteps, nullptr);
  }
  return found->second;
}

class BothMeans : public ::testing::TestWithParam<Case> {};

TEST_P(BothMeans, D1_D2_D3_AreOneProcess) {
  const Case& c = GetParam();
  at::set_num_threads(1);
  for (const LossMean mean : {LossMean::kTokens, LossMean::kMicrobatches}) {
    SCOPED_TRACE(to_text(mean));
    expect_one_process(recipe_for(c, mean, c.parallel), text_of(c), c.ranks, kSteps,
                       alone(c, mean));
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& given) {
  return given.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    OneReplicaWithNothing, BothMeans,
    ::testing::Values(
        Case{"dp_8", "{shard: none, expert: 1}"}, Case{"ep_2", "{shard: zero1, expert: 2}"},
        Case{"ep_4", "{shard: zero1, expert: 4}"}, Case{"ep_8", "{shard: zero1, expert: 8}"},
        Case{"full_ep_2", "{shard: full, expert: 2}"},
        Case{"etp_2", "{shard: zero1, expert: 1, expert_tensor: 2}"},
        Case{"tp_2_ep_4", "{tensor: 2, shard: zero1, expert: 4}", 8, 3},
        Case{"tp_2_etp_1_ep_8", "{tensor: 2, shard: zero1, expert: 8}", 8, 3},
        Case{"tp_2_etp_2_ep_1", "{tensor: 2, shard: zero1, expert: 1, expert_tensor: 2}", 8, 3},
        Case{"cp_2_ep_8", "{context: 2, shard: zero1, expert: 8}", 8, 3},
        Case{"pp_2_v_2_ep_2", "{pipeline: 2, virtual: 2, shard: zero1, expert: 2}", 8, 3},
        Case{"hsdp_2_2_2", "{shard: full, shard_ranks: 2, expert: 2}"}),
    name_of);

// Sinks are cut with the heads, key heads are on two ranks each; each layer has a bias that its
// counts of real tokens move.
constexpr const char* kSinks =
    "model: {window: 3, sinks: true, moe: {router: {kind: sigmoid_bias, bias_rate: 0.01, "
    "balance: {seq_loss: 0.05, z_loss: 0.001}}}}\n";

INSTANTIATE_TEST_SUITE_P(
    FewTargetsAndMostlyPadding, BothMeans,
    ::testing::Values(
        Case{"cp_2", "{context: 2, shard: zero1, expert: 2}", 2, 7, {}, true},
        Case{"cp_4_ring",
             "{context: 4, context_method: ring, shard: zero1, expert: 4}",
             4,
             7,
             {},
             true},
        Case{"tp_2", "{tensor: 2, shard: zero1, expert: 2, split_vocab: on}", 2, 7, {}, true},
        Case{"tp_4_sinks_and_biases", "{tensor: 4, shard: zero1, expert: 4}", 4, 7, kSinks, true},
        Case{"tp_2_cp_2_dp_2_sinks_and_biases", "{tensor: 2, context: 2, shard: full, expert: 2}",
             8, 7, kSinks, true},
        Case{"pp_2_dp_2", "{pipeline: 2, shard: zero1, expert: 2}", 4, 7, {}, true}),
    name_of);

// Else a run that takes the one for the other would pass.
TEST(MeansOfTheLoss, D1_D2_DifferInALossAndItsGradient) {
  at::set_num_threads(1);
  for (const bool few : {false, true}) {
    const Case c{.name = "alone", .parallel = "{}", .ranks = 1, .few = few};
    const Figures &tokens = alone(c, LossMean::kTokens), &means = alone(c, LossMean::kMicrobatches);
    EXPECT_GT(std::abs(tokens.loss[0] / means.loss[0] - 1), 1e-3) << few;
    EXPECT_GT(std::abs(tokens.norm[0] / means.norm[0] - 1), 1e-3) << few;
  }
}

}  // namespace
}  // namespace troupe
