#include "troupe/train/choose_layout.h"

#include <gtest/gtest.h>

#include "troupe/train/forecast.h"
#include "troupe/train/recipe_of_test.h"

namespace troupe {
namespace {

constexpr double kGiB = double{1 << 30};

ParallelConfig chosen(const std::string& more, const RanksAtHand& ranks) {
  return choose_layout(recipe_of(more), ranks).parallel;
}

TEST(ChooseLayout, ExpertsStayInsideAHost) {
  const std::string olmoe = "model: {preset: olmoe-1b-7b}";
  EXPECT_EQ(chosen(olmoe, {.world = 64, .per_host = 8, .on_gpu = true}).expert, 8);
  EXPECT_EQ(chosen(olmoe, {.world = 4, .per_host = 4, .on_gpu = true}).expert, 4);
  EXPECT_EQ(chosen(olmoe, {.world = 6, .per_host = 6, .on_gpu = true}).expert, 2);
  EXPECT_EQ(chosen("model: {preset: mixtral-8x7b}", {.world = 64, .per_host = 16}).expert, 8);
  EXPECT_EQ(chosen("model: {layers: 1, width: 32, heads: 2, vocab: 64, ffn: 64, first_dense: 1}",
                   {.world = 4, .per_host = 4})
                .expert,
            1);
}

// Both as measured on H200 (docs/BENCH.md): of the one 181 ms a step with, 193 without; of the
// other 118 with, 85 without.
TEST(ChooseLayout, ExpertsLieOverRanksWhereTheirRowsAreFewerBytesThanTheyAre) {
  const RanksAtHand two{.world = 2, .per_host = 2, .on_gpu = true};
  const auto choice = [&](const std::string& model, const std::string& batch) {
    Recipe r = recipe_of("model: {" + model + "}\ndata: {sequence: " + batch);
    return choose_layout(r, two);
  };
  const LayoutChoice large = choice("preset: olmoe-1b-7b, layers: 8, max_positions: 4096",
                                    "4096}\ntrain: {global_batch: 8}");
  EXPECT_EQ(large.parallel.expert, 2) << large.why;
  EXPECT_NE(large.why.find("experts lie over 2 ranks: their rows are 2.1 GB"), std::string::npos)
      << large.why;
  const LayoutChoice small = choice(
      "layers: 8, width: 1024, heads: 16, vocab: 32768, max_positions: 1024, "
      "moe: {experts: 32, top_k: 4, hidden: 512}",
      "1024}\ntrain: {global_batch: 64}");
  EXPECT_EQ(small.parallel.expert, 1) << small.why;
  EXPECT_NE(small.why.find("do not lie over 2 ranks"), std::string::npos) << small.why;
}

TEST(ChooseLayout, MuonsDirectionsAreAmongWhatExpertsElsewhereSave) {
  const RanksAtHand two{.world = 2, .per_host = 2, .on_gpu = true};
  const auto why = [&](const std::string& kind) {
    return choose_layout(recipe_of("model: {preset: olmoe-1b-7b, layers: 8, max_positions: 4096}\n"
                                   "data: {sequence: 4096}\n"
                                   "train: {global_batch: 8, optimizer: {kind: " +
                                   kind + "}}"),
                         two)
        .why;
  };
  // 3.2 G elements, half of them elsewhere: 4 bytes of sums, 2 of values, 4 of directions.
  EXPECT_NE(why("adamw").find("their gradients and values 9.7 GB less"), std::string::npos);
  EXPECT_NE(why("muon").find("their gradients and values 16.1 GB less"), std::string::npos);
}

// The choice counts the bytes that rows have in int8, and never takes it by itself.
TEST(ChooseLayout, F1_RowsInInt8AreAskedForAndCounted) {
  const RanksAtHand two{.world = 2, .per_host = 2, .on_gpu = true};
  const auto choice = [&](const std::string& parallel) {
    return choose_layout(recipe_of("model: {preset: olmoe-1b-7b, layers: 8, max_positions: 4096}\n"
                                   "data: {sequence: 4096}\ntrain: {global_batch: 8}\n"
                                   "parallel: {" +
                                   parallel + "}"),
                         two);
  };
  const LayoutChoice native = choice(""), int8 = choice("wire: int8");
  EXPECT_EQ(native.parallel.wire, WireType::kNative);
  EXPECT_NE(native.why.find("rows go all_to_all: "), std::string::npos) << native.why;
  EXPECT_EQ(int8.parallel.wire, WireType::kInt8);
  EXPECT_NE(int8.why.find("rows go all_to_all in int8: "), std::string::npos) << int8.why;
  // 2.1 GB of 4096 bytes a row; half of the rows then have 2048 + 128.
  EXPECT_NE(int8.why.find("their rows are 1.6 GB"), std::string::npos) << int8.why;
}

// What memory has no room for otherwise comes before fewer bytes.
TEST(ChooseLayout, ExpertsLieOverRanksWhereElseTheyDoNotFit) {
  const std::string many =
      "model: {layers: 8, width: 1024, heads: 16, vocab: 32768, max_positions: 1024, moe: "
      "{experts: "
      "64, top_k: 4, hidden: 512}}\ntrain: {global_batch: 512}";
  RanksAtHand ranks{.world = 8, .per_host = 8, .memory = 80 * kGiB, .on_gpu = true};
  EXPECT_EQ(chosen(many, ranks).expert, 1);
  const auto needs = [&](int64_t expert) {
    Recipe r = recipe_of(many);
    r.parallel.expert = expert;
    r.parallel.shard = ShardKind::kZero1;
    return needed_memory(r, true, 8);
  };
  ASSERT_LT(needs(8), needs(1));
  ranks.memory = (needs(8) + needs(1)) / 2 / 0.9;
  const LayoutChoice choice = choose_layout(recipe_of(many), ranks);
  EXPECT_EQ(choice.parallel.expert, 8) << choice.why;
  EXPECT_EQ(choice.parallel.shard, ShardKind::kZero1);
  EXPECT_NE(choice.why.find("but over 8 they fit"), std::string::npos) << choice.why;
}

TEST(ChooseLayout, AllStateIsSharedWhereTheOptimizersAloneDoesNotFit) {
  const std::string mixtral = "model: {preset: mixtral-8x7b}";
  const RanksAtHand large{.world = 16, .per_host = 8, .memory = 200 * kGiB, .on_gpu = true};
  EXPECT_EQ(chosen(mixtral, large).shard, ShardKind::kZero1);
  RanksAtHand small = large;
  small.memory = 75 * kGiB;
  const LayoutChoice choice = choose_layout(recipe_of(mixtral), small);
  EXPECT_EQ(choice.parallel.shard, ShardKind::kFull);
  EXPECT_NE(choice.why.find("with the optimizer's alone"), std::string::npos) << choice.why;
  EXPECT_NE(choice.why.find("of 75.0"), std::string::npos) << choice.why;
}

// The hosts' own links take the rows of a node's ranks, where the recipe has experts over hosts.
TEST(ChooseLayout, RowsGoInTwoLevelsWhereExpertsLieOverHosts) {
  const auto with = [](const std::string& parallel, const RanksAtHand& ranks) {
    return choose_layout(recipe_of("model: {preset: olmoe-1b-7b}\nparallel: {" + parallel + "}"),
                         ranks);
  };
  const RanksAtHand hosts{.world = 32, .per_host = 8, .on_gpu = true};
  const LayoutChoice two = with("expert: 16", hosts);
  EXPECT_EQ(two.parallel.dispatcher, DispatcherKind::kTwoLevel);
  EXPECT_EQ(two.parallel.node_ranks, 8);
  EXPECT_NE(two.why.find("rows go two_level: 16 ranks share experts, over 2 nodes of 8; "),
            std::string::npos)
      << two.why;
  const LayoutChoice one = with("expert: 8", hosts);
  EXPECT_EQ(one.parallel.dispatcher, DispatcherKind::kAllToAll);
  EXPECT_NE(one.why.find("rows go all_to_all: the 8 ranks"), std::string::npos) << one.why;
  // Hosts of six are not filled by groups of four.
  EXPECT_EQ(with("expert: 4", {.world = 12, .per_host = 6}).parallel.dispatcher,
            DispatcherKind::kAllToAll);
  // Nodes as the recipe has them, also on one host; and what is asked for by name.
  const LayoutChoice virtual_nodes = with("expert: 4, node_ranks: 2", {.world = 4, .per_host = 4});
  EXPECT_EQ(virtual_nodes.parallel.dispatcher, DispatcherKind::kTwoLevel);
  EXPECT_EQ(virtual_nodes.parallel.node_ranks, 2);
  EXPECT_EQ(with("expert: 16, dispatcher: all_to_all", hosts).parallel.dispatcher,
            DispatcherKind::kAllToAll);
}

TEST(ChooseLayout, NodesThatCannotBeAreFaults) {
  const auto fault = [](const std::string& parallel, const LayoutNeeds& needs) {
    const auto faults = layout_faults(recipe_of("parallel: {" + parallel + "}").parallel, needs);
    return faults.empty() ? "" : faults[0];
  };
  const LayoutNeeds needs{.world = 16, .experts = 64, .per_host = 8};
  EXPECT_EQ(fault("expert: 16", needs), "");
  EXPECT_EQ(fault("expert: 8, node_ranks: 3", needs),
            "parallel.node_ranks: E2005 8 ranks share experts: they cannot be cut into nodes of 3; "
            "use 2 or 4");
  EXPECT_EQ(fault("expert: 8, node_ranks: 4, dispatcher: all_gather", needs),
            "parallel.node_ranks: E2005 all_gather knows no nodes; they are two_level's");
  EXPECT_EQ(fault("expert: 4, dispatcher: two_level", {.world = 12, .experts = 64, .per_host = 3}),
            "parallel.node_ranks: E2005 4 ranks share experts: they cannot be cut into nodes of 3; "
            "use 2 or 4");
  EXPECT_EQ(fault("expert: 4, rebalance: {every: 10}", {.world = 4, .experts = 2, .per_host = 4}),
            "parallel.rebalance: E2005 4 ranks cut 2 experts by their width: each has a part of "
            "the same work");
}

TEST(ChooseLayout, ExpertsThatCannotLieSoAreFaultsWithWhatWouldDo) {
  const auto fault = [](int64_t expert, const LayoutNeeds& needs) {
    const Recipe r = recipe_of("parallel: {expert: " + std::to_string(expert) + "}");
    const auto faults = layout_faults(r.parallel, needs);
    return faults.empty() ? "" : faults[0];
  };
  EXPECT_EQ(fault(4, {.world = 12, .experts = 6}),
            "parallel.expert: E2005 6 experts on 4 ranks: neither divides the other; use 3 or 6");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 96}), "");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 97}),
            "parallel.expert: E2005 an expert's width 97 does not divide into the 2 slices of 4 "
            "ranks and 2 experts; use 2");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 96, .whole_experts = true}),
            "parallel.expert: E2005 4 ranks would cut the hidden width of 2 experts, which those "
            "with a bias or lora do not take; use 2");
  EXPECT_EQ(fault(2, {.world = 4, .experts = 2, .hidden = 96, .whole_experts = true}), "");
}

