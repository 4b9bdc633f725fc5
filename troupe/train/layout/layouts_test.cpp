// A layout changes the order of sums and nothing else: a Learner on ranks that are threads beside
// one process, step by step, in f64; in f32 too where a layout brings traffic of its own.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr const char* kModel =
    "model: {layers: 3, width: 32, heads: 8, kv_heads: 2, vocab: 200, vocab_pad: 512, "
    "max_positions: 64, ffn: 64, first_dense: 1, qk_norm: head, tie_embeddings: true, "
    "mtp: {depth: 1}, moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, "
    "router: {kind: topk_softmax, jitter: 0.01, balance: {aux_loss: 0.05, seq_loss: 0.05, "
    "z_loss: 0.001}}}, dropout: 0.1}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: 7, micro_batch: 1, steps: 10, clip: 0.5, optimizer: "
    "{kind: adamw, lr: 0.003, eps: 1e-6}, schedule: {warmup: 0}}\n"
    "checkpoint: {dir: run}\n";

constexpr int64_t kSteps = 3;

struct Layout {
  std::string name, parallel;
  int ranks;
  std::string more = {};  // of the recipe
  bool packed = false;    // rows hold documents
};

class Layouts : public ::testing::TestWithParam<Layout> {};

// One process's figures, computed once for the layouts that differ in nothing else.
const Figures& alone(const Recipe& recipe, const Text& text, const std::string& key) {
  static std::map<std::string, Figures> kept;
  const auto [at, is_new] = kept.try_emplace(key);
  if (is_new)
    at->second =
        figures_of(resolve_alone(recipe), text, std::make_shared<ParallelSetup>(), kSteps, nullptr);
  return at->second;
}

void expect_one_process(const Layout& layout, Precision precision, const WorldOptions& how = {}) {
  const std::string more = layout.more + "run: {device: cpu}\n";
  const Text text{.packed = layout.packed};
  Recipe one = recipe_of(more, kModel),
         many = recipe_of(more + "parallel: " + layout.parallel, kModel);
  one.train.precision = many.train.precision = precision;
  at::set_num_threads(1);
  const std::string key = more + to_text(precision) + (layout.packed ? "packed" : "whole");
  expect_one_process(many, text, layout.ranks, kSteps, alone(one, text, key), how);
}

TEST_P(Layouts, AreOneProcess) {
  expect_one_process(GetParam(), Precision::kFp64);
}

// Each kind of layout, in the type that runs have.
class LayoutsInF32 : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutsInF32, AreOneProcess) {
  expect_one_process(GetParam(), Precision::kFp32);
}

// As ranks that share a GPU do it: each collective from and to copies of its tensors
// (staged_backend.h).
class LayoutsThroughHostMemory : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutsThroughHostMemory, AreOneProcess) {
  expect_one_process(GetParam(), Precision::kFp64, {.staged = true});
}

INSTANTIATE_TEST_SUITE_P(
    Staged, LayoutsThroughHostMemory,
    ::testing::Values(Layout{"full_2_ep_2", "{shard: full, expert: 2}", 2},
                      Layout{"zero1_tp_2_split", "{tensor: 2, shard: zero1, split_vocab: on}", 2},
                      Layout{"ring_cp_2",
                             "{context: 2, context_method: ring, shard: zero1, expert: 2}", 2},
                      Layout{"pp_2_v_2_tp_2_ep_2",
                             "{pipeline: 2, virtual: 2, tensor: 2, shard: zero1, expert: 2}", 4}),
    [](const auto& given) { return given.param.name; });

constexpr const char* kWhole = "{shard: none, expert: 1}";

INSTANTIATE_TEST_SUITE_P(
    Today, Layouts,
    ::testing::Values(Layout{"ddp_2", kWhole, 2}, Layout{"zero1_3", "{shard: zero1, expert: 1}", 3},
                      Layout{"full_4_ep_2", "{shard: full, expert: 2}", 4},
                      Layout{"hybrid_4_ep_4", "{shard: full, shard_ranks: 2, expert: 4}", 4}),
    [](const auto& given) { return given.param.name; });

