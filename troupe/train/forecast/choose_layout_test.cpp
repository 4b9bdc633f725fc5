#include "troupe/train/forecast/choose_layout.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/forecast/layouts_that_fit_test.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/step/products_alone_test.h"

namespace troupe {
namespace {

constexpr double kGiB = double{1 << 30};

LayoutChoice choice_of(const Recipe& r, const RanksAtHand& ranks) {
  return choose_layout(r, ranks, machine_of(r, ranks.on_gpu));
}

ParallelConfig chosen(const std::string& more, const RanksAtHand& ranks) {
  return choice_of(recipe_of(more), ranks).parallel;
}

// As many sequences of 4096 tokens as give each rank four.
Recipe large_run(const std::string& preset, int64_t world) {
  return recipe_of("model: {preset: " + preset +
                   ", max_positions: 4096}\ndata: {sequence: 4096}\n"
                   "train: {micro_batch: 2, global_batch: " +
                   std::to_string(4 * world) + "}");
}

// What ranks share besides experts and state is another test's (find_layouts_test.cpp).
Recipe least_axes(Recipe r) {
  for (int64_t ParallelConfig::*axis :
       {&ParallelConfig::tensor, &ParallelConfig::context, &ParallelConfig::pipeline,
        &ParallelConfig::expert_tensor}) {
    if (r.parallel.*axis == 0) r.parallel.*axis = 1;
  }
  return r;
}

// Every layout that the planner costs, those over hosts and in blocks among them.
TEST(ChooseLayout, NoLayoutThatFitsIsForecastToBeFaster) {
  for (const char* preset : {"olmoe-1b-7b", "mixtral-8x7b", "qwen3-30b-a3b", "dbrx"}) {
    for (const int64_t world : {8, 64, 512}) {
      for (const bool open : {false, true}) {
        Recipe r = least_axes(large_run(preset, world));
        if (open) r.train.micro_batch.reset();
        const RanksAtHand ranks{
            .world = world, .per_host = 8, .memory = 140 * kGiB, .on_gpu = true};
        const LayoutChoice choice = choice_of(r, ranks);
        Machine machine = machine_of(r, true);
        const auto fit = layouts_that_fit(r, world, machine, true, kMostMemory * ranks.memory);
        if (fit.empty()) continue;
        r.parallel = choice.parallel;
        r.train.micro_batch = choice.micro_batch;
        const LayoutForecast f = forecast_layout(r, world, machine, true);
        EXPECT_LE(f.step_seconds, kAlike * fit.front().step_seconds) << preset << ' ' << choice.why;
        EXPECT_NEAR(f.step_seconds, choice.seconds, 1e-9) << preset << ' ' << choice.why;
        EXPECT_LE(f.rank.peak.total(), kMostMemory * ranks.memory) << preset << ' ' << choice.why;
      }
    }
  }
}

// Bytes alone, as if one link carried rows and gradients, would share state over all ranks and
// leave experts where they are: 2.8 and 3.3 times as long.
TEST(ChooseLayout, StateAndExpertsStayOnHostsWhereLinksBetweenThemAreSlow) {
  const auto times = [](int64_t world) {
    Recipe r = least_axes(large_run("olmoe-1b-7b", world));
    const RanksAtHand ranks{.world = world, .per_host = 8, .memory = 80 * kGiB, .on_gpu = true};
    const double best = choice_of(r, ranks).seconds;
    r.parallel.expert = 1;
    r.parallel.shard = ShardKind::kZero1;
    return choice_of(r, ranks).seconds / best;
  };
  EXPECT_GT(times(64), 2);
  EXPECT_GT(times(512), 2);
  const ParallelConfig c = chosen(
      "model: {preset: olmoe-1b-7b, max_positions: 4096}\n"
      "data: {sequence: 4096}\ntrain: {global_batch: 2048}",
      {.world = 512, .per_host = 8, .on_gpu = true});
  EXPECT_EQ(c.shard_ranks, 8);
}

// Both as measured on H200 (docs/bench/2026-11-23-ranks.md): of the one 169 ms a step with, 178
// without; of the other 75 with, 63 without.
TEST(ChooseLayout, ExpertsLieOverRanksWhereThatIsFaster) {
  const RanksAtHand two{.world = 2, .per_host = 2, .on_gpu = true};
  const LayoutChoice large =
      choice_of(recipe_of("model: {preset: olmoe-1b-7b, layers: 8, max_positions: 4096}\n"
                          "data: {sequence: 4096}\ntrain: {micro_batch: 4, global_batch: 8}"),
                two);
  EXPECT_EQ(large.parallel.expert, 2) << large.why;
  EXPECT_EQ(large.parallel.shard, ShardKind::kZero1) << large.why;
  const LayoutChoice small =
      choice_of(recipe_of("model: {layers: 8, width: 1024, heads: 16, vocab: 32768, "
                          "max_positions: 1024, moe: {experts: 32, top_k: 4, hidden: 512}}\n"
                          "data: {sequence: 1024}\ntrain: {micro_batch: 16, global_batch: 64}"),
                two);
  EXPECT_EQ(small.parallel.expert, 1) << small.why;
  EXPECT_EQ(small.parallel.shard, ShardKind::kZero1) << small.why;
}

TEST(ChooseLayout, TheChoiceIsToldBesideTheNextBest) {
  const RanksAtHand ranks{.world = 64, .per_host = 8, .memory = 80 * kGiB, .on_gpu = true};
  const std::string why = choice_of(least_axes(large_run("qwen3-30b-a3b", 64)), ranks).why;
  const std::regex line(
      R"((zero1|none|full)( over 8 ranks each)?, experts over \d+, micro batch 2: [\d.]+ ms a step, )"
      R"(forecast for hosts of 8 H100 \(assumed\); (next|as fast with more parts) )"
      R"((zero1|none|full).*, micro batch 2: [\d.]+ ms; rows go .*; )"
      R"(memory forecast [\d.]+ GiB a rank of 80\.0)");
  EXPECT_TRUE(std::regex_match(why, line)) << why;
  Recipe given = least_axes(large_run("qwen3-30b-a3b", 64));
  given.parallel.expert = 8;
  given.parallel.shard = ShardKind::kZero1;
  const std::string only = choice_of(given, ranks).why;
  EXPECT_EQ(only.find("next"), std::string::npos) << only;
  EXPECT_EQ(only.find("as fast"), std::string::npos) << only;
}

// As rank 0 tells it to the others.
TEST(ChooseLayout, AChoiceReadsBackAsItWasWritten) {
  const LayoutChoice out =
      choice_of(large_run("olmoe-1b-7b", 64), {.world = 64, .per_host = 8, .on_gpu = true});
  std::ostringstream text;
  print_config(text, out);
  LayoutChoice in;
  read_config(parse_yaml(text.str(), "text"), in);
  EXPECT_EQ(flatten(in), flatten(out)) << text.str();
  EXPECT_NE(in.why.find("memory forecast"), std::string::npos);
}

// Nothing is sent here: ways that take as long are ranked by the fewest moving parts.
TEST(ChooseLayout, WhatIsAsFastIsDecidedByTheFewestParts) {
  Recipe r = recipe_of("model: {preset: olmoe-1b-7b}");
  r.train.micro_batch.reset();
  const LayoutChoice c =
      choose_layout(r, {.world = 32, .per_host = 8, .on_gpu = true}, products_alone());
  EXPECT_EQ(c.parallel.shard, ShardKind::kZero1) << c.why;
  EXPECT_EQ(c.parallel.shard_ranks, 0) << c.why;
  EXPECT_EQ(c.parallel.expert, 1) << c.why;
  EXPECT_EQ(c.micro_batch, 2) << c.why;  // of 64 sequences
  EXPECT_EQ(c.micro_why, "chosen with the layout");
  EXPECT_NE(c.why.find("forecast for the machine"), std::string::npos) << c.why;
}

// The choice counts the bytes that rows have in 8 bits, and never takes it by itself.
TEST(ChooseLayout, Q4_Q8_33_RowsIn8BitsAreAskedForAndCounted) {
  const RanksAtHand two{.world = 2, .per_host = 2, .on_gpu = true};
  const auto choice = [&](const std::string& parallel) {
    return choice_of(recipe_of("model: {preset: olmoe-1b-7b, layers: 8, max_positions: 4096}\n"
                               "data: {sequence: 4096}\ntrain: {micro_batch: 4, global_batch: 8}\n"
                               "parallel: {expert: 2, shard: zero1" +
                               parallel + "}"),
                     two);
  };
  const LayoutChoice native = choice(""), int8 = choice(", wire: int8");
  EXPECT_EQ(native.parallel.wire, WireType::kNative);
  EXPECT_NE(native.why.find("rows go all_to_all: "), std::string::npos) << native.why;
  EXPECT_EQ(int8.parallel.wire, WireType::kInt8);
  EXPECT_NE(int8.why.find("rows go all_to_all in int8: "), std::string::npos) << int8.why;
  EXPECT_LT(int8.seconds, native.seconds);
  const LayoutChoice fp8 = choice(", wire: fp8");
  EXPECT_NE(fp8.why.find("rows go all_to_all in fp8: "), std::string::npos) << fp8.why;
  EXPECT_LT(fp8.seconds, int8.seconds);
}

// What memory has no room for otherwise comes before speed.
TEST(ChooseLayout, ExpertsLieOverRanksWhereElseTheyDoNotFit) {
  Recipe r = recipe_of(
      "model: {layers: 8, width: 1024, heads: 16, vocab: 32768, max_positions: 1024, moe: "
      "{experts: 64, top_k: 4, hidden: 512}}\ntrain: {global_batch: 512}\n"
      "parallel: {shard: zero1}");
  RanksAtHand ranks{.world = 8, .per_host = 8, .memory = 80 * kGiB, .on_gpu = true};
  Machine machine = assumed_machine(true);
  machine.dispatch = 1e-2;
  EXPECT_EQ(choose_layout(r, ranks, machine).parallel.expert, 1);
  const auto needs = [&](int64_t expert) {
    Recipe laid = r;
    laid.parallel.expert = expert;
    return needed_memory(laid, true, 8);
  };
  ASSERT_LT(needs(8), needs(4));
  ranks.memory = (needs(8) + needs(4)) / 2 / kMostMemory;
  const LayoutChoice choice = choose_layout(r, ranks, machine);
  EXPECT_EQ(choice.parallel.expert, 8) << choice.why;
  EXPECT_EQ(choice.parallel.shard, ShardKind::kZero1);
}

TEST(ChooseLayout, AllStateIsSharedWhereTheOptimizersAloneDoesNotFit) {
  const std::string mixtral =
      "model: {preset: mixtral-8x7b}\n"
      "parallel: {expert: 8, tensor: 1, context: 1, pipeline: 1, expert_tensor: 1}";
  const RanksAtHand large{.world = 16, .per_host = 8, .memory = 200 * kGiB, .on_gpu = true};
  EXPECT_EQ(chosen(mixtral, large).shard, ShardKind::kZero1);
  RanksAtHand small = large;
  small.memory = 75 * kGiB;
  const LayoutChoice choice = choice_of(recipe_of(mixtral), small);
  EXPECT_EQ(choice.parallel.shard, ShardKind::kFull) << choice.why;
  EXPECT_NE(choice.why.find("of 75.0"), std::string::npos) << choice.why;
  small.memory = kGiB;
  const LayoutChoice least = choice_of(recipe_of(mixtral), small);
  EXPECT_EQ(least.why.find("nothing fits, this needs least: full"), 0U) << least.why;
}

// A smaller microbatch, where with it the optimizer's state alone need be shared, and that is
// faster.
TEST(ChooseLayout, AMicroBatchIsChosenWithTheLayout) {
  Recipe r = least_axes(large_run("mixtral-8x7b", 64));
  RanksAtHand ranks{.world = 64, .per_host = 8, .memory = 79 * kGiB, .on_gpu = true};
  const LayoutChoice two = choice_of(r, ranks);
  EXPECT_EQ(two.micro_why, "given");
  r.train.micro_batch.reset();
  const LayoutChoice open = choice_of(r, ranks);
  EXPECT_EQ(open.parallel.shard, ShardKind::kZero1) << open.why;
  EXPECT_EQ(open.micro_batch, 1) << open.why;
  EXPECT_EQ(open.micro_why, "chosen with the layout");
  EXPECT_LT(open.seconds, two.seconds) << two.why;
  ranks.memory = 400 * kGiB;
  EXPECT_EQ(choice_of(r, ranks).micro_batch, 4);
}

// The hosts' own links take the rows of a node's ranks, where the recipe has experts over hosts.
TEST(ChooseLayout, RowsGoInTwoLevelsWhereExpertsLieOverHosts) {
  const auto with = [](const std::string& parallel, const RanksAtHand& ranks) {
    return choice_of(recipe_of("model: {preset: olmoe-1b-7b}\nparallel: {" + parallel + "}"),
                     ranks);
  };
  const RanksAtHand hosts{.world = 32, .per_host = 8, .on_gpu = true};
  const LayoutChoice two = with("expert: 16", hosts);
  EXPECT_EQ(two.parallel.dispatcher.kind(), "two_level");
  EXPECT_EQ(two.parallel.node_ranks, 8);
  EXPECT_NE(two.why.find("rows go two_level: 16 ranks share experts, over 2 nodes of 8; "),
            std::string::npos)
      << two.why;
  const LayoutChoice one = with("expert: 8", hosts);
  EXPECT_EQ(one.parallel.dispatcher.kind(), "all_to_all");
  EXPECT_NE(one.why.find("rows go all_to_all: the 8 ranks"), std::string::npos) << one.why;
  // Hosts of six are not filled by groups of four.
  EXPECT_EQ(with("expert: 4", {.world = 12, .per_host = 6}).parallel.dispatcher.kind(),
            "all_to_all");
  // Nodes as the recipe has them, also on one host; and what is asked for by name.
  const LayoutChoice virtual_nodes = with("expert: 4, node_ranks: 2", {.world = 4, .per_host = 4});
  EXPECT_EQ(virtual_nodes.parallel.dispatcher.kind(), "two_level");
  EXPECT_EQ(virtual_nodes.parallel.node_ranks, 2);
  EXPECT_EQ(with("expert: 16, dispatcher: all_to_all", hosts).parallel.dispatcher.kind(),
            "all_to_all");
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
  EXPECT_EQ(
      fault("expert: 8, node_ranks: 4, dispatcher: all_gather", needs),
      "parallel.node_ranks: E2005 all_gather has no nodes; used only by dispatcher: two_level");
  EXPECT_EQ(fault("expert: 4, dispatcher: two_level", {.world = 12, .experts = 64, .per_host = 3}),
            "parallel.node_ranks: E2005 4 ranks share experts: they cannot be cut into nodes of 3; "
            "use 2 or 4");
  EXPECT_EQ(fault("expert: 8, dispatcher: symmetric", needs), "");
  EXPECT_EQ(fault("expert: 16, dispatcher: symmetric", needs),
            "parallel.dispatcher: E2005 symmetric reads the memory of other ranks, and the 16 that "
            "share experts are not on one host of 8; use auto, or parallel.expert: 8");
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
  EXPECT_EQ(
      fault(4, {.world = 12, .experts = 6}),
      "parallel.expert: E2005 6 experts on 4 ranks: neither divides the other; use 3 or 6, or "
      "parallel.placement: uneven");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 96}), "");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 97}),
            "parallel.expert: E2005 an expert's width 97 does not divide into the 2 slices of 4 "
            "ranks and 2 experts; use 2");
  EXPECT_EQ(fault(4, {.world = 4, .experts = 2, .hidden = 96, .whole_experts = true}),
            "parallel.expert: E2005 4 ranks would cut the hidden width of 2 experts, which those "
            "with lora do not take; use 2");
  EXPECT_EQ(fault(2, {.world = 4, .experts = 2, .hidden = 96, .whole_experts = true}), "");
}

