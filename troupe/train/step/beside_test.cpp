// parallel.overlap: the backward of one microbatch beside the forward of the next changes the order
// of transfers, and no bit.
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/testing/torch/ranks.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/step/learner.h"

namespace troupe {
namespace {

using testing::in_threads;

std::string base(int layers, int batch) {
  return "model: {layers: " + std::to_string(layers) +
         ", width: 32, heads: 4, vocab: 64, max_positions: 16, ffn: 48, init_std: 0.1, "
         "moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, router: {kind: "
         "topk_softmax, jitter: 0.01, balance: {aux_loss: 0.05, global_loss: 0.05, z_loss: "
         "0.001}}}, dropout: 0.1}\n"
         "data: {sequence: 8}\n"
         "train: {global_batch: " +
         std::to_string(batch) +
         ", micro_batch: 1, steps: 10, clip: 0.5, precision: fp32, optimizer: {kind: adamw, lr: "
         "0.003}, schedule: {warmup: 0}}\n"
         "checkpoint: {dir: run}\nrun: {device: cpu}\n";
}

Feed feed_of(const ResolvedRun& r, const ParallelSetup& setup, int64_t step) {
  const int64_t S = r.data.sequence, all = r.train.global_batch;
  const RankShare share = share_of(setup.state, all);
  TokenBatch rows{.first_sample = share.first, .B = share.count, .S = S};
  for (int64_t b = share.first; b < share.first + share.count; ++b) {
    for (int64_t s = 0; s <= S; ++s) {
      rows.ids.push_back(static_cast<int32_t>((b * 31 + s * s * 7 + step * 13 + 5) % 64));
      if (s == S) continue;
      rows.weights.push_back(1);
      rows.positions.push_back(static_cast<int32_t>(s));
      rows.documents.push_back(0);
    }
    rows.sources.push_back(0);
  }
  Feed out = make_feed(rows, 1, c10::kCPU, share.steps, row_cut(r, setup));
  out.weight_sum = static_cast<double>(all * S);
  out.loss_tokens = out.tokens = all * S;
  out.all_microbatches = out.samples = all;
  out.first_token = share.first * S;
  return out;
}

struct RankRun {
  std::vector<double> figures;
  std::map<std::string, at::Tensor> weights;
  std::string exchanges;  // of the last step, in order
};

// The exchanges of a step: of rows, of which a run without context ranks has no others.
std::string exchanges_since(const Pulse& pulse, int64_t from) {
  std::string out;
  std::map<int64_t, int64_t> number;
  pulse.flight().visit([&](const FlightRecorder::Raw& raw) {
    if (raw.at < from || raw.operation.what != Collective::kAllToAll) return;
    if (raw.event != Note::kIssue && raw.event != Note::kWait) return;
    const int64_t i = number.try_emplace(raw.operation.number, std::ssize(number)).first->second;
    out += (raw.event == Note::kIssue ? "send" : "wait") + std::to_string(i) + ' ';
  });
  return out;
}

// By rank.
std::vector<RankRun> runs_of(const std::string& base, const std::string& more, int ranks) {
  std::vector<RankRun> out(static_cast<size_t>(ranks));
  at::set_num_threads(1);
  in_threads(ranks, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun r = resolve(recipe_of(more, base), world);
    const auto own =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), r);
    const Faults none;
    Learner learner(r, c10::kCPU, none, own);
    TrainState state;
    RankRun& run = out[static_cast<size_t>(world.rank())];
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t from = steady_now();
      const StepReport report = learner.step(feed_of(r, *own, step), state);
      for (const double x : {report.loss, report.grad_norm}) run.figures.push_back(x);
      for (const auto& [name, sum] : report.output.aux) {
        run.figures.push_back(sum.item<double>());
      }
      run.exchanges = exchanges_since(world.pulse(), from);
    }
    std::vector<int64_t> all;
    for (size_t b = 0; b < learner.store().buckets().size(); ++b) {
      all.push_back(static_cast<int64_t>(b));
    }
    learner.store().gather(all);
    learner.store().need(all);
    learner.model().for_each_param(-1, [&](const std::string& name, Param& p) {
      run.weights[name] = p.value.detach().clone();
    });
  });
  return out;
}