// Every auxiliary loss. `running` counts over the microbatches so far, and the scope `all` over
// those of all replicas at a time: two replicas are not one process there.
std::string all_losses(const std::string& fractions = "previous",
                       const std::string& scope = "group") {
  return "model: {moe: {router: {kind: topk_softmax, jitter: 0.01, limit: {groups: 4, keep: 2}, "
         "balance: {aux_loss: 0.05, seq_loss: 0.05, global_loss: 0.05, global_fractions: " +
         fractions + ", batched_loss: 0.05, batched_scope: " + scope +
         ", device_loss: 0.05, communication_loss: 0.05, z_loss: 0.001}}}}\n";
}

// Latent attention, whose norms of latents are of all heads.
constexpr const char* kLatents =
    "model: {kv_heads: 8, qk_norm: none, mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, "
    "rope_dim: 4, value_dim: 6}}\n";

INSTANTIATE_TEST_SUITE_P(
    Tensor, Layouts,
    ::testing::Values(
        Layout{"ddp_tp_2", "{tensor: 2, shard: none, expert: 1}", 2},
        Layout{"zero1_tp_2_split",
               "{tensor: 2, shard: zero1, expert: 1, split_vocab: on, "
               "split_shared: on}",
               2},
        Layout{"zero1_tp_4_few_heads", "{tensor: 4, shard: zero1, expert: 1, split_vocab: on}", 4},
        Layout{"full_tp_2_dp_2", "{tensor: 2, shard: full, expert: 1}", 4},
        Layout{"full_tp_2_dp_2_ep_2_parallel_blocks", "{tensor: 2, shard: full, expert: 2}", 4,
               "model: {block: {kind: parallel}}\n"},
        Layout{"zero1_tp_2_dp_2_ep_4", "{tensor: 2, shard: zero1, expert: 4}", 4},
        Layout{"zero1_tp_4_dp_2_ep_8", "{tensor: 4, shard: zero1, expert: 8, split_vocab: on}", 8},
        Layout{"full_tp_2_dp_3_ep_2", "{tensor: 2, shard: full, expert: 2, split_shared: on}", 6},
        Layout{"hybrid_tp_2_dp_4", "{tensor: 2, shard: full, shard_ranks: 2, expert: 2}", 8},
        Layout{"ddp_tp_2_etp_2_ep_2", "{tensor: 2, shard: none, expert: 2, expert_tensor: 2}", 4},
        Layout{"zero1_etp_2_alone", "{shard: zero1, expert: 2, expert_tensor: 2}", 4},
        Layout{"full_tp_4_ep_2_etp_2", "{tensor: 4, shard: full, expert: 2, expert_tensor: 2}", 8},
        Layout{"again_tp_2", "{tensor: 2, shard: zero1, expert: 2, split_vocab: on}", 2,
               "train: {recompute: \"1\"}\n"},
        Layout{"again_tp_2_dp_2", "{tensor: 2, shard: zero1, expert: 2}", 4,
               "train: {recompute: \"1\"}\n"},
        Layout{"sinks_tp_2_dp_2", "{tensor: 2, shard: zero1, expert: 2, split_vocab: on}", 4,
               "model: {window: 3, sinks: true}\n"},
        Layout{"sinks_tp_4_few_heads", "{tensor: 4, shard: zero1, expert: 1}", 4,
               "model: {window: 3, sinks: true}\n"},
        Layout{"padding_tp_2_dp_2_all_losses", "{tensor: 2, shard: zero1, expert: 4}", 4,
               all_losses(), true},
        Layout{"latents_tp_2", "{tensor: 2, shard: zero1, expert: 2}", 2, kLatents, true}),
    [](const auto& given) { return given.param.name; });