TEST(ChooseLayout, TensorRanksTakeAdapters) {
  const Recipe r = recipe_of(
      "{model: {layers: 2, width: 64, heads: 4, vocab: 256, moe: {experts: 4, hidden: 32}, lora: "
      "{rank: 2, targets: [attention, experts]}}, parallel: {tensor: 2}}");
  EXPECT_EQ(layout_faults(r.parallel, needs_of(r, 2, 2)), std::vector<std::string>());
}

TEST(ChooseLayout, RanksThatDoNotKnowTheTokensOfAnAdaptersRowsAreFaults) {
  const auto fault = [](const std::string& model, const std::string& parallel, int64_t world) {
    const Recipe r = recipe_of(
        "{model: {layers: 2, width: 64, heads: 4, vocab: 256, moe: {experts: 4, hidden: 32}, " +
        model + "}, data: {sequence: 32}, parallel: {" + parallel + "}}");
    const std::vector<std::string> out = layout_faults(r.parallel, needs_of(r, world, world));
    EXPECT_LE(out.size(), 1u);
    return out.empty() ? std::string() : out[0];
  };
  const std::string attention = "lora: {rank: 2, dropout: 0.1}";
  const std::string experts = "lora: {rank: 2, dropout: 0.1, targets: [experts]}";
  EXPECT_EQ(fault(attention, "tensor: 2", 2), "");
  EXPECT_EQ(fault(attention, "context: 2", 2), "");
  EXPECT_EQ(fault(attention, "expert: 2", 2), "");
  EXPECT_EQ(fault(experts, "shard: full", 2), "");
  EXPECT_EQ(fault(experts, "expert: 2", 2),
            "parallel.expert: E2005 2 ranks send rows to each other's experts, whose adapters "
            "drop by the row's token (lora.dropout 0.1): use 1, with shard: full in its place, or "
            "lora.dropout 0");
  EXPECT_EQ(fault(attention, "tensor: 2, context: 2", 4),
            "parallel.context: E2005 2 ranks with tensor 2 gather tokens of places that dropout "
            "of adapters (model.lora.dropout 0.1) does not know: use one of the two, or "
            "model.lora.dropout 0");
  EXPECT_EQ(fault(attention + ", mla: {kv_rank: 8, nope_dim: 8, rope_dim: 8, value_dim: 8}",
                  "context: 2", 2),
            "parallel.context: E2005 2 ranks compute keys of each other's tokens from latents, "
            "whose adapters drop by the token (model.lora.dropout 0.1): use 1, or "
            "model.lora.dropout 0");
}

