#include "troupe/train/forecast/layout_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/config/costs.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layouts_that_fit_test.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/step/products_alone_test.h"

namespace troupe {
namespace {

constexpr double kGiB = double{1 << 30};

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
  const double all = forecast_time(r, plan_of(r), 1e12).step_seconds;
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

// Ten bytes a parameter of state, in host memory and copied in and out meanwhile.
TEST(LayoutForecast, OffloadedStateIsSharedAndTakesTheHostsLink) {
  const std::string model = "model: {preset: olmoe-1b-7b}\nparallel: {expert: 1, shard: zero1}\n";
  const double params = 6919161856.0;
  Machine machine = products_alone();
  machine.host_link = 2e10;
  const Recipe plain = recipe_of(model),
               offloaded = recipe_of(model + "train: {offload_state: true}");
  for (const int64_t d : {2, 8}) {
    const auto share = static_cast<double>(d);
    const LayoutForecast f = forecast_layout(offloaded, d, machine, true);
    EXPECT_NEAR(f.host, 10 * params / share, 1e-3 * params);
    EXPECT_NEAR(f.copies, f.host / 2e10, 1e-9);
    EXPECT_GE(f.rank.update, f.copies);
    EXPECT_NEAR(f.rank.peak.state, 0, 1e-3 * params);
    EXPECT_EQ(layout_host_state(offloaded, d, true), f.host);
    EXPECT_EQ(forecast_layout(plain, d, machine, true).host, 0);
    EXPECT_EQ(forecast_layout(offloaded, d, machine, false).host, 0);
  }
  machine.host_link = 0;
  EXPECT_NEAR(forecast_layout(offloaded, 2, machine, true).copies, 5 * params / kAssumedHostLink,
              0.01);
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

// Six experts on four ranks: two hold two, as all do of eight, and all wait for their rows.
TEST(LayoutForecast, N4_TheRankWithTheMostExpertsIsForecast) {
  const auto rank = [](int64_t experts) {
    return forecast_layout(
               recipe_of("model: {preset: mixtral-8x7b, moe: {experts: " + std::to_string(experts) +
                         "}}\nparallel: {expert: 4, shard: zero1, placement: uneven}"),
               4, products_alone(), true)
        .rank;
  };
  const RankTimeline six = rank(6), eight = rank(8), four = rank(4);
  EXPECT_NEAR(six.peak.values, eight.peak.values, 1e-3 * eight.peak.values);
  EXPECT_NEAR(six.peak.state, eight.peak.state, 1e-3 * eight.peak.state);
  EXPECT_LT(four.peak.values, 0.6 * six.peak.values);
  EXPECT_NEAR(four.compute, eight.compute, 1e-3 * eight.compute);  // except for the routers'
  EXPECT_GT(six.compute, 1.2 * eight.compute);
  EXPECT_LT(six.compute, 4 / 3.0 * eight.compute);
}

// Eight experts of 64 in a row are one rank's of 8, and half of a rank's of 4; random ones are not.
TEST(LayoutForecast, ForcedChoicesGoToFewRanks) {
  Machine m = products_alone();
  m.products = m.experts = m.attention = 1e30;
  m.inside = {.bandwidth = 1e9};
  const auto exchange = [&](int64_t ranks, const std::string& force) {
    const std::string n = std::to_string(ranks);
    const Recipe r = recipe_of("model: {preset: olmoe-1b-7b, moe: {router: {force: " + force +
                               "}}}\ntrain: {global_batch: " + n + "}\nparallel: {expert: " + n +
                               ", placement: uneven}");
    return forecast_layout(r, ranks, m, true).rank.exchange;
  };
  // Forward and backward of 16 layers, 1024 tokens, two ways, bf16.
  const double all = 2 * 16 * 1024.0 * 2 * 2 * 2048 / 1e9;
  EXPECT_NEAR(exchange(8, "uniform"), all * (1 - 1 / 8.0), 1e-6);
  EXPECT_NEAR(exchange(4, "uniform"), all * (1 - 1 / 4.0), 1e-6);
  EXPECT_NEAR(exchange(8, "none"), all * 8 * (1 - std::pow(7 / 8.0, 8)) * (1 - 1 / 8.0), 1e-6);
}

// 16 layers, 32 x 1024 tokens with 8 choices, which forced are one rank's of 4: exact keeps a
// row for each choice, all_gather and symmetric those of all ranks, and room for their choices.
TEST(LayoutForecast, WhatDispatchersKeepForBackwardIsCounted) {
  const auto kept = [](const std::string& more) {
    const Recipe r = recipe_of(
        "model: {preset: olmoe-1b-7b, moe: {router: {force: uniform}}}\n"
        "train: {global_batch: 128, micro_batch: 32}\nparallel: {expert: 4, " +
        more + "}");
    return forecast_layout(r, 4, products_alone(), true).rank.peak.activations;
  };
  const double tokens = 16 * 32 * 1024 * 2.0, fast = kept("dispatch: fast");
  EXPECT_NEAR(kept("dispatch: exact") - fast, tokens * (8 - 1) * 2048, 1e-6 * fast);
  for (const std::string way : {"all_gather", "symmetric"}) {
    EXPECT_NEAR(kept("dispatcher: " + way) - fast,
                tokens * ((4 - 1) * 2048 + (4 - 1) * 8 * 2 * 1024), 1e-6 * fast)
        << way;
  }
}

// Three transfers of the rows of 4 ranks, once for all layers; exact: a row for each of 8 choices.
TEST(LayoutForecast, MemoryThatRanksReachIsCountedOnce) {
  const auto runtime = [](const std::string& more, const std::string& layers) {
    const Recipe r = recipe_of(
        "model: {preset: olmoe-1b-7b, layers: " + layers +
        ", moe: {router: {force: uniform}}}\ntrain: {global_batch: 128, micro_batch: 32}\n"
        "parallel: {expert: 4, " +
        more + "}");
    return forecast_layout(r, 4, products_alone(), false).rank.peak.runtime;
  };
  const double rows = 3 * 4 * 32 * 1024.0 * 4 * 2048;
  for (const std::string layers : {"2", "8"}) {
    const double none = runtime("dispatcher: all_gather", layers);
    EXPECT_NEAR(runtime("dispatcher: symmetric", layers) - none, rows, 0.01 * rows) << layers;
    EXPECT_NEAR(runtime("dispatcher: symmetric, dispatch: exact", layers) -
                    runtime("dispatcher: all_gather, dispatch: exact", layers),
                8 * rows, 0.01 * rows)
        << layers;
  }
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

// 16 layers, in forward alone; and the rows of both passes, laid out for 8 ranks and back from
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

// Each way out has 2048 + 128 bytes for 4096 in int8, 2048 + 16 in fp8; the ways back stay.
TEST(LayoutForecast, Q4_Q8_33_RowsIn8BitsAreCountedOnTheirWayOut) {
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
  for (const std::string way :
       {"all_to_all", "two_level, node_ranks: 8", "all_gather", "symmetric"}) {
    const double native = exchange("dispatcher: " + way);
    for (const auto& [wire, bytes] : {std::pair{"int8", 2176.0}, std::pair{"fp8", 2064.0}}) {
      const double share = (bytes / 4096 + 1) / 2;
      EXPECT_NEAR(exchange("wire: " + std::string(wire) + ", dispatcher: " + way), share * native,
                  1e-6 * native)
          << wire << ' ' << way;
    }
  }
}

// Rows of 4096 bytes are written as 2176 (fp8: 2064), and what came is read so and written whole.
TEST(LayoutForecast, Q4_PackingAndUnpackingTakeTheTimeOfTheirBytes) {
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
    const std::string dispatcher = std::string("dispatcher: ") + way;
    for (const auto& [wire, bytes] : {std::pair{"int8", 2176.0}, std::pair{"fp8", 2064.0}}) {
      const double want = passes * (8 * (bytes - 4096) + came * (bytes + 4096));
      const std::string in_wire = "wire: " + std::string(wire) + ", ";
      EXPECT_NEAR(seconds(in_wire + dispatcher) - seconds(dispatcher), want, 1e-6 * std::abs(want))
          << wire << ' ' << way;
    }
  }
}

// Each layer has 4 W^2 of attention and 3 E W F of experts, in buckets of their own.
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

// Gradients of weights that are late are summed once a step, in f32 beside 2-byte values: none is
// sent for each microbatch, and all are held.
TEST(LayoutForecast, FullShardingOfLateWeightsHoldsTheirSums) {
  const auto gradients = [](const std::string& schedule, double& collectives) {
    const Recipe r = recipe_of(
        "model: {layers: 6, width: 512, ffn: 2048, heads: 8, vocab: 512, max_positions: 64}\n"
        "data: {sequence: 64}\ntrain: {precision: bf16, micro_batch: 1, global_batch: 32}\n"
        "parallel: {shard: full, pipeline: 2, schedule: " +
        schedule + "}");
    Machine m = products_alone();
    m.inside = m.between = {.bandwidth = 1e9};
    const LayoutForecast f = forecast_layout(r, 4, m, true);
    collectives = f.rank.collectives;
    return f.rank.peak.gradients;
  };
  double each = 0, once = 0;
  const double with_1f1b = gradients("1f1b", each), with_zb1p = gradients("zb1p", once);
  EXPECT_GT(with_zb1p, 1.25 * with_1f1b);
  EXPECT_LT(once, each);
}

// The peak is the data sheet's, which large products do not reach.
TEST(LayoutForecast, MfuIsOfThePeakAndAbsentWhereThatIsNotKnown) {
  const Recipe r = recipe_of("model: {preset: mixtral-8x7b}\nparallel: {expert: 8, shard: full}");
  const Recipe all = with_batch_of(r, 64);
  Machine m = assumed_cluster();
  m.name = "somebody's";
  EXPECT_FALSE(forecast_layout(all, 64, m, true).mfu.has_value());
  m.peak = 989.5e12;
  const LayoutForecast f = forecast_layout(all, 64, m, true);
  const double flops = costs_of(all.model).flops_per_token(all.data.sequence) * f.tokens_per_second;
  EXPECT_NEAR(f.mfu.value(), flops / 64 / 989.5e12, 1e-9);
  m.products *= 1.25;
  EXPECT_LT(forecast_layout(all, 64, m, true).mfu.value(), 1.25 * f.mfu.value());
  m.peak = 0, m.name = "hosts of 8 H100";
  EXPECT_TRUE(forecast_layout(all, 64, m, true).mfu.has_value());
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

// A second is a byte that leaves a rank in a gather or a sum.
Machine counting_bytes() {
  Machine out = products_alone();
  out.products = out.experts = out.attention = 1e30;
  out.inside = out.between = {.bandwidth = 1};
  return out;
}

// In a gather of `whole` bytes over n ranks, or before they are summed and cut.
double sent(double whole, int64_t n) {
  return whole * static_cast<double>(n - 1) / static_cast<double>(n);
}

struct Block {  // of the ranks that have the same parameters
  int64_t owners = 1, replicas = 1;
  double part(double whole) const { return whole / static_cast<double>(owners); }
};

struct UnitBytes {  // of f32 on a rank, while they are gathered
  double dense = 0, experts = 0;
  double all() const { return dense + experts; }
};

struct Moved {
  double gathered = 0, freed = 0, reduced = 0;  // bytes that are whole on a rank
  double sent = 0;                              // that leave it
  double peak = 0;                              // gathered at a time
};

// Read off the list, with the groups that a rank would join.
Moved moved_by(const LayoutForecast& f, const std::vector<UnitBytes>& units) {
  const ProcessMesh mesh = mesh_of(f);
  const Block dense{mesh.size(GroupKind::kShard), mesh.size(GroupKind::kReplicate)};
  const Block experts{mesh.size(GroupKind::kExpertShard), mesh.size(GroupKind::kExpertReplicate)};
  Moved out;
  double here = 0;
  for (const Action& a : f.schedule.at(0)) {
    if (a.kind != Kind::kGather && a.kind != Kind::kFree && a.kind != Kind::kReduce) continue;
    const UnitBytes& u = units.at(static_cast<size_t>(a.chunk));
    const double cut = sent(u.dense, dense.owners) + sent(u.experts, experts.owners);
    const double copies = 2 * (sent(dense.part(u.dense), dense.replicas) +
                               sent(experts.part(u.experts), experts.replicas));
    const bool last = a.microbatch < 0 || a.microbatch == f.work.microbatches - 1;
    if (a.kind == Kind::kGather) out.gathered += u.all(), out.sent += cut, here += u.all();
    if (a.kind == Kind::kFree) out.freed += u.all(), here -= u.all();
    if (a.kind == Kind::kReduce) out.reduced += u.all(), out.sent += cut + (last ? copies : 0);
    out.peak = std::max(out.peak, here);
  }
  return out;
}

// The same by formula: which ranks share what, how often each unit is gathered (a list of C units
// comes back to unit c after 2 (C - 1 - c) others, and after 2 c in the next microbatch; one that
// is used again within prefetch + 1 stays), and the most that prefetch + 1 neighbors hold.
Moved moved_in(int64_t world, const ParallelConfig& p, int64_t microbatches,
               const std::vector<UnitBytes>& units) {
  Moved out;
  if (world == 1) return out;
  const bool full = p.shard == ShardKind::kFull;
  const int64_t block = p.shard == ShardKind::kNone ? 1 : p.shard_ranks > 0 ? p.shard_ranks : world;
  const Block dense{block, world / block};
  const int64_t owners = std::max<int64_t>(1, block / p.expert);
  const Block experts{owners, world / p.expert / owners};
  const auto C = std::ssize(units), far = p.prefetch + 1;
  for (int64_t c = 0; c < C; ++c) {
    const UnitBytes& u = units[static_cast<size_t>(c)];
    int64_t gathers = p.shard == ShardKind::kNone ? 0 : 1;
    if (full && p.reshard && 2 * (C - 1 - c) > far) gathers += microbatches;
    if (full && 2 * c > far) gathers += microbatches - 1;
    const int64_t sums = full ? microbatches : 1;
    out.gathered += static_cast<double>(gathers) * u.all();
    out.reduced += static_cast<double>(sums) * u.all();
    out.sent += static_cast<double>(gathers + sums) *
                (sent(u.dense, dense.owners) + sent(u.experts, experts.owners));
    out.sent += 2 * (sent(dense.part(u.dense), dense.replicas) +
                     sent(experts.part(u.experts), experts.replicas));
    double side = 0;  // of unit c and those behind it that are there with it
    for (int64_t i = c; i < (full && p.reshard ? std::min(c + far, C) : C); ++i) {
      side += units[static_cast<size_t>(i)].all();
    }
    out.peak = std::max(out.peak, p.shard == ShardKind::kNone ? 0 : side);
  }
  out.freed = full ? out.gathered : 0;
  return out;
}

// Every way to share state that fits these ranks.
std::vector<ParallelConfig> ways_of(int64_t world) {
  std::vector<ParallelConfig> out;
  for (const int64_t expert : {1, 2, 8, 64}) {
    if (world % expert != 0) continue;
    const auto add = [&](ShardKind shard, int64_t block, int64_t prefetch, bool reshard) {
      ParallelConfig& p = out.emplace_back();
      p.expert = expert;
      p.shard = shard;
      p.shard_ranks = block;
      p.prefetch = prefetch;
      p.reshard = reshard;
    };
    add(ShardKind::kNone, 0, 1, true);
    for (const int64_t block : {0, 2, 8, 64}) {
      const bool fits = world % std::max<int64_t>(block, 1) == 0 &&
                        (block == 0 || block % expert == 0 || expert % block == 0);
      if (!fits || block >= world) continue;
      add(ShardKind::kZero1, block, 1, true);
      for (const int64_t prefetch : {0, 1, 3}) add(ShardKind::kFull, block, prefetch, true);
      add(ShardKind::kFull, block, 1, false);
    }
  }
  return out;
}

void expect_formulas(const Recipe& recipe, int64_t world, const ParallelConfig& parallel) {
  Recipe r = with_batch_of(recipe, world);
  r.parallel = parallel;
  const int64_t microbatches = recipe.train.global_batch;
  std::vector<UnitBytes> units;
  for (const UnitCosts& u : costs_of(r.model).units) {
    const auto experts = static_cast<double>(u.params.experts);
    units.push_back({.dense = 4 * (static_cast<double>(u.params.total()) - experts),
                     .experts = 4 * experts / static_cast<double>(parallel.expert)});
  }
  const LayoutForecast f = forecast_layout(r, world, counting_bytes(), true);
  ASSERT_EQ(f.work.microbatches, microbatches);
  const Moved got = moved_by(f, units), want = moved_in(world, parallel, microbatches, units);
  const std::string what =
      std::to_string(world) + " ranks, experts over " + std::to_string(parallel.expert) + ", " +
      to_text(parallel.shard) + " over " + std::to_string(parallel.shard_ranks) + ", prefetch " +
      std::to_string(parallel.prefetch) + ", units " + std::to_string(units.size());
  const auto expect_near = [&](double a, double b) { EXPECT_NEAR(a, b, 1e-9 * b) << what; };
  expect_near(got.gathered, want.gathered);
  expect_near(got.freed, want.freed);
  expect_near(got.reduced, want.reduced);
  expect_near(got.peak, want.peak);
  expect_near(got.sent, want.sent);
  expect_near(f.rank.collectives, want.sent);
}

TEST(LayoutForecast, EveryLayoutOfUpTo3072RanksMovesTheBytesOfTheFormulas) {
  int64_t layouts = 0;
  for (const int64_t layers : {1, 6}) {
    for (const int64_t microbatches : {1, 3}) {
      const Recipe recipe = recipe_of(
          "model: {layers: " + std::to_string(layers) +
          ", width: 64, heads: 4, vocab: 512, max_positions: 64, moe: {experts: 64, top_k: 2, "
          "hidden: 32}}\ndata: {sequence: 16}\ntrain: {precision: fp32, global_batch: " +
          std::to_string(microbatches) + "}");
      for (const int64_t world : {1, 2, 8, 64, 512, 3072}) {
        for (const ParallelConfig& parallel : ways_of(world)) {
          expect_formulas(recipe, world, parallel);
          ++layouts;
        }
      }
    }
  }
  EXPECT_GT(layouts, 1000);
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

// The step of many microbatches, of which six are costed.
TEST(LayoutForecast, ALongStepIsThatOfItsFirstMicrobatchesAndMoreOfTheLast) {
  Recipe r = with_batch_of(
      recipe_of("model: {preset: olmoe-1b-7b}\ntrain: {micro_batch: 1, global_batch: 40}"), 16);
  const auto fit = layouts_that_fit(r, 16, assumed_cluster(), true, 1e15);
  ASSERT_GT(fit.size(), 10U);
  for (const LayoutForecast& f : fit) {
    r.parallel = f.parallel;
    const LayoutForecast whole = forecast_layout(r, 16, assumed_cluster(), true);
    EXPECT_EQ(whole.work.microbatches, 40);
    EXPECT_NEAR(f.step_seconds, whole.step_seconds, 1e-3 * whole.step_seconds);
    EXPECT_NEAR(f.rank.exposed, whole.rank.exposed, 1e-3 * whole.step_seconds);
    EXPECT_NEAR(f.rank.peak.total(), whole.rank.peak.total(), 1);
  }
}

TEST(LayoutForecast, MicrobatchesThatAreLeftOpenAreAmongTheWays) {
  Recipe r = recipe_of("model: {preset: olmoe-1b-7b}\ntrain: {global_batch: 64}");
  const auto tried = [&] {
    std::set<int64_t> out;
    for (const auto& f : layouts_that_fit(r, 8, assumed_cluster(), true, 1e15)) {
      out.insert(f.micro_batch);
    }
    return out;
  };
  EXPECT_EQ(tried(), (std::set<int64_t>{1}));
  r.train.micro_batch.reset();
  EXPECT_EQ(tried(), (std::set<int64_t>{1, 2, 4, 8}));
}

// Groups of 3 on hosts of 8: the third is on two.
TEST(LayoutForecast, ExpertsWhoseRanksDoNotFillHostsCountAsOverSeveral) {
  Machine m = products_alone();
  m.products = m.experts = m.attention = 1e30;
  m.between = {.bandwidth = 1e9};
  const Recipe r = recipe_of(
      "model: {preset: olmoe-1b-7b, moe: {experts: 12}}\ntrain: {global_batch: 24}\n"
      "parallel: {expert: 3, dispatcher: all_to_all}");
  EXPECT_GT(forecast_layout(r, 24, m, true).rank.exchange, 1e-3);
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

// Eight blocks alike, their head of no cost: the published idle time of 1F1B, (P - 1) of M + P - 1
// microbatches' turns; interleaved a v-th of it.
TEST(LayoutForecast, APipelineIdlesAsPublishedAndIsSplitInMemory) {
  const auto of = [](const std::string& parallel) {
    return forecast_layout(
        recipe_of("model: {layers: 8, width: 256, heads: 4, vocab: 64, max_positions: 128, ffn: "
                  "4096, moe: {experts: 0}}\ndata: {sequence: 64}\n"
                  "train: {global_batch: 8, micro_batch: 1}\nparallel: {expert: 1, shard: none" +
                  parallel + "}"),
        4, products_alone(), true);
  };
  const auto idle = [](const LayoutForecast& f) {
    double least = 1;
    for (const RankTimeline& r : f.stages) least = std::min(least, r.bubble / r.seconds);
    return least;
  };
  const LayoutForecast one =
      of(", pipeline: 4, stages: 'Ett|tt|tt|ttL'");  // of the slowest stage, the one with the head
  ASSERT_EQ(one.stages.size(), 4U);
  EXPECT_NEAR(idle(one), 3. / (8 + 3), 0.01);
  const LayoutForecast two = of(", pipeline: 4, virtual: 2, stages: 'Et|t|t|t|t|t|t|tL'");
  EXPECT_NEAR(idle(two), 1.5 / (8 + 1.5), 0.01);
  EXPECT_LT(two.step_seconds, one.step_seconds);
  // The first stage holds most graphs, and a quarter of the blocks' state; the fullest is reported.
  const LayoutForecast whole = of("");
  EXPECT_TRUE(whole.stages.empty());
  EXPECT_GT(one.stages[0].peak.activations, 3 * one.stages[3].peak.activations);
  EXPECT_LT(one.stages[1].peak.state, 0.26 * whole.rank.peak.state);
  EXPECT_EQ(one.rank.peak.total(), one.stages[0].peak.total());
  EXPECT_GT(one.stages[1].peak.activations, 0);
}

// The table of both ends has a copy on each, masters and moments too.
TEST(LayoutForecast, ATiedTableIsHeldByBothEndsOfAPipeline) {
  const std::string model =
      "model: {layers: 4, width: 64, heads: 4, vocab: 8192, max_positions: 128, ffn: 64, "
      "tie_embeddings: true, moe: {experts: 0}}\ndata: {sequence: 64}\n"
      "train: {global_batch: 8, micro_batch: 1, precision: fp32}\nparallel: {expert: 1, shard: "
      "none, pipeline: 2, stages: 'Ett|ttL'}";
  const LayoutForecast f = forecast_layout(recipe_of(model), 2, products_alone(), true);
  const double table = 8192 * 64 * 4.0;
  for (const RankTimeline& rank : f.stages) {
    EXPECT_GT(rank.peak.values, table);
    EXPECT_LT(rank.peak.values, 1.2 * table);
    EXPECT_GT(rank.peak.state, 2 * table);
  }
}

TEST(LayoutForecast, UpdatesInBackwardKeepTheGradientsOfTwoUnits) {
  const auto of = [](const std::string& more) {
    return recipe_of(
        "model: {preset: olmoe-1b-7b}\nparallel: {expert: 1, shard: zero1}\n"
        "train: {clip: 0, global_batch: 2, micro_batch: 1, recompute: '1'" +
        more + "}");
  };
  const Machine machine = products_alone();
  const Recipe plain = of(""), early = of(", update: in_backward");
  const LayoutForecast whole = forecast_layout(plain, 2, machine, true),
                       less = forecast_layout(early, 2, machine, true);
  EXPECT_LT(less.rank.peak.total(), whole.rank.peak.total());
  EXPECT_LT(less.rank.peak.gradients, 0.4 * whole.rank.peak.gradients);
  EXPECT_LE(less.rank.seconds, 1.01 * whole.rank.seconds);
}

}  // namespace
}  // namespace troupe