// Four ranks, tensor 4 or tensor 2 x data 2, in every way to share state and experts.
std::vector<Layout> tensor_of_four() {
  std::vector<Layout> out;
  for (const int64_t tensor : {4, 2}) {
    for (const std::string shard : {"none", "zero1", "full"}) {
      for (const int64_t experts : {1, 2, 4}) {
        const std::string tp = std::to_string(tensor), ep = std::to_string(experts);
        out.push_back({"tp_" + tp + "_ep_" + ep + '_' + shard,
                       "{tensor: " + tp + ", shard: " + shard + ", expert: " + ep + "}", 4});
      }
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(TensorOfFour, Layouts, ::testing::ValuesIn(tensor_of_four()),
                         [](const auto& given) { return given.param.name; });

constexpr const char* kOneSample = "train: {global_batch: 1}\n";

INSTANTIATE_TEST_SUITE_P(
    AReplicaWithNothing, Layouts,
    ::testing::Values(
        Layout{"zero1_tp_2_dp_2_ep_4", "{tensor: 2, shard: zero1, expert: 4}", 4, kOneSample},
        Layout{"full_tp_2_dp_2_ep_2", "{tensor: 2, shard: full, expert: 2}", 4, kOneSample},
        Layout{"pp_2_zero1_dp_2_ep_2", "{pipeline: 2, shard: zero1, expert: 2}", 4, kOneSample}),
    [](const auto& given) { return given.param.name; });

// A gradient of a bias may be close to 0, where Adam's first steps make of its rounding one of lr.
constexpr const char* kBiases =
    "model: {moe: {bias: true, output_bias: true}}\n"
    "train: {optimizer: {kind: adamw, lr: 0.003, eps: 1e-4}}\n";

INSTANTIATE_TEST_SUITE_P(
    X6_SlicesOfExpertsWithBiases, Layouts,
    ::testing::Values(Layout{"ddp_etp_2", "{shard: none, expert: 1, expert_tensor: 2}", 2, kBiases},
                      Layout{"zero1_tp_2_etp_2_ep_2",
                             "{tensor: 2, shard: zero1, expert: 2, expert_tensor: 2}", 4, kBiases},
                      Layout{"pp_2_full_etp_2_ep_2",
                             "{pipeline: 2, shard: full, expert: 2, expert_tensor: 2}", 8,
                             kBiases}),
    [](const auto& given) { return given.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Context, Layouts,
    ::testing::Values(
        Layout{"ddp_cp_2", "{context: 2, shard: none, expert: 1}", 2},
        Layout{"zero1_cp_4", "{context: 4, shard: zero1, expert: 1}", 4},
        Layout{"zero1_cp_4_documents", "{context: 4, shard: zero1, expert: 4}", 4, {}, true},
        Layout{"zero1_cp_2_tp_2",
               "{context: 2, tensor: 2, shard: zero1, expert: 1, split_vocab: on}", 4,
               all_losses("running", "all"), true},
        Layout{"zero1_cp_2_dp_2_ep_4", "{context: 2, shard: zero1, expert: 4}", 4, all_losses()},
        Layout{"zero1_tp_2_cp_2_ep_4", "{tensor: 2, context: 2, shard: zero1, expert: 4}", 4,
               all_losses("running", "all")},
        Layout{"zero1_tp_4_cp_2_ep_8", "{tensor: 4, context: 2, shard: zero1, expert: 8}", 8},
        Layout{"full_tp_2_cp_2_dp_2_ep_4", "{tensor: 2, context: 2, shard: full, expert: 4}", 8,
               all_losses(), true},
        Layout{"hybrid_cp_2_dp_2", "{context: 2, shard: full, shard_ranks: 2, expert: 2}", 4},
        Layout{"full_cp_2_dp_3", "{context: 2, shard: full, expert: 2}", 6},
        Layout{"ddp_cp_2_etp_2", "{context: 2, shard: none, expert: 1, expert_tensor: 2}", 2},
        Layout{"again_cp_2", "{context: 2, shard: zero1, expert: 2}", 2,
               "train: {recompute: \"1\"}\n", true},
        Layout{"windows_and_sinks_cp_2", "{context: 2, shard: zero1, expert: 2}", 2,
               "model: {window: 3, sinks: true}\n", true},
        Layout{"zero1_cp_2_pp_2_ep_2", "{context: 2, pipeline: 2, shard: zero1, expert: 2}", 4,
               all_losses(), true},
        Layout{"heads_exchanged_cp_2",
               "{context: 2, context_method: heads, shard: zero1, expert: 2}", 2,
               "model: {window: 3, sinks: true}\n", true},
        Layout{"ring_cp_2", "{context: 2, context_method: ring, shard: zero1, expert: 2}", 2,
               "model: {window: 3, sinks: true}\n", true},
        Layout{"ring_cp_4_tp_2",
               "{context: 4, tensor: 2, context_method: ring, shard: zero1, expert: 4}", 8,
               all_losses()},
        Layout{"ring_cp_4_again_documents",
               "{context: 4, context_method: ring, shard: full, expert: 2}", 4,
               "train: {recompute: \"1\"}\n", true},
        Layout{"ring_cp_2_pp_2_zb1p",
               "{context: 2, pipeline: 2, context_method: ring, schedule: zb1p, shard: zero1, "
               "expert: 2}",
               4,
               {},
               true},
        Layout{"dealt_by_documents_cp_2",
               "{context: 2, context_dealing: documents, shard: zero1, expert: 2}", 2, all_losses(),
               true},
        Layout{"dealt_by_documents_ring_cp_2_tp_2",
               "{context: 2, tensor: 2, context_dealing: documents, context_method: ring, shard: "
               "zero1, expert: 2}",
               4, "model: {window: 3, sinks: true}\n", true},
        Layout{"latents_cp_2_tp_2", "{context: 2, tensor: 2, shard: zero1, expert: 2}", 4, kLatents,
               true}),
    [](const auto& given) { return given.param.name; });

// The table and its gradients are on both ends unless a row says otherwise; seven microbatches of
// two replicas leave one of them with a microbatch without rows.
constexpr const char* kOwnTables = "model: {tie_embeddings: false, mtp: {depth: 0}}\n";

// GPT-2's blocks, whose table and learned positions are both of the embedding: the first alone is
// the head's too.
constexpr const char* kGpt =
    "model: {positions: learned, bias: true, norm: {kind: layer, bias: true}, act: gelu, "
    "kv_heads: 8, qk_norm: none, mtp: {depth: 0}, moe: {bias: true, output_bias: true}}\n"
    "train: {optimizer: {kind: adamw, lr: 0.003, eps: 1e-4}}\n";

INSTANTIATE_TEST_SUITE_P(
    Pipeline, Layouts,
    ::testing::Values(
        Layout{"pp_2", "{pipeline: 2, shard: none, expert: 1}", 2},
        Layout{"pp_2_own_tables", "{pipeline: 2, shard: none, expert: 1}", 2, kOwnTables},
        Layout{"pp_2_gpipe_again", "{pipeline: 2, schedule: gpipe, shard: none, expert: 1}", 2,
               "train: {recompute: \"1\"}\n"},
        Layout{"pp_2_v_2", "{pipeline: 2, virtual: 2, shard: none, expert: 1}", 2},
        Layout{"pp_2_v_3", "{pipeline: 2, virtual: 3, shard: none, expert: 1}", 2},
        Layout{"pp_2_v_3_zero1_dp_2_ep_2_one_short",
               "{pipeline: 2, virtual: 3, shard: zero1, expert: 2}", 4},
        Layout{"pp_2_of_1", "{pipeline: 2, shard: none, expert: 1}", 2, kOneSample},
        Layout{"pp_4_of_1", "{pipeline: 4, shard: none, expert: 1}", 4, kOneSample},
        Layout{"pp_2_of_3", "{pipeline: 2, shard: none, expert: 1}", 2,
               "train: {global_batch: 3}\n"},
        Layout{"pp_4_of_3_tp_2", "{pipeline: 4, tensor: 2, shard: zero1, expert: 1}", 8,
               "train: {global_batch: 3}\n"},
        Layout{"pp_2_v_2_of_4", "{pipeline: 2, virtual: 2, shard: none, expert: 1}", 2,
               "train: {global_batch: 4}\n"},
        Layout{"pp_4_of_4", "{pipeline: 4, shard: none, expert: 1}", 4,
               "train: {global_batch: 4}\n"},
        Layout{"pp_2_gpt", "{pipeline: 2, shard: none, expert: 1}", 2, kGpt},
        Layout{"pp_4_gpt_zero1_dp_2_ep_2", "{pipeline: 4, shard: zero1, expert: 2}", 8, kGpt},
        Layout{"pp_2_v_2_gpipe_zero1_dp_2",
               "{pipeline: 2, virtual: 2, schedule: gpipe, shard: zero1, expert: 1}", 4},
        Layout{"pp_4", "{pipeline: 4, shard: none, expert: 1}", 4},
        Layout{"pp_4_v_2_empty_stages",
               "{pipeline: 4, stages: \"E||t||t|t||mL\", shard: none, expert: 1}", 4},
        Layout{"pp_4_mtp_alone", "{pipeline: 4, stages: \"Et|tt|m|L\", shard: none, expert: 1}", 4},
        Layout{"pp_4_two_mtp_apart_full_dp_2_ep_2",
               "{pipeline: 4, stages: \"E|ttt|m|mL\", shard: full, expert: 2}", 8,
               "model: {mtp: {depth: 2}}\n"},
        Layout{"pp_2_two_mtp_apart_v_2_own_tables_cp_2",
               "{pipeline: 2, context: 2, stages: \"Et|tt|m|mL\", shard: zero1, expert: 2}", 4,
               "model: {tie_embeddings: false, mtp: {depth: 2}}\n", true},
        Layout{
            "pp_4_mtp_alone_zb1p_tp_2_split",
            "{pipeline: 4, stages: \"Et|tt|m|L\", schedule: zb1p, tensor: 2, shard: zero1, expert: "
            "2, split_vocab: on}",
            8, "model: {tie_embeddings: false}\n"},
        Layout{"pp_2_mtp_alone_zbv",
               "{pipeline: 2, stages: \"Et|tt|m|L\", schedule: zbv, shard: "
               "full, expert: 2}",
               4},
        Layout{"pp_4_again_own_tables", "{pipeline: 4, shard: none, expert: 1}", 4,
               std::string(kOwnTables) + "train: {recompute: \"1\"}\n"},
        Layout{"pp_2_zero1_dp_2_ep_2", "{pipeline: 2, shard: zero1, expert: 2}", 4},
        Layout{"pp_2_full_dp_2_ep_2", "{pipeline: 2, shard: full, expert: 2}", 4},
        Layout{"pp_2_full_keeps_dp_2", "{pipeline: 2, shard: full, reshard: false, expert: 1}", 4},
        Layout{"pp_2_zero1_dp_2_ep_2_moved_experts",
               "{pipeline: 2, shard: zero1, expert: 2, rebalance: {every: 1, gain: 0.001}}", 4},
        Layout{"pp_2_biases_dp_2", "{pipeline: 2, shard: zero1, expert: 2}", 4,
               "model: {moe: {router: {kind: sigmoid_bias, bias_rate: 0.01}}}\n"},
        Layout{"pp_2_cp_2_documents",
               "{pipeline: 2, context: 2, shard: zero1, expert: 2}",
               4,
               {},
               true},
        Layout{"pp_2_v_2_tp_2_cp_2_full",
               "{pipeline: 2, virtual: 2, tensor: 2, context: 2, shard: full, expert: 4}", 8},
        Layout{"pp_2_zb1p", "{pipeline: 2, schedule: zb1p, shard: none, expert: 1}", 2},
        Layout{"pp_4_zb1p_again", "{pipeline: 4, schedule: zb1p, shard: none, expert: 1}", 4,
               "train: {recompute: \"1\"}\n"},
        Layout{"pp_2_zb1p_full_dp_2_ep_2", "{pipeline: 2, schedule: zb1p, shard: full, expert: 2}",
               4},
        Layout{"pp_2_zb1p_tp_2_zero1_ep_2",
               "{pipeline: 2, schedule: zb1p, tensor: 2, shard: zero1, expert: 2}", 4},
        Layout{"pp_2_zbv", "{pipeline: 2, schedule: zbv, shard: none, expert: 1}", 2},
        Layout{"pp_2_zbv_full_dp_2_ep_2", "{pipeline: 2, schedule: zbv, shard: full, expert: 2}",
               4},
        Layout{"pp_2_dualpipev", "{pipeline: 2, schedule: dualpipev, shard: none, expert: 1}", 2},
        Layout{"pp_2_dualpipev_again_tp_2",
               "{pipeline: 2, schedule: dualpipev, tensor: 2, shard: zero1, expert: 2}", 4,
               "train: {recompute: \"1\"}\n"},
        Layout{"pp_2_dualpipev_full_dp_2_ep_2",
               "{pipeline: 2, schedule: dualpipev, shard: full, expert: 2}", 4},
        Layout{"pp_2_tp_2", "{pipeline: 2, tensor: 2, shard: none, expert: 1}", 4},
        Layout{"pp_2_zero1_tp_2_split_ep_2",
               "{pipeline: 2, tensor: 2, shard: zero1, expert: 2, split_vocab: on}", 4},
        Layout{"pp_2_v_2_full_tp_2_ep_2_dp_2",
               "{pipeline: 2, virtual: 2, tensor: 2, shard: full, expert: 2}", 8},
        Layout{"pp_2_hybrid_dp_4_ep_2", "{pipeline: 2, shard: full, shard_ranks: 2, expert: 2}", 8},
        Layout{"pp_2_etp_2_ep_2", "{pipeline: 2, shard: zero1, expert: 2, expert_tensor: 2}", 8}),
    [](const auto& given) { return given.param.name; });

// Two replicas, in each way to share state and experts and in each order of a pipeline.
std::vector<Layout> two_replicas(const std::string& more) {
  std::vector<Layout> out = {
      {"ddp", "{shard: none, expert: 1}", 2, more},
      {"ddp_documents", "{shard: none, expert: 1}", 2, more, true},
      {"zero1_ep_2", "{shard: zero1, expert: 2}", 2, more},
      {"full", "{shard: full, expert: 1}", 2, more},
      {"full_ep_2_exact", "{shard: full, expert: 2, dispatch: exact}", 2, more},
      {"zero1_tp_2_ep_4", "{tensor: 2, shard: zero1, expert: 4}", 4, more},
      {"full_cp_2_ep_4_documents", "{context: 2, shard: full, expert: 4}", 4, more, true}};
  for (const std::string order : {"1f1b", "gpipe", "interleaved", "zb1p", "zbv", "dualpipev"}) {
    out.push_back({"pp_2_" + order,
                   "{pipeline: 2, schedule: " + order + ", virtual: " +
                       (order == "interleaved" ? "2" : "0") + ", shard: full, expert: 2}",
                   4, more});
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<Layout>& given) {
  return given.param.name;
}

// Three microbatches of two samples: one replica has a microbatch without rows beside two samples of
// the other.
constexpr const char* kUnequal = "train: {global_batch: 6, micro_batch: 2}\n";

INSTANTIATE_TEST_SUITE_P(A3_UnequalMicrobatches, Layouts,
                         ::testing::ValuesIn(two_replicas(all_losses() + kUnequal)), name_of);

// The only microbatch is one replica's: all ranks together have at a time what one process has.
INSTANTIATE_TEST_SUITE_P(A3_A4_OneMicrobatch, Layouts,
                         ::testing::ValuesIn(two_replicas(all_losses("running", "all") +
                                                          "train: {global_batch: 2, micro_batch: "
                                                          "2}\n")),
                         name_of);

// As figures_of, of two replicas that have all of the model each.
Figures figures_of_two(const Recipe& recipe, const Text& text) {
  std::mutex mutex;
  std::map<std::string, double> aux;
  Figures out;
  testing::in_threads(2, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun run = resolve(recipe, world);
    const auto rank =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
    Figures own = figures_of(run, text, rank, kSteps, nullptr);
    const std::lock_guard lock(mutex);
    for (const auto& [name, sum] : own.aux) aux[name] += sum;
    if (world.rank() == 0) out = std::move(own);
  });
  out.aux = std::move(aux);
  return out;
}

// What is counted over all replicas at a time depends on how many these are, and on nothing else.
class LayoutsOfTwoReplicas : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutsOfTwoReplicas, AreTwoWholeModels) {
  const Layout& layout = GetParam();
  const Text text{.packed = layout.packed};
  const auto recipe = [&](const std::string& parallel) {
    Recipe r = recipe_of(layout.more + "run: {device: cpu}\nparallel: " + parallel, kModel);
    r.train.precision = Precision::kFp64;
    return r;
  };
  static std::map<bool, Figures> kept;
  const auto [at, is_new] = kept.try_emplace(layout.packed);
  if (is_new) at->second = figures_of_two(recipe(kWhole), text);
  expect_one_process(recipe(layout.parallel), text, layout.ranks, kSteps, at->second);
}

INSTANTIATE_TEST_SUITE_P(A3_A4_UnequalMicrobatches, LayoutsOfTwoReplicas,
                         ::testing::ValuesIn(two_replicas(all_losses("running", "all") + kUnequal)),
                         name_of);

TEST(LayoutsOfMicrobatches, A3_ARankWithFewerThanTheOthersIsRefused) {
  const ResolvedRun recipe = resolve_alone(recipe_of("run: {device: cpu}\n", kModel));
  const auto alone = std::make_shared<ParallelSetup>();
  const Faults none;
  Learner learner(recipe, c10::kCPU, none, alone);
  TrainState state;
  Feed feed = feed_of(recipe, {}, *alone, 0);
  feed.microbatches.pop_back();
  EXPECT_THROW(learner.step(feed, state), Error);
}

// What changes what a run computes, beside the order of its sums: docs/guide/many_ranks.md has the
// same table.
struct Dependence {
  std::string name, moe;            // of the recipe
  std::set<std::string> axes = {};  // that change it; "data": the number of replicas
};

const std::vector<Dependence>& dependences() {
  static const std::vector<Dependence> out = {
      {"batched_of_a_rank",
       "router: {balance: {aux_loss: 0, batched_loss: 1}}",
       {"tensor", "context"}},
      {"batched_of_a_group",
       "router: {balance: {aux_loss: 0, batched_loss: 1, batched_scope: group}}"},
      {"batched_of_all",
       "router: {balance: {aux_loss: 0, batched_loss: 1, batched_scope: all}}",
       {"data"}},
      {"global", "router: {balance: {aux_loss: 0, global_loss: 1}}", {"data"}},
      {"global_of_the_step_before",
       "router: {balance: {aux_loss: 0, global_loss: 1, global_fractions: previous}}"},
      {"sinkhorn", "router: {kind: sinkhorn}", {"tensor", "context"}},
      {"sinkhorn_of_a_group", "router: {kind: sinkhorn, scope: group}"},
      {"expert_choice", "router: {kind: expert_choice}", {"tensor", "context"}},
      {"expert_choice_of_a_group", "router: {kind: expert_choice, scope: group}"},
      {"capacity", "capacity: {factor: 1}", {"tensor", "context"}},
      {"capacity_of_a_group", "capacity: {factor: 1, scope: group}"},
      {"other_losses",
       "router: {limit: {groups: 4, keep: 2}, balance: {aux_loss: 1, seq_loss: 1, device_loss: 1, "
       "communication_loss: 1, z_loss: 0.1}}"},
      {"quantile", "router: {kind: quantile}"},
      {"sigmoid_bias", "router: {kind: sigmoid_bias, bias_rate: 0.01}"},
      {"table", "router: {kind: table}"}};
  return out;
}

class LayoutsChange : public ::testing::TestWithParam<Dependence> {};

// Loss and gradient norm of each of two steps.
std::vector<double> steps_of(const ResolvedRun& recipe,
                             const std::shared_ptr<const ParallelSetup>& setup) {
  const Faults none;
  Learner learner(recipe, c10::kCPU, none, setup);
  TrainState state;
  std::vector<double> out;
  for (int64_t step = 0; step < 2; ++step) {
    const StepReport report = learner.step(feed_of(recipe, {}, *setup, step), state);
    out.insert(out.end(), {report.loss, report.grad_norm});
  }
  return out;
}

TEST_P(LayoutsChange, WhatTheGuideSays) {
  const Dependence& what = GetParam();
  const auto recipe = [&](const std::string& parallel) {
    Recipe r = recipe_of("model: {moe: {" + what.moe +
                             "}}\ntrain: {global_batch: 6, micro_batch: 2}\nrun: {device: cpu}\n"
                             "parallel: " +
                             parallel,
                         kModel);
    r.train.precision = Precision::kFp64;
    return r;
  };
  at::set_num_threads(1);
  const std::vector<double> one =
      steps_of(resolve_alone(recipe("{}")), std::make_shared<ParallelSetup>());
  for (const auto& [axis, parallel] : std::vector<std::pair<std::string, std::string>>{
           {"data", "{shard: none, expert: 1}"},
           {"data", "{shard: full, expert: 2}"},
           {"data", "{shard: none, expert: 1, expert_tensor: 2}"},
           {"tensor", "{tensor: 2, shard: none, expert: 1}"},
           {"context", "{context: 2, shard: none, expert: 1}"},
           {"pipeline", "{pipeline: 2, shard: none, expert: 1}"}}) {
    std::vector<double> own;
    testing::in_threads(2, [&, parallel = parallel](World& world) {
      at::set_num_threads(1);
      const ResolvedRun r = resolve(recipe(parallel), world);
      const auto figures = steps_of(
          r, std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), r));
      if (world.rank() == 0) own = figures;
    });
    ASSERT_EQ(own.size(), one.size()) << parallel;
    double apart = 0;
    for (size_t i = 0; i < one.size(); ++i) apart = std::max(apart, std::abs(own[i] / one[i] - 1));
    if (what.axes.contains(axis)) {
      EXPECT_GT(apart, 1e-7) << parallel;
    } else {
      EXPECT_LT(apart, 1e-10) << parallel;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Routing, LayoutsChange, ::testing::ValuesIn(dependences()),
                         [](const auto& given) { return given.param.name; });

// The first stage and the last have the same table; each updates its own.
TEST(LayoutsOfTables, BothEndsOfATiedTableAreEqualBitForBitAfterTwentySteps) {
  const Recipe recipe = recipe_of(
      "run: {device: cpu}\nparallel: {pipeline: 2, shard: none, expert: 1}\n"
      "train: {steps: 20, precision: fp32}\n",
      kModel);
  std::mutex mutex;
  std::map<std::string, std::vector<at::Tensor>> ends;
  testing::in_threads(2, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun run = resolve(recipe, world);
    const auto setup =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
    const Faults none;
    Learner learner(run, c10::kCPU, none, setup);
    TrainState state;
    for (int64_t step = 0; step < 20; ++step) {
      learner.step(feed_of(run, Text{}, *setup, step), state);
    }
    const std::lock_guard lock(mutex);
    for (const auto& slot : learner.store().slots()) {
      ends[slot.named.name].push_back(slot.named.param->value.detach().clone());
    }
  });
  int shared = 0;
  for (const auto& [name, values] : ends) {
    if (values.size() < 2) continue;
    ++shared;
    EXPECT_TRUE(at::equal(values[0], values[1])) << name;
  }
  EXPECT_GE(shared, 1);
}

// Muon computes in f32, and needs whole matrices of which ranks have rows, columns or slices.
constexpr const char* kMuon = "train: {optimizer: {kind: muon, lr: 0.003}}\n";

INSTANTIATE_TEST_SUITE_P(
    Muon, LayoutsInF32,
    ::testing::Values(
        Layout{"ddp_tp_2", "{tensor: 2, shard: none, expert: 1}", 2, kMuon},
        Layout{"zero1_tp_4_few_heads", "{tensor: 4, shard: zero1, expert: 1}", 4, kMuon},
        Layout{"full_tp_2_dp_2_ep_2_split", "{tensor: 2, shard: full, expert: 2, split_shared: on}",
               4, kMuon},
        Layout{"ddp_etp_2", "{shard: none, expert: 1, expert_tensor: 2}", 2, kMuon},
        Layout{"zero1_tp_2_etp_2_ep_2", "{tensor: 2, shard: zero1, expert: 2, expert_tensor: 2}", 8,
               kMuon},
        Layout{"pp_2_tp_2_cp_2", "{pipeline: 2, tensor: 2, context: 2, shard: zero1, expert: 2}", 8,
               kMuon}),
    [](const auto& given) { return given.param.name; });

INSTANTIATE_TEST_SUITE_P(
    F32, LayoutsInF32,
    ::testing::Values(
        Layout{"hybrid_4_ep_4", "{shard: full, shard_ranks: 2, expert: 4}", 4},
        Layout{"zero1_tp_4_dp_2_ep_8", "{tensor: 4, shard: zero1, expert: 8, split_vocab: on}", 8},
        Layout{"ddp_tp_2_etp_2_ep_2", "{tensor: 2, shard: none, expert: 2, expert_tensor: 2}", 4},
        Layout{"full_tp_2_cp_2_dp_2_ep_4", "{tensor: 2, context: 2, shard: full, expert: 4}", 8,
               all_losses(), true},
        Layout{"pp_2_v_2_tp_2_cp_2_full",
               "{pipeline: 2, virtual: 2, tensor: 2, context: 2, shard: full, expert: 4}", 8},
        Layout{"pp_2_zbv_full_dp_2_ep_2", "{pipeline: 2, schedule: zbv, shard: full, expert: 2}",
               4}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace troupe