TEST(ChooseLayout, TensorRanksThatCutMatricesInFewBitsAreFaults) {
  const Recipe r = recipe_of(
      "{model: {layers: 2, width: 64, heads: 4, vocab: 256, moe: {experts: 4, hidden: 64}, lora: "
      "{rank: 2, targets: [router], frozen: {targets: [attention, experts]}}}, parallel: {tensor: "
      "2}}");
  const std::vector<std::string> cut = layout_faults(r.parallel, needs_of(r, 2, 2));
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(
      cut[0],
      "parallel.tensor: E2005 2 ranks would cut the matrices of attention, which "
      "model.lora.frozen keeps in few bits, whole; use 1, with parallel.expert or shard: full "
      "in its place, or leave attention out of model.lora.frozen.targets");
}

TEST(ChooseLayout, TensorRanksThatDoNotFitAreFaultsWithWhatWould) {
  const auto faults = [](const std::string& model, const std::string& parallel, int64_t world) {
    const Recipe r = recipe_of("model: {" + model + "}\nparallel: {" + parallel + "}");
    return layout_faults(r.parallel, needs_of(r, world, world));
  };
  using Faults = std::vector<std::string>;
  const std::string mixtral = "preset: mixtral-8x7b";  // 32 heads, 8 key heads, 8 experts of 14336
  EXPECT_EQ(faults(mixtral, "tensor: 4, expert: 4", 8), Faults());
  EXPECT_EQ(faults(mixtral, "tensor: 3", 6),
            (Faults{"parallel.tensor: E2005 32 query heads of layer 0 do not divide over 3 ranks; "
                    "use 2 or 4",
                    "parallel.tensor: E2005 8 key heads of layer 0 on 3 ranks: neither divides the "
                    "other; use 2 or 4"}));
  EXPECT_EQ(faults(mixtral, "tensor: 4, data: 4", 8),
            (Faults{"parallel.data: E2005 tensor 4 x data 4 are 16 ranks; there are 8: data 2, or "
                    "16 ranks"}));
  EXPECT_EQ(faults(mixtral, "expert: 4, expert_tensor: 4", 8),
            (Faults{"parallel.expert: E2005 expert_tensor 4 times expert 4 does not divide the 8 "
                    "ranks of a stage; with expert_tensor 4 use expert 2, or expert_tensor 1"}));
  EXPECT_EQ(faults(mixtral, "expert: 2, expert_tensor: 3", 6),
            (Faults{"parallel.expert_tensor: E2005 an expert's width 14336 does not divide into 3 "
                    "slices; use 2 or 4"}));
  EXPECT_EQ(
      faults("layers: 2, width: 64, heads: 4, ffn: 90, vocab: 100", "tensor: 4, split_vocab: on",
             4),
      (Faults{"parallel.tensor: E2005 90 columns of the feed-forward of layer 0 do not divide "
              "over 4 ranks; use 3 or 5",
              "parallel.split_vocab: E2005 100 rows, in blocks of 64, are not cut over 4 "
              "ranks; use off"}));
  Recipe soap = recipe_of(
      "model: {preset: mixtral-8x7b}\nparallel: {tensor: 2}\n"
      "train: {optimizer: {kind: soap}}");
  EXPECT_EQ(
      layout_faults(soap.parallel, needs_of(soap, 2, 2)),
      (Faults{"train.optimizer: E2005 soap works on whole matrices: tensor 1, muon or adamw"}));
}

