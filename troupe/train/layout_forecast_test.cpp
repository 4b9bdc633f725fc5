#include "troupe/train/layout_forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"
#include "troupe/nn/models/costs.h"
#include "troupe/train/forecast.h"
#include "troupe/train/recipe_of_test.h"

namespace troupe {
namespace {

constexpr double kGiB = double{1 << 30};

// Products alone cost time: whatever else is free.
Machine products_alone() {
  const Link free{.bandwidth = 1e30};
  return {.products = 1e12,
          .experts = 1e12,
          .attention = 1e12,
          .bandwidth = 1e30,
          .inside = free,
          .between = free};
}

// The machine of the published scaling model (8 devices a host; assumed, not measured).
Machine assumed_cluster() {
  return {.memory = 80 * kGiB,
          .products = 600e12,
          .experts = 600e12,
          .attention = 400e12,
          .bandwidth = 3e12,
          .overhead = 30e-6,
          .inside = {.bandwidth = 330e9, .latency = 12e-6},
          .between = {.bandwidth = 42e9, .latency = 12e-6},
          .jitter = 0.004,
          .derate = 0.06,
          .imbalance = 1.06};
}

TEST(LayoutForecast, ARankAloneTakesTheTimeOfItsProducts) {
  const Recipe r = recipe_of("model: {preset: olmoe-1b-7b}");
  const LayoutForecast f = forecast_layout(r, 1, products_alone(), true);
  const double core = 64 * 1024 * 512 * 6.0 * 16 * 2 * 2048 / 1e12;
  const double all = forecast_time(r, 1e12).step_seconds;
  EXPECT_NEAR(f.step_seconds, all + core * (0.5 / 6 * 2), 0.01 * all);  // the core's 3.5 for 3
  EXPECT_EQ(f.rank.exposed + f.rank.exchange + f.rank.collectives, 0);
}

TEST(LayoutForecast, ARankAloneHoldsWhatTheForecastOfOneProcessSays) {
  for (const char* more : {"model: {preset: olmoe-1b-7b}", "model: {preset: qwen3-30b-a3b}",
                           "model: {preset: mixtral-8x7b}\ntrain: {recompute: '1'}"}) {
    const Recipe r = recipe_of(more);
    const StepMemory m = forecast_layout(r, 1, products_alone(), true).rank.peak;
    const MemoryForecast one = forecast_memory(r, true);
    EXPECT_NEAR(m.values, one.weights, 1e-6 * one.weights) << more;
    EXPECT_NEAR(m.state, one.masters + one.moments, 1e-6 * m.state) << more;
    EXPECT_NEAR(m.total(), one.total(), 0.05 * one.total()) << more;
  }
}

// N4: bytes a parameter, sharded over d ranks: bf16 with f32 sums, masters in halves.
TEST(LayoutForecast, N4_StatesAreThoseOfTheTable) {
  const std::string model = "model: {preset: olmoe-1b-7b}\nparallel: {expert: 1, shard: ";
  const double params = 6919161856.0;
  for (const int64_t d : {2, 8, 64}) {
    const auto of = [&](const std::string& shard) {
      return forecast_layout(recipe_of(model + shard + "}"), d, products_alone(), true).rank.peak;
    };
    const auto share = static_cast<double>(d);
    EXPECT_NEAR(of("none").values + of("none").state, 12 * params, 1e-3 * params);
    EXPECT_NEAR(of("zero1").values + of("zero1").state, (2 + 10 / share) * params, 1e-3 * params);
    const StepMemory full = of("full");
    EXPECT_NEAR(full.state, 10 * params / share, 1e-3 * params);
    EXPECT_GE(full.values, 2 * params / share);
    EXPECT_LE(full.values, 2 * params / share + 4 * params / 16);  // and two layers of 16
  }
}

// Experts are cut over their own ranks, dense parameters over all.
TEST(LayoutForecast, N4_ExpertsHaveTheirOwnDivisor) {
  const Recipe r = recipe_of("model: {preset: mixtral-8x7b}\nparallel: {expert: 8, shard: zero1}");
  const LayoutForecast f = forecast_layout(r, 16, products_alone(), true);
  double experts = 0, dense = 0;
  for (const UnitCosts& u : costs_of(r.model).units) {
    experts += static_cast<double>(u.params.experts);
    dense += static_cast<double>(u.params.total() - u.params.experts);
  }
  EXPECT_NEAR(f.rank.peak.values, 2 * (dense + experts / 8), 1e-3 * dense);
  EXPECT_NEAR(f.rank.peak.state, 10 * (dense / 16 + experts / 8 / 2), 1e-3 * dense);
}

// Experts that one rank alone has are not summed: their gradients stay the bf16 that backward made.
TEST(LayoutForecast, ExpertsThatNoOtherRankHasAreNotSummed) {
  const Recipe r = recipe_of(
      "model: {preset: mixtral-8x7b}\ntrain: {global_batch: 8}\n"
      "parallel: {shard: none, expert: 8}");
  double experts = 0, dense = 0;
  for (const UnitCosts& u : costs_of(r.model).units) {
    experts += static_cast<double>(u.params.experts);
    dense += static_cast<double>(u.params.total() - u.params.experts);
  }
  const double want = 2 * experts / 8 + 4 * dense;
  EXPECT_NEAR(forecast_layout(r, 8, products_alone(), true).rank.peak.gradients, want, 0.1 * want);
}

// Rows alone cost time: with free links inside a host, those that a token sends to its nodes.
TEST(LayoutForecast, TwoLevelsSendATokenOnceToANode) {
  Machine m = products_alone();
  m.products = m.experts = m.attention = 1e30;
  m.between = {.bandwidth = 1e9};
  const auto exchange = [&](const std::string& dispatcher) {
    const Recipe r = recipe_of(
        "model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 16}\n"
        "parallel: {expert: 16, " +
        dispatcher + "}");
    return forecast_layout(r, 16, m, true).rank.exchange;
  };
  // Forward and backward of 16 layers, 1024 tokens, two ways, bf16; top 8 of 64 experts, 2 nodes
  // of 8. A token's choices miss a node with 2^-8, a rank with (15/16)^8.
  const double all = 2 * 16 * 1024.0 * 2 * 2 * 2048 / 1e9;
  const double nodes = 1 - std::pow(0.5, 8), ranks = 8 * (1 - std::pow(15 / 16.0, 8));
  EXPECT_NEAR(exchange("dispatcher: auto"), all * nodes, 1e-6);
  EXPECT_NEAR(exchange("dispatcher: all_to_all"), all * ranks, 1e-6);
  EXPECT_NEAR(exchange("dispatch: exact"), all * (nodes + 8 / 2.0) / 2, 1e-6);
  EXPECT_GT(exchange("dispatcher: all_gather"), exchange("dispatcher: all_to_all"));
  EXPECT_GT(exchange("node_ranks: 2"), exchange("node_ranks: 8"));
}

// Of 16 layers, in forward alone; and the rows of both passes, laid out for 8 ranks and back from
// as many as a token meets.
TEST(LayoutForecast, WhatADispatchWaitsForAndLaysOutIsCounted) {
  Machine m = products_alone();
  const Recipe r =
      recipe_of("model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 16}\nparallel: {expert: 16}");
  const auto compute = [&] { return forecast_layout(r, 16, m, true).rank.compute; };
  const double none = compute();
  m.dispatch = 1e-3;
  EXPECT_NEAR(compute() - none, 16e-3, 1e-9);
  m.dispatch = 0;
  m.bandwidth = 1e12;
  const double met = 16 * (1 - std::pow(15 / 16.0, 8));
  EXPECT_GT(compute() - none, 2 * 16 * 1024 * 2 * (8 + met) * 4096 / m.bandwidth);
}

// Each way out has 2048 + 128 bytes for 4096; the ways back stay.
TEST(LayoutForecast, F1_RowsInInt8AreCountedOnTheirWayOut) {
  Machine m = products_alone();
  m.products = m.experts = m.attention = 1e30;
  m.inside = {.bandwidth = 1e9};
  m.ranks_per_host = 16;
  const auto exchange = [&](const std::string& parallel) {
    const Recipe r = recipe_of(
        "model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 16}\n"
        "parallel: {expert: 16, " +
        parallel + "}");
    return forecast_layout(r, 16, m, true).rank.exchange;
  };
  const double share = (2176 / 4096.0 + 1) / 2;
  for (const std::string way : {"all_to_all", "two_level, node_ranks: 8", "all_gather"}) {
    const double native = exchange("dispatcher: " + way);
    EXPECT_NEAR(exchange("wire: int8, dispatcher: " + way), share * native, 1e-6 * native) << way;
  }
}

// Rows of 4096 bytes are written as 2176, and what came is read so and written whole.
TEST(LayoutForecast, F1_PackingAndUnpackingTakeTheTimeOfTheirBytes) {
  Machine m = products_alone();
  m.products = m.experts = m.attention = 1e30;
  m.bandwidth = 1e12;
  const auto seconds = [&](const std::string& parallel) {
    const Recipe r = recipe_of(
        "model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 16}\n"
        "parallel: {expert: 16, " +
        parallel + "}");
    return forecast_layout(r, 16, m, true).rank.seconds;
  };
  // Both passes of 16 layers, 1024 tokens, laid out for 8 ranks at most.
  const double met = 16 * (1 - std::pow(15 / 16.0, 8)), passes = 2 * 16 * 1024.0 / 1e12;
  for (const auto& [way, came] : {std::pair{"all_to_all", met}, std::pair{"all_gather", 16.0}}) {
    const double want = passes * (8 * (2176 - 4096.0) + came * (2176 + 4096));
    const std::string dispatcher = std::string("dispatcher: ") + way;
    EXPECT_NEAR(seconds("wire: int8, " + dispatcher) - seconds(dispatcher), want, 1e-6 * want)
        << way;
  }
}

// Of each layer 4 W^2 of attention and 3 E W F of experts, in buckets of their own.
TEST(LayoutForecast, MuonsDirectionsAreGatheredForTheUpdate) {
  Machine m = products_alone();
  m.inside = {.bandwidth = 1e9};
  const auto of = [&](const std::string& kind, const std::string& parallel) {
    const Recipe r = recipe_of(
        "model: {layers: 2, width: 1024, heads: 8, vocab: 256, moe: {experts: 8, top_k: 2, "
        "hidden: 512}}\ndata: {sequence: 8}\ntrain: {optimizer: {kind: " +
        kind + "}}\nparallel: {sum: bf16, " + parallel + "}");
    return forecast_layout(r, 4, m, true).rank;
  };
  const double dense = 4.0 * 1024 * 1024, experts = 3 * 8 * 512 * 1024.0, matrix = 512 * 1024;
  const RankTimeline shared = of("muon", "expert: 1, shard: zero1");
  const double sent = 4 * (dense + experts) * 3 / 4;
  EXPECT_NEAR(shared.update, 2 * sent / 1e9, 1e-6);
  EXPECT_NEAR(shared.peak.workspace,
              4 * (experts * (1 + 1 / 4.0) + 6 * (experts * 2 / 3 / 4 + 2 * matrix)), 1);
  EXPECT_LT(of("adamw", "expert: 1, shard: zero1").update, 1e-6);
  // Experts over all ranks are nobody else's: their matrices are whole where they are.
  const RankTimeline spread = of("muon", "expert: 4, shard: zero1");
  EXPECT_NEAR(spread.update, 2 * 4 * dense * 3 / 4 / 1e9, 1e-6);
  EXPECT_LT(of("muon", "expert: 1, shard: none").update, 1e-6);
}

TEST(LayoutForecast, SlowerLinksAndMoreRanksNeverMakeAStepFaster) {
  const Recipe one = recipe_of("model: {preset: dbrx}\nparallel: {expert: 8, shard: zero1}");
  double before = 0;
  for (const int64_t world : {8, 64, 512, 3072}) {
    const LayoutForecast f =
        forecast_layout(with_batch_of(one, world), world, assumed_cluster(), true);
    EXPECT_GE(f.step_seconds, before) << world;
    before = f.step_seconds;
    Machine slow = assumed_cluster();
    slow.between.bandwidth /= 4;
    const LayoutForecast g = forecast_layout(with_batch_of(one, world), world, slow, true);
    EXPECT_GE(g.step_seconds, f.step_seconds) << world;
    if (world == 3072) {
      EXPECT_GT(g.step_seconds, f.step_seconds);
    }
  }
}

// A cluster of 3,072 devices: near linear from 64 on, as was published of this model's training.
TEST(LayoutForecast, S_DbrxScalesNearlyLinearly) {
  const Recipe one = recipe_of(
      "model: {preset: dbrx}\ndata: {sequence: 4096}\ntrain: {global_batch: 16}\n"
      "parallel: {expert: 8, shard: full, shard_ranks: 64}");
  const auto of = [&](int64_t world) {
    return forecast_layout(with_batch_of(one, world), world, assumed_cluster(), true);
  };
  const LayoutForecast few = of(64), many = of(3072);
  const double each_few = few.tokens_per_second / 64, each_many = many.tokens_per_second / 3072;
  EXPECT_GT(each_many / each_few, 0.9);
  EXPECT_LT(each_many / each_few, 1.0);
  EXPECT_LT(few.rank.peak.total(), 141 * kGiB);
}

TEST(LayoutForecast, ACalibratedMachineTakesTheTimeThatWasMeasured) {
  const Recipe r = recipe_of("model: {preset: olmoe-1b-7b}");
  const Machine m = calibrated(r, assumed_cluster(), true, 1.25);
  EXPECT_NEAR(forecast_layout(r, 1, m, true).rank.seconds, 1.25, 1e-9);
  const Recipe two = recipe_of("model: {preset: olmoe-1b-7b}\nparallel: {expert: 2}");
  EXPECT_EQ(calibrated(two, assumed_cluster(), true, 1.25).products, m.products);
}

// Row 193: experts stay on few hosts, and what does not fit is left out.
TEST(LayoutForecast, TheFastestLayoutThatFitsIsChosen) {
  const Recipe r = with_batch_of(
      recipe_of("model: {preset: dbrx}\ndata: {sequence: 4096}\ntrain: {global_batch: 8}"), 64);
  const auto fit = layouts_that_fit(r, 64, assumed_cluster(), true, 200 * kGiB);
  ASSERT_GT(fit.size(), 1U);
  EXPECT_LE(fit.front().parallel.expert, 16);  // of 64: two hosts
  for (size_t i = 0; i < fit.size(); ++i) {
    EXPECT_LE(fit[i].rank.peak.total(), 200 * kGiB);
    if (i > 0) {
      EXPECT_GE(fit[i].step_seconds, fit[i - 1].step_seconds);
    }
  }
  EXPECT_GT(layouts_that_fit(r, 64, assumed_cluster(), true, 1e15).size(), fit.size());
  EXPECT_TRUE(layouts_that_fit(r, 64, assumed_cluster(), true, 1e9).empty());
  Recipe given = r;
  given.parallel.expert = 16;
  for (const auto& f : layouts_that_fit(given, 64, assumed_cluster(), true, 1e15)) {
    EXPECT_EQ(f.parallel.expert, 16);
  }
}

TEST(LayoutForecast, WhatDoesNotFitIsRefusedWithWhatWould) {
  try {
    forecast_layout(recipe_of("model: {preset: mixtral-8x7b}\nparallel: {expert: 3}"), 4,
                    products_alone(), true);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("parallel.expert"), std::string::npos);
  }
}

}  // namespace
}  // namespace troupe