// One MoE block on two ranks, two microbatches each. 0 to 3: counts, routing, rows and results of
// microbatch 0; the backward of it sends 4, gradients of results, and 8 and 9, those of rows and
// scores, with the forward of microbatch 1 (5, 6, 7, 10) in between.
TEST(Beside, OV8_TheOtherMicrobatchIsComputedWhileRowsTravel) {
  const std::string recipe = base(1, 4);
  const std::string first = "send0 wait0 send1 send2 wait1 wait2 send3 wait3 ";
  for (const RankRun& run :
       runs_of(recipe, "parallel: {expert: 2, shard: none, overlap: experts}", 2)) {
    EXPECT_EQ(run.exchanges,
              first +
                  "send4 send5 wait5 send6 send7 wait4 send8 send9 wait6 wait7 send10 wait8 "
                  "wait9 wait10 send11 wait11 send12 send13 wait12 wait13 ");
  }
  for (const RankRun& run : runs_of(recipe, "parallel: {expert: 2, shard: none}", 2)) {
    EXPECT_EQ(run.exchanges,
              first +
                  "send4 wait4 send5 send6 wait5 wait6 send7 wait7 send8 send9 wait8 wait9 "
                  "send10 wait10 send11 wait11 send12 send13 wait12 wait13 ");
  }
}

struct Case {
  std::string name, parallel;
  int ranks;
  std::string more = {};
};

class BesideLayouts : public ::testing::TestWithParam<Case> {};

TEST_P(BesideLayouts, OV9_ChangesNoBit) {
  const Case& c = GetParam();
  const std::string more = c.more + "parallel: {" + c.parallel;
  const std::vector<RankRun> after = runs_of(base(3, 7), more + "}", c.ranks),
                             beside = runs_of(base(3, 7), more + ", overlap: experts}", c.ranks);
  for (size_t rank = 0; rank < after.size(); ++rank) {
    EXPECT_EQ(beside[rank].figures, after[rank].figures) << "rank " << rank;
    EXPECT_NE(beside[rank].exchanges, after[rank].exchanges) << "rank " << rank;
    ASSERT_GT(after[rank].weights.size(), 3U);
    for (const auto& [name, value] : after[rank].weights) {
      EXPECT_TRUE(at::equal(beside[rank].weights.at(name), value)) << name << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , BesideLayouts,
    ::testing::Values(
        Case{"ddp_2_ep_2", "expert: 2, shard: none", 2},
        Case{"zero1_4_ep_4_exact", "expert: 4, shard: zero1, dispatch: exact", 4},
        Case{"all_gather", "expert: 2, shard: zero1, dispatcher: all_gather", 2},
        Case{"symmetric", "expert: 2, shard: zero1, dispatcher: symmetric", 2},
        Case{"two_level", "expert: 4, shard: none, dispatcher: two_level, node_ranks: 2", 4},
        Case{"full_4_ep_2", "expert: 2, shard: full", 4},
        Case{"full_keeps_4_ep_2", "expert: 2, shard: full, reshard: false, prefetch: 2", 4},
        Case{"pp_2_full_ep_2", "pipeline: 2, expert: 2, shard: full", 4},
        Case{"tp_2_ep_4", "tensor: 2, expert: 4, shard: zero1", 4},
        Case{"pp_2_ep_2", "pipeline: 2, expert: 2, shard: zero1", 4},
        Case{"pp_2_v_2_ep_2", "pipeline: 2, virtual: 2, expert: 2, shard: none", 4},
        Case{"again", "expert: 2, shard: zero1", 2, "train: {recompute: \"1\"}\n"},
        Case{"layer_again", "expert: 2, shard: zero1", 2, "model: {moe: {recompute: layer}}\n"}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace troupe