TEST(ChooseLayout, ContextRanksThatDoNotFitAreFaultsWithWhatWould) {
  const auto faults = [](const std::string& model, const std::string& parallel, int64_t world) {
    const Recipe r = recipe_of("model: {preset: mixtral-8x7b, " + model +
                               "}\ndata: {sequence: 4096}\nparallel: {" + parallel + "}");
    return layout_faults(r.parallel, needs_of(r, world, world));
  };
  using Faults = std::vector<std::string>;
  EXPECT_EQ(faults("", "context: 2, tensor: 2, expert: 8", 8), Faults());
  EXPECT_EQ(faults("", "context: 3, expert: 1", 6),
            (Faults{"parallel.context: E2005 rows of 4096 tokens cannot be cut into 2 x 3 chunks; "
                    "use context 2 or 4"}));
  EXPECT_EQ(faults("attn_dropout: 0.1", "context: 2, expert: 1", 2),
            (Faults{"model.attn_dropout: E2005 0.1 with context 2: attention dropout needs whole "
                    "rows on a rank; use 0, or context 1"}));
  EXPECT_EQ(faults("", "context: 4, context_method: heads, expert: 1", 4), Faults());
  EXPECT_EQ(faults("", "tensor: 4, context: 4, context_method: heads, expert: 1", 16),
            (Faults{"parallel.context_method: E2005 heads: 8 key heads of layer 0 cannot be dealt "
                    "to 16 ranks; use keys"}));
  EXPECT_EQ(faults("", "tensor: 4, context: 4, context_method: ring, expert: 1", 16), Faults());
  EXPECT_EQ(faults("mla: {kv_rank: 64, nope_dim: 64, rope_dim: 64, value_dim: 64}, kv_heads: 32",
                   "context: 4, context_method: ring, expert: 1", 4),
            (Faults{"parallel.context_method: E2005 ring: latent attention has one key for all "
                    "heads; use keys"}));
  EXPECT_EQ(faults("", "tensor: 2, context: 2, data: 3, expert: 1", 8),
            (Faults{"parallel.data: E2005 tensor 2 x context 2 x data 3 are 12 ranks; there are 8: "
                    "data 2, or 12 ranks"}));
}