TEST(ChooseLayout, WhatIsGivenStays) {
  const RanksAtHand ranks{.world = 16, .per_host = 8, .memory = kGiB, .on_gpu = true};
  const ParallelConfig c =
      chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 4, shard: zero1}", ranks);
  EXPECT_EQ(c.expert, 4);
  EXPECT_EQ(c.shard, ShardKind::kZero1);
  EXPECT_EQ(chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 5}", ranks).expert, 5);
}

// Row 193: what fits, without a word in the recipe; the loss does not depend on it.
TEST(ChooseLayout, AMicroBatchFitsTheMemoryAndGivesEachRankItsPart) {
  const auto micro = [](const std::string& more, const RanksAtHand& ranks) {
    Recipe r = recipe_of("model: {preset: olmoe-1b-7b}\n" + more);
    if (more.find("micro_batch") == std::string::npos) r.train.micro_batch.reset();
    r.parallel = choose_layout(r, ranks).parallel;
    return choose_micro_batch(r, ranks);
  };
  EXPECT_EQ(micro("", {}).sequences, 8);
  EXPECT_EQ(micro("", {.on_gpu = true}).sequences, 16);
  EXPECT_EQ(micro("train: {micro_batch: 2}", {.on_gpu = true}).why, "given");
  // 64 sequences: 8 each; of 3 ranks none has equally many, of 48 two have two.
  EXPECT_EQ(micro("", {.world = 8, .per_host = 8, .on_gpu = true}).sequences, 8);
  EXPECT_EQ(micro("", {.world = 3, .per_host = 3, .on_gpu = true}).sequences, 16);
  EXPECT_EQ(micro("", {.world = 48, .per_host = 8, .on_gpu = true}).sequences, 1);
  // Of 8 ranks of 80 GiB all can have 8; of less, what needs 90 % of it.
  for (const double gib : {80., 40., 30., 24.}) {
    const RanksAtHand ranks{.world = 8, .per_host = 8, .memory = gib * kGiB, .on_gpu = true};
    const MicroBatchChoice choice = micro("", ranks);
    Recipe r = recipe_of("model: {preset: olmoe-1b-7b}");
    r.train.micro_batch.reset();
    r.parallel = choose_layout(r, ranks).parallel;
    r.train.micro_batch = choice.sequences;
    const double needs = needed_memory(r, true, 8);
    EXPECT_TRUE(needs <= 0.9 * ranks.memory || choice.sequences == 1) << gib << ' ' << needs;
    r.train.micro_batch = 2 * choice.sequences;
    EXPECT_TRUE(choice.sequences == 8 || needed_memory(r, true, 8) > 0.9 * ranks.memory) << gib;
    EXPECT_EQ(choice.sequences == 8, choice.why.find("would need") == std::string::npos)
        << choice.why;
  }
}

}  // namespace
}  // namespace troupe
