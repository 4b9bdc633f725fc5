#include "troupe/train/step/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/schedule/schedules.h"
#include "troupe/train/optim/loss_mean.h"
#include "troupe/train/params/bad_values.h"

namespace troupe {
namespace {

constexpr int64_t kVocab = 11, kWidth = 6, kUnits = 4;

// An embedding, two blocks with an auxiliary loss each, a head tied to the embedding.
class SmallModel : public Model {
 public:
  const ModelConfig& config() const override { return config_; }
  int64_t num_units() const override { return kUnits; }
  const TokenSharding& tokens() const override { return sharding_; }
  at::Tensor summed_over_batch(const at::Tensor& x, const Batch&) const override { return x; }
  at::Tensor logits(const at::Tensor& h, const Context&) override {
    return at::linear(h, table_.value);
  }
  void for_each_moe(const MoeVisitor&) override {}
  void for_each_attention(const AttentionVisitor&) override {}
  void for_each_dense_ffn(const DenseFfnVisitor&) override {}
  void end_of_step(const SumOver&, bool) override {}

  UnitResult forward(int64_t unit, const at::Tensor& h, const Batch& batch,
                     const Context& context) override {
    UnitResult out;
    if (unit == 0) {
      out.h = table_.value.index_select(0, batch.ids_BS.view(-1))
                  .view({-1, batch.ids_BS.size(1), kWidth});
    } else if (unit < kUnits - 1) {
      Param& w = blocks_[static_cast<size_t>(unit - 1)];
      out.h = h + at::tanh(at::linear(h, w.value));
      if (context.records()) {
        out.losses.push_back({"aux", 0.1 * at::mean(out.h * out.h).to(at::kDouble), 0.1});
        out.stats.push_back({.counts_E = at::full({2}, batch.ids_BS.numel(), at::kLong)});
      }
    } else {
      const at::Tensor nll = -at::log_softmax(logits(h, context), -1)
                                  .gather(-1, batch.labels_BS.unsqueeze(-1))
                                  .squeeze(-1);
      out.loss_sum = (nll * batch.weights_BS).sum();
      out.weight_sum = batch.weights_BS.sum();
    }
    if (out.h.defined()) made_.push_back(out.h.storage().getWeakStorageImpl());
    return out;
  }

  // How many of all the outputs of units are still in memory.
  int64_t kept() const {
    return std::ranges::count_if(made_, [](const auto& h) { return !h.expired(); });
  }
  int64_t made() const { return std::ssize(made_); }

  void for_each_param(int64_t unit, const ParamVisitor& f) override {
    if (unit <= 0 || unit == kUnits - 1) f("table", table_);
    if (unit == 1 || unit < 0) f("w1", blocks_[0]);
    if (unit == 2 || unit < 0) f("w2", blocks_[1]);
  }