TEST(ChooseLayout, TablesAndSharedExpertsAreCutWhereTheyAreLarge) {
  const auto cut = [](const std::string& preset) {
    const Recipe r = recipe_of("model: {preset: " + preset + "}\nparallel: {tensor: 4}");
    const ParallelConfig c = resolved(r.parallel, needs_of(r, 4, 4));
    return std::pair(c.split_vocab, c.split_shared);
  };
  EXPECT_EQ(cut("olmoe-1b-7b"), std::pair(CutKind::kOff, CutKind::kOff));
  EXPECT_EQ(cut("deepseek-v3"), std::pair(CutKind::kOn, CutKind::kOff));
}

TEST(ChooseLayout, WhatIsGivenStays) {
  const RanksAtHand ranks{.world = 16, .per_host = 8, .memory = kGiB, .on_gpu = true};
  const ParallelConfig c =
      chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 4, shard: zero1}", ranks);
  EXPECT_EQ(c.expert, 4);
  EXPECT_EQ(c.shard, ShardKind::kZero1);
  EXPECT_EQ(chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 5}", ranks).expert, 5);
  Recipe r = large_run("olmoe-1b-7b", 64);
  const RanksAtHand many{.world = 64, .per_host = 8, .memory = 80 * kGiB, .on_gpu = true};
  EXPECT_EQ(choice_of(r, many).micro_batch, 2);
  EXPECT_EQ(choice_of(r, many).micro_why, "given");
  r.parallel.shard = ShardKind::kFull;  // over all ranks, as it says
  EXPECT_EQ(choice_of(r, many).parallel.shard_ranks, 0);
  r.parallel.shard = ShardKind::kAuto;
  r.parallel.shard_ranks = 16;
  EXPECT_EQ(choice_of(r, many).parallel.shard_ranks, 16);
  EXPECT_NE(choice_of(r, many).parallel.shard, ShardKind::kNone);
}

TEST(ChooseLayout, AnOptimizerOfWholeStateSharesNone) {
  const Recipe r = recipe_of("model: {preset: olmoe-1b-7b}\ntrain: {optimizer: {kind: soap}}");
  EXPECT_EQ(choice_of(r, {.world = 8, .per_host = 8, .on_gpu = true}).parallel.shard,
            ShardKind::kNone);
}

// Links that no rank here could measure are assumed.
TEST(ChooseLayout, AMachineFileDecides) {
  const testing::TemporaryFolder folder;
  Recipe r = recipe_of("model: {preset: olmoe-1b-7b}\ntrain: {micro_batch: 8, global_batch: 64}");
  r.run.machine = folder / "m.yaml";
  const RanksAtHand ranks{.world = 8, .per_host = 8, .on_gpu = true};
  const auto expert = [&](const char* link) {
    std::ofstream(r.run.machine) << "{name: mine, products: 1e15, bandwidth: 1e13" << link << "}\n";
    const LayoutChoice c = choice_of(r, ranks);
    EXPECT_NE(c.why.find("forecast for mine"), std::string::npos) << c.why;
    return c.parallel.expert;
  };
  EXPECT_EQ(expert(", dispatch: 1"), 1);
  EXPECT_GT(expert(", inside: {bandwidth: 1e9, latency: 1e-6}"), 1);
  EXPECT_EQ(machine_of(r, true).between.bandwidth, assumed_machine(true).between.bandwidth);
}