 private:
  TokenSharding sharding_;
  static Param normal(std::vector<int64_t> sizes) {
    return Param::of(std::move(sizes), {.kind = Init::kNormal, .std = 0.5});
  }
  ModelConfig config_;
  Param table_ = normal({kVocab, kWidth});
  std::vector<Param> blocks_ = {normal({kWidth, kWidth}), normal({kWidth, kWidth})};
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
};

// Eight sequences in all, in `microbatches` parts; some targets do not count.
std::vector<Batch> batches(int64_t microbatches) {
  const at::Tensor ids = (at::arange(8 * 5) * 7).remainder(kVocab).view({8, 5});
  const at::Tensor labels = (at::arange(8 * 5) * 5 + 3).remainder(kVocab).view({8, 5});
  const at::Tensor weights = (at::arange(8 * 5).remainder(3) != 0).to(at::kFloat).view({8, 5});
  std::vector<Batch> out;
  for (int64_t m = 0; m < microbatches; ++m) {
    const int64_t n = 8 / microbatches;
    out.push_back({.ids_BS = ids.narrow(0, m * n, n),
                   .labels_BS = labels.narrow(0, m * n, n),
                   .weights_BS = weights.narrow(0, m * n, n)});
  }
  return out;
}

struct Bench {
  explicit Bench(const std::string& points = "")
      : store(params(model), at::TensorOptions(at::kFloat),
              [](const NamedParam&) { return BucketKey{}; }),
        faults(points) {
    store.initialize_all(3);
  }
  static std::vector<NamedParam> params(Model& model) {
    std::vector<NamedParam> out;
    model.for_each_param(-1, [&](const std::string& name, Param& p) { out.push_back({name, &p}); });
    return out;
  }
  StepOutput run(int64_t microbatches, std::vector<int> recomputed = {}, double scale = 1,
                 LossMean mean = LossMean::kTokens) {
    const Schedule schedule =
        build_schedule(Accumulate{}, {.chunks = kUnits,
                                      .microbatches = static_cast<int>(microbatches),
                                      .recomputed = std::move(recomputed)});
    return run(schedule[0], microbatches, scale, mean);
  }
  StepOutput run(const std::vector<Action>& list, int64_t microbatches, double scale = 1,
                 LossMean mean = LossMean::kTokens) {
    return run(list, input_of(microbatches, scale, mean));
  }
  static StepInput input_of(int64_t microbatches, double scale = 1,
                            LossMean mean = LossMean::kTokens) {
    std::vector<double> weights;
    for (const Batch& b : batches(microbatches)) {
      weights.push_back(b.weights_BS.sum().item<double>());
    }
    StepInput input{.microbatches = batches(microbatches),
                    .factors = loss_factors(mean, weights, 26, microbatches),
                    .loss_scale = scale,
                    .all_microbatches = microbatches};
    input.context.training = true;
    input.context.step = 5;
    return input;
  }
  StepOutput run(const std::vector<Action>& list, const StepInput& input) {
    Pulse pulse;
    Executor executor(model, store, faults, owners({.chunks = kUnits}), pulse);
    return executor.run(list, input, {.update = [&](const StepOutput&) {
                          ++updates;
                          kept_at_update = model.kept();
                        }});
  }
  at::Tensor grad() { return at::cat(store.gradients().counted()); }