// Row 193: what fits, without a word in the recipe; the loss does not depend on it.
TEST(ChooseLayout, AMicroBatchFitsTheMemoryAndGivesEachRankItsPart) {
  const auto micro = [](const std::string& more, const RanksAtHand& ranks) {
    Recipe r = recipe_of("model: {preset: olmoe-1b-7b}\n" + more);
    if (more.find("micro_batch") == std::string::npos) r.train.micro_batch.reset();
    r.parallel = choice_of(least_axes(r), ranks).parallel;
    return choose_micro_batch(r, ranks);
  };
  EXPECT_EQ(micro("", {}).sequences, 8);
  EXPECT_EQ(micro("", {.on_gpu = true}).sequences, 16);
  EXPECT_EQ(micro("train: {micro_batch: 2}", {.on_gpu = true}).why, "given");
  // 64 sequences: 8 each; of 3 ranks none has equally many, of 48 two have two.
  EXPECT_EQ(micro("", {.world = 8, .per_host = 8, .on_gpu = true}).sequences, 8);
  EXPECT_EQ(micro("", {.world = 3, .per_host = 3, .on_gpu = true}).sequences, 16);
  EXPECT_EQ(micro("", {.world = 48, .per_host = 8, .on_gpu = true}).sequences, 1);
  // All of 8 ranks of 80 GiB can have 8; with less, what needs 90 % of it.
  for (const double gib : {80., 40., 30., 24.}) {
    const RanksAtHand ranks{.world = 8, .per_host = 8, .memory = gib * kGiB, .on_gpu = true};
    const MicroBatchChoice choice = micro("", ranks);
    Recipe r = recipe_of("model: {preset: olmoe-1b-7b}");
    r.train.micro_batch.reset();
    r.parallel = choice_of(r, ranks).parallel;
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