  SmallModel model;
  ParamStore store;
  Faults faults;
  int updates = 0;
  int64_t kept_at_update = -1;  // outputs of units that no backward waits for any more
};

// With one graph from end to end, of one microbatch: its mean token loss, and its other losses.
std::pair<at::Tensor, at::Tensor> whole_graph(Model& model, const Batch& batch) {
  Context context;
  context.training = true;
  at::Tensor h, tokens, aux;
  for (int64_t unit = 0; unit < kUnits; ++unit) {
    const UnitResult r = model.forward(unit, h, batch, context);
    h = r.h;
    if (r.loss_sum.defined()) tokens = r.loss_sum / r.weight_sum;
    for (const MoeLoss& l : r.losses) aux = aux.defined() ? aux + l.value : l.value;
  }
  return {tokens, aux};
}

void expect_gradients_of(const at::Tensor& loss, Bench& bench) {
  for (size_t s = 0; s < bench.store.slots().size(); ++s) {
    const at::Tensor want =
        torch::autograd::grad({loss}, {bench.store.slots()[s].named.param->value}, {}, true)[0];
    const at::Tensor diff = bench.store.gradients().of(static_cast<int64_t>(s)) - want.view(-1);
    EXPECT_LT(diff.abs().max().item<float>(), 1e-7) << bench.store.slots()[s].named.name;
  }
}

TEST(Executor, NumbersOfATensorGiveTheSameBits) {
  Bench host, device;
  StepInput input = Bench::input_of(4, 3);
  const Schedule schedule =
      build_schedule(Accumulate{}, {.chunks = kUnits, .microbatches = 4, .recomputed = {}});
  const StepOutput one = host.run(schedule[0], input);
  input.numbers = at::tensor(step_numbers(input), at::kDouble);
  for (double& factor : input.factors) factor = 0;  // not read
  const StepOutput two = device.run(schedule[0], input);
  EXPECT_TRUE(at::equal(one.loss, two.loss));
  EXPECT_TRUE(at::equal(host.grad(), device.grad()));
}

TEST(Executor, GradientsAreThoseOfTheWholeGraph) {
  Bench bench;
  const StepOutput got = bench.run(1);
  EXPECT_EQ(bench.updates, 1);
  const auto [tokens, aux] = whole_graph(bench.model, batches(1)[0]);
  expect_gradients_of(tokens + aux, bench);
  EXPECT_EQ(got.aux_terms.at("aux"), 2);
  EXPECT_EQ(got.moe.size(), 2u);
}

TEST(Executor, F126_EightMicrobatchesAreOneWithinRounding) {
  Bench one, eight;
  const StepOutput a = one.run(1), b = eight.run(8);
  EXPECT_NEAR(a.loss.item<double>(), b.loss.item<double>(), 1e-6);
  EXPECT_LT((one.grad() - eight.grad()).abs().max().item<float>(), 1e-7);
  EXPECT_EQ(a.moe.at(1)[0].counts_E[0].item<int64_t>(), b.moe.at(1)[0].counts_E[0].item<int64_t>());
}

TEST(Executor, D1_TheMeanOfMicrobatchesIsThatOfTheirMeans) {
  Bench bench;
  const StepOutput got = bench.run(8, {}, 1, LossMean::kMicrobatches);
  at::Tensor loss, tokens;
  for (const Batch& batch : batches(8)) {  // of 3 or 4 targets each
    const auto [own, aux] = whole_graph(bench.model, batch);
    loss = loss.defined() ? loss + (own + aux) / 8 : (own + aux) / 8;
    tokens = tokens.defined() ? tokens + own / 8 : own / 8;
  }
  expect_gradients_of(loss, bench);
  EXPECT_NEAR(got.loss.item<double>(), tokens.item<double>(), 1e-6);
  Bench other;
  EXPECT_GT(std::abs(other.run(8).loss.item<double>() - got.loss.item<double>()), 1e-4);
}

TEST(Executor, F117_RecomputationChangesNoBitAndCountsOnce) {
  Bench plain, again;
  const StepOutput a = plain.run(2), b = again.run(2, {1, 2});
  EXPECT_TRUE(at::equal(plain.grad(), again.grad()));
  EXPECT_TRUE(at::equal(a.loss, b.loss));
  EXPECT_TRUE(at::equal(a.aux.at("aux"), b.aux.at("aux")));
  EXPECT_EQ(a.aux_terms.at("aux"), b.aux_terms.at("aux"));
  EXPECT_TRUE(at::equal(a.moe.at(2)[0].counts_E, b.moe.at(2)[0].counts_E));
}

TEST(Executor, NothingIsKeptAfterTheBackwardsOfFourMicrobatches) {
  for (const std::vector<int>& recomputed : {std::vector<int>(), {1, 2}, {0, 1, 2}}) {
    Bench bench;
    bench.run(4, recomputed);
    EXPECT_EQ(bench.model.made(), 4 * (3 + std::ssize(recomputed)));
    EXPECT_EQ(bench.kept_at_update, 0) << recomputed.size() << " chunks are recomputed";
  }
}

// Whichever backward a list lacks, a graph or a gradient is left.
TEST(Executor, AListThatLeavesSomethingBehindIsRefused) {
  const Schedule whole =
      build_schedule(Accumulate{}, {.chunks = kUnits, .microbatches = 2, .recomputed = {1}});
  Bench bench;
  for (const Action& last : {Action{Kind::kBackward, 0, 1}, Action{Kind::kBackward, 1, 1}}) {
    std::vector<Action> list;
    for (const Action& a : whole[0]) {
      const bool is_left_out =
          a.microbatch == last.microbatch && a.kind == last.kind && a.chunk <= last.chunk;
      if (!is_left_out) list.push_back(a);
    }
    try {
      bench.run(list, 2);
      ADD_FAILURE() << last.chunk;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("are left of a step"), std::string::npos) << e.what();
    }
  }
}

TEST(Executor, TheLossScaleIsAFactorOfAllGradients) {
  Bench one, scaled;
  one.run(2);
  scaled.run(2, {}, 1024);
  EXPECT_TRUE(at::equal(one.grad() * 1024, scaled.grad()));
}

TEST(Executor, F119_TwoRunsAreBitwiseEqual) {
  Bench a, b;
  a.run(4);
  b.run(4);
  EXPECT_TRUE(at::equal(a.grad(), b.grad()));
}

TEST(Executor, F111_AFaultPointSpoilsOneUnit) {
  Bench forward("forward.1:5=nan"), backward("backward.2:5=inf"), other_step("forward.1:6=nan");
  forward.run(1);
  EXPECT_EQ(bad_gradients(forward.store).size(), 3u);
  backward.run(1);
  const auto bad = bad_gradients(backward.store);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].name, "w2");
  other_step.run(1);
  EXPECT_TRUE(bad_gradients(other_step.store).empty());
}

}  // namespace
}  // namespace troupe
