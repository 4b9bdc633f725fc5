#include "troupe/train/loop/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "troupe/core/config/config.h"
#include "troupe/core/file/file.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/loop/trainer_runs_test.h"
#include "troupe/train/params/master_of_test.h"

namespace troupe {
namespace {

TEST(Trainer, F119_TwoRunsAreBitwiseEqual) {
  Runs runs;
  const Result a = runs.run("a"), b = runs.run("b");
  EXPECT_EQ(a.end, RunEnd::kFinished);
  ASSERT_EQ(a.losses.size(), 12u);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_TRUE(at::equal(a.weights, b.weights));
  for (const char* file : {"log.jsonl", "report.html", "latest", "tb"}) {
    EXPECT_TRUE(std::filesystem::exists(runs.path("a") + "/" + file)) << file;
  }
}

TEST(Trainer, F122_ARunInTwoPartsIsTheWholeRunBitForBit) {
  Runs runs;
  const Result whole = runs.run("whole", {"log.records=1 steps"});
  for (const int64_t cut : {1, 6, 7}) {
    const std::string name = "cut" + std::to_string(cut);
    // The same run, killed by a fault after `cut` steps with a checkpoint there.
    EXPECT_THROW(runs.run(name, {"checkpoint.at=[" + std::to_string(cut) + "]"},
                          "batch:" + std::to_string(cut) + "=throw"),
                 std::exception);
    const Result rest = runs.run(name, {"checkpoint.at=[" + std::to_string(cut) + "]"});
    EXPECT_EQ(rest.losses, whole.losses);
    EXPECT_TRUE(at::equal(rest.weights, whole.weights));
    EXPECT_EQ(rest.state.done, whole.state.done);
    EXPECT_EQ(rest.state.spike.losses, whole.state.spike.losses);
  }
}

// Where an epoch ends, which is 48 samples here, in the warm-up, and after an evaluation.
TEST(Trainer, F122_ACutAtAnEpochsBorderLosesNothing) {
  Runs runs;
  std::string text;
  for (int i = 0; i < 48 * 32 + 1; ++i) text += static_cast<char>('a' + i * i % 26);
  testing::put_file(runs.path("text"), text);
  const std::string data = "data.train=[{kind: text, path: '" + runs.path("text") + "'}]";
  const Result whole = runs.run("whole", {data, "eval.every=6"});
  for (const int64_t cut : {1, 6, 12}) {
    const std::string name = "cut" + std::to_string(cut), at = std::to_string(cut);
    const std::vector<std::string> sets = {data, "eval.every=6", "checkpoint.at=[" + at + "]"};
    if (cut < 12) {
      EXPECT_THROW(runs.run(name, sets, "batch:" + at + "=throw"), std::exception);
    }
    const Result rest = runs.run(name, sets);
    EXPECT_EQ(rest.losses, whole.losses);
    EXPECT_TRUE(at::equal(rest.weights, whole.weights));
  }
}

TEST(Trainer, F122_EveryOptimizerAndRouterGoesOnBitForBit) {
  Runs runs;
  const std::string router = "model.moe.router=";
  int number = 0;
  for (const std::string& one :
       {std::string("train.optimizer.kind=sgd"), std::string("train.optimizer.kind=lion"),
        std::string("train.optimizer.kind=muon"), std::string("train.optimizer.kind=adafactor"),
        std::string("train.optimizer.kind=soap"), std::string("train.optimizer.moments=int8"),
        std::string("train.optimizer={kind: lion, moments: int8}"), router + "{kind: sigmoid_bias}",
        router + "{balance: {global_loss: 0.01, global_fractions: previous}}"}) {
    const std::vector<std::string> sets = {one, "checkpoint.at=[6]"};
    const std::string name = std::to_string(++number), cut = "cut " + name;
    const Result whole = runs.run(name, sets);
    EXPECT_THROW(runs.run(cut, sets, "batch:6=throw"), std::exception) << one;
    const Result rest = runs.run(cut, sets);
    EXPECT_EQ(rest.losses, whole.losses) << one;
    EXPECT_TRUE(at::equal(rest.weights, whole.weights)) << one;
  }
}

TEST(Trainer, F18_ResumingFromAnEarlierStepSetsLaterOnesAside) {
  Runs runs;
  runs.run("a");
  const std::vector<std::string> other = {"train.optimizer.lr=1e-3", "checkpoint.resume=step 4"};
  const Result branch = runs.run("a", other);
  EXPECT_EQ(branch.end, RunEnd::kFinished);
  EXPECT_TRUE(std::filesystem::exists(runs.path("a") + "/step-000012.aside"));
  // The step of that number is now the branch's.
  const Result end = runs.run("a");
  EXPECT_EQ(end.end, RunEnd::kAlreadyFinished);
  EXPECT_TRUE(at::equal(end.weights, branch.weights));
}

TEST(Trainer, F32_AFinishedRunIsLeftAlone) {
  Runs runs;
  runs.run("a");
  const std::string before = read_file(runs.path("a") + "/log.jsonl");
  EXPECT_EQ(runs.run("a").end, RunEnd::kAlreadyFinished);
  EXPECT_EQ(read_file(runs.path("a") + "/log.jsonl"), before);
}

TEST(Trainer, F111_ANanNeverReachesTheWeights) {
  Runs runs;
  const Result good = runs.run("good", {"train.steps=12"});
  const Result bad = runs.run("bad", {"train.steps=12"}, "backward.1:5=nan");
  EXPECT_EQ(bad.end, RunEnd::kFinished);
  EXPECT_EQ(bad.state.skipped, 1);
  EXPECT_EQ(bad.state.nonfinite, 1);
  EXPECT_TRUE(std::equal(good.losses.begin(), good.losses.begin() + 6, bad.losses.begin()));
  EXPECT_NE(good.losses.back(), bad.losses.back());
  const std::string log = read_file(runs.path("bad") + "/log.jsonl");
  EXPECT_NE(log.find("\"event\":\"nonfinite\",\"first\":\"gradient of layers.0"),
            std::string::npos);
}

// Row 188: a step that is done again tells what passes from what stays.
TEST(Trainer, F111_AReplayTellsPassingFromLastingFaults) {
  Runs runs;
  const auto first = [&](const std::string& name, std::vector<std::string> sets,
                         const std::string& faults) {
    sets.emplace_back("train.steps=6");
    sets.emplace_back("train.max_skips=9");
    runs.run(name, sets, faults);
    const std::string log = read_file(runs.path(name) + "/log.jsonl");
    const std::string key = "\"event\":\"nonfinite\",\"first\":\"";
    const size_t at = log.find(key);
    return at == std::string::npos
               ? ""
               : log.substr(at + key.size(), log.find('"', at + key.size()) - at - key.size());
  };
  // In memory for once; and each time that this step is computed.
  const std::string once = first("once", {}, "backward.1#1:3=nan");
  EXPECT_TRUE(once.starts_with("gradient of layers.0")) << once;
  EXPECT_NE(once.find("; replayed, it is finite: a passing fault"), std::string::npos) << once;
  const std::string always = first("always", {}, "backward.1:3=nan");
  EXPECT_TRUE(always.starts_with("gradient of layers.0")) << always;
  EXPECT_NE(always.find("(replayed: the same"), std::string::npos) << always;
  EXPECT_NE(first("forward", {}, "forward.2#1:3=nan").find("a passing fault"), std::string::npos);
  const std::string weight = first("weight", {}, "optim:2=nan");
  EXPECT_TRUE(weight.starts_with("weight ")) << weight;
}

TEST(Trainer, F111_TooManyBadStepsStopTheRunWithClassFive) {
  Runs runs;
  try {
    runs.run("bad", {"train.max_skips=2"}, "forward.1=nan");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_class(), ExitClass::kNumeric);
    EXPECT_NE(std::string(error.what()).find("step 3: E5001"), std::string::npos) << error.what();
  }
}

TEST(Trainer, F126_AnotherMicroBatchHasTheSameLossWithinRounding) {
  Runs runs;
  // Without the balance loss, which is of a micro batch and no sum over tokens. Losses are
  // compared, not weights: Adam turns a gradient's last bit into a step where the gradient is
  // nearly 0.
  const std::string plain = "model.moe.router.balance.aux_loss=0";
  const Result one = runs.run("one", {plain, "train.micro_batch=1"}),
               eight = runs.run("eight", {plain});
  ASSERT_EQ(one.losses.size(), 12u);
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(loss_of(one.losses[i]), loss_of(eight.losses[i]), 1e-4) << i;
  }
  // Under SGD a step is a multiple of its gradient: weights agree too.
  const auto sgd = [&](const std::string& name, const std::string& set) {
    return runs
        .run(name, {plain, "train.optimizer.kind=sgd", "train.optimizer.lr=0.1",
                    "train.optimizer.momentum=0", set})
        .weights;
  };
  const at::Tensor first = sgd("first", "train.steps=3"), w1 = sgd("w1", "train.micro_batch=1"),
                   w8 = sgd("w8", "train.micro_batch=8");
  EXPECT_GT((w8 - first).norm().item<double>(), 1e-2 * w8.norm().item<double>());
  EXPECT_LT((w1 - w8).norm().item<double>(), 1e-6 * w8.norm().item<double>());
}

TEST(Trainer, F117_RecomputationChangesNoBit) {
  Runs runs;
  const Result plain = runs.run("plain"), again = runs.run("again", {"train.recompute=1"});
  EXPECT_EQ(plain.losses, again.losses);
  EXPECT_TRUE(at::equal(plain.weights, again.weights));
}

// Of 1024 tokens at a time: what a block keeps is large enough to be offloaded. One more layer is
// recomputed, and steps have two microbatches.
TEST(Trainer, OffloadedActivationsChangeNoBit) {
  Runs runs;
  const std::vector<std::string> large = {"model.layers=3",          "model.width=256",
                                          "model.max_positions=256", "data.sequence=256",
                                          "train.micro_batch=4",     "train.steps=3"};
  const auto with = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> sets = large;
    sets.insert(sets.end(), more.begin(), more.end());
    return runs.run(name, sets);
  };
  const Result plain = with("plain", {});
  const Result all = with("all", {"train.offload_layers=3"});
  const Result two = with("two", {"train.offload_layers=2", "train.recompute='[0]*2+[1]*1'"});
  for (const Result& offloaded : {all, two}) {
    EXPECT_EQ(plain.losses, offloaded.losses);
    EXPECT_TRUE(at::equal(plain.weights, offloaded.weights));
  }
  // A run of the same program that looks into it.
  int64_t bytes = 0;
  std::vector<std::string> sets = large;
  sets.emplace_back("train.offload_layers=3");
  runs.run("bytes", sets, "",
           [&](Trainer& trainer) { bytes = trainer.learner().offloaded_bytes(); });
  // Of three layers and two microbatches: queries, keys and values alone are 3 MiB.
  EXPECT_GE(bytes, int64_t{3} * 2 * 3 * (1 << 20));
}

TEST(Trainer, EvaluationChangesNothing) {
  Runs runs;
  const Result plain = runs.run("plain"),
               evaluated = runs.run("evaluated", {"eval.every=2", "eval.at_start=true"});
  EXPECT_EQ(plain.losses, evaluated.losses);
  EXPECT_TRUE(at::equal(plain.weights, evaluated.weights));
  EXPECT_NE(read_file(runs.path("evaluated") + "/log.jsonl").find("val/loss"), std::string::npos);
}

TEST(Trainer, TheLastStepIsEvaluatedOnce) {
  Runs runs;
  const auto evaluations = [&](const std::string& name, std::vector<std::string> sets) {
    sets.emplace_back("eval.at_start=true");
    runs.run(name, sets);
    return read_file(runs.path(name) + "/log.jsonl");
  };
  const std::string eval = "\"event\":\"eval\"", sample = "\"event\":\"sample\"";
  EXPECT_EQ(count_of(evaluations("divides", {"eval.every=4"}), eval), 4u);   // 0, 4, 8, 12
  EXPECT_EQ(count_of(evaluations("does not", {"eval.every=5"}), eval), 4u);  // 0, 5, 10, 12
  EXPECT_EQ(count_of(evaluations("at the ends", {}), eval), 2u);
  const std::string text =
      evaluations("writes", {"data.valid=[]", "data.tokenizer=bytes", "eval.prompts=[a]",
                             "eval.sample_tokens=2", "eval.every=6"});
  EXPECT_EQ(count_of(text, eval), 0u);
  EXPECT_EQ(count_of(text, sample), 3u);  // 0, 6, 12
}

TEST(Trainer, EveryOptimizerLearns) {
  Runs runs;
  for (const std::string kind : {"adamw", "sgd", "lion", "muon", "adafactor", "soap"}) {
    const std::string lr = kind == "sgd"         ? "0.5"
                           : kind == "lion"      ? "1e-3"
                           : kind == "adafactor" ? "0.1"
                                                 : "3e-3";
    const Result r = runs.run(kind, {"train.optimizer.kind=" + kind, "train.optimizer.lr=" + lr});
    EXPECT_LT(loss_of(r.losses.back()), 5.4) << kind;
  }
}

TEST(Trainer, TheBatchRampCountsItsSamples) {
  Runs runs;
  const Result r = runs.run("ramp", {"train.batch_ramp={start: 2, increment: 2, samples: 24}"});
  EXPECT_EQ(r.state.done.steps, 12);
  EXPECT_EQ(r.state.done.samples, 4 * 2 + 2 * 4 + 2 * 6 + 4 * 8);
}

TEST(Trainer, BatchStagesAreExactAndGoOn) {
  Runs runs;
  const std::vector<std::string> sets = {
      "train.batch_ramp={stages: [{batch: 2, until: 8}, {batch: 4, until: 24}]}",
      "checkpoint.at=[6]"};
  const Result whole = runs.run("whole", sets);
  EXPECT_EQ(whole.state.done.samples, 4 * 2 + 4 * 4 + 4 * 8);
  EXPECT_THROW(runs.run("cut", sets, "batch:6=throw"), std::exception);  // between 4 and 4
  const Result rest = runs.run("cut", sets);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_EQ(rest.state.done, whole.state.done);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
}

TEST(Trainer, Fp64RunsBesideFp32AndGoesOnWithTheSameBits) {
  Runs runs;
  const std::vector<std::string> fp64 = {"train.precision=fp64", "checkpoint.at=[6]"};
  const Result whole = runs.run("whole", fp64), f32 = runs.run("f32");
  EXPECT_NEAR(loss_of(whole.losses.back()), loss_of(f32.losses.back()), 1e-4);
  EXPECT_NE(loss_of(whole.losses.back()), loss_of(f32.losses.back()));
  EXPECT_THROW(runs.run("cut", fp64, "batch:6=throw"), std::exception);
  const Result rest = runs.run("cut", fp64);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
}

// Row 162: the first overflow is let pass, the second halves the scale.
TEST(Trainer, F120_TheSecondInfinityHalvesTheScale) {
  Runs runs;
  const std::vector<std::string> sets = {"train.precision=fp16", "train.loss_scale.initial=256",
                                         "train.steps=8"};
  EXPECT_EQ(runs.run("none", sets).state.loss_scale.scale, 256);
  const Result one = runs.run("one", sets, "backward.1:3=inf");
  EXPECT_EQ(one.state.loss_scale.scale, 256);
  EXPECT_EQ(one.state.skipped, 1);
  const Result two = runs.run("two", sets, "backward.1:3=inf;backward.2:5=inf");
  EXPECT_EQ(two.state.loss_scale.scale, 128);
  EXPECT_EQ(two.state.skipped, 2);
  EXPECT_EQ(two.state.updates, 6);
}

// Row 157: half of the bytes, and a loss within half a percent.
TEST(Trainer, Bf16MomentsChangeTheLossByLessThanHalfAPercent) {
  Runs runs;
  for (const std::string kind : {"adamw", "lion"}) {
    const std::vector<std::string> sets = {"train.steps=60", "train.optimizer.kind=" + kind,
                                           "train.optimizer.lr=1e-3"};
    std::vector<std::string> low = sets;
    low.emplace_back("train.optimizer.moments=bf16");
    const double full = loss_of(runs.run(kind + "f32", sets).losses.back());
    const double half = loss_of(runs.run(kind + "bf16", low).losses.back());
    EXPECT_LT(full, 4.5) << kind;  // it has learned
    EXPECT_NEAR(half / full, 1, 0.005) << kind;
    EXPECT_NE(half, full) << kind;
  }
}

// Rows 48 and 157: a quarter of the bytes, and a loss within a percent.
// The mean loss of the last 50 steps is within a percent of what it is without, and not the same.
void expect_within_a_percent(const std::vector<std::string>& got,
                             const std::vector<std::string>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  ASSERT_GE(got.size(), 50U) << what;
  double ours = 0, theirs = 0;
  for (size_t i = got.size() - 50; i < got.size(); ++i) {
    ours += loss_of(got[i]), theirs += loss_of(want[i]);
  }
  EXPECT_NEAR(ours / theirs, 1, 0.01) << what;
  EXPECT_NE(ours, theirs) << what;
}

TEST(Trainer, EightBitMomentsChangeTheLossByLessThanAPercent) {
  Runs runs;
  for (const std::string kind : {"adamw", "lion"}) {
    const std::vector<std::string> sets = {"train.steps=250", "train.optimizer.kind=" + kind,
                                           "train.optimizer.lr=1e-3"};
    std::vector<std::string> low = sets;
    low.emplace_back("train.optimizer.moments=int8");
    const std::vector<std::string> full = runs.run(kind + "f32", sets).losses;
    expect_within_a_percent(runs.run(kind + "int8", low).losses, full, kind);
  }
}

// Row 64, on the CPU by emulation: the loss stays within a percent (Q8), and is not the same.
TEST(Trainer, Fp8ExpertsChangeTheLossByLessThanAPercent) {
  Runs runs;
  const std::vector<std::string> wide = {"train.steps=200", "train.precision=auto",
                                         "model.width=128", "model.moe.hidden=128",
                                         "train.optimizer.lr=1e-3"};
  const std::vector<std::string> full = runs.run("full", wide).losses;
  std::vector<std::string> experts;
  for (const std::string grad : {"bf16", "fp8"}) {
    std::vector<std::string> low = wide;
    low.push_back("train.fp8.weight_grad=" + grad);
    experts = runs.run("fp8_" + grad, low).losses;
    expect_within_a_percent(experts, full, grad);
  }
  std::vector<std::string> one = wide;
  one.emplace_back("train.fp8.recipe=tensor");
  const std::vector<std::string> losses = runs.run("fp8_tensor", one).losses;
  expect_within_a_percent(losses, full, "recipe tensor");
  EXPECT_NE(losses, experts) << "one scale a tensor rounds as recipe row";
  std::vector<std::string> all = wide;
  all.emplace_back("train.fp8.attention=true");
  const std::vector<std::string> both = runs.run("fp8_attention", all).losses;
  expect_within_a_percent(both, full, "attention");
  EXPECT_NE(both, experts) << "attention's projections are as without";
}

// A token's row of 256 has two scales in recipe block.
TEST(Trainer, Fp8OfRecipeBlockChangesTheLossByLessThanAPercent) {
  Runs runs;
  std::vector<std::string> sets = {"train.steps=100", "train.precision=auto", "model.width=256",
                                   "model.moe.hidden=128", "train.optimizer.lr=1e-3"};
  const std::vector<std::string> full = runs.run("full", sets).losses;
  sets.emplace_back("train.fp8.attention=true");
  const std::vector<std::string> row = runs.run("row", sets).losses;
  sets.emplace_back("train.fp8.recipe=block");
  const std::vector<std::string> block = runs.run("block", sets).losses;
  expect_within_a_percent(block, full, "recipe block");
  EXPECT_NE(block, row) << "recipe block rounds as recipe row";
}

// A scale of the last steps' values rounds otherwise than one of the values at hand.
TEST(Trainer, Fp8OfRecipeDelayedChangesTheLossByLessThanAPercent) {
  Runs runs;
  std::vector<std::string> sets = {"train.steps=200",         "train.precision=auto",
                                   "model.width=128",         "model.moe.hidden=128",
                                   "train.optimizer.lr=1e-3", "model.moe.shared.experts=1"};
  const std::vector<std::string> full = runs.run("full", sets).losses;
  for (const char* more : {"train.fp8.attention=true", "train.fp8.ffn=true"}) {
    sets.emplace_back(more);
  }
  sets.emplace_back("train.fp8.recipe=tensor");
  const std::vector<std::string> tensor = runs.run("tensor", sets).losses;
  sets.back() = "train.fp8.recipe=delayed";
  const std::vector<std::string> delayed = runs.run("delayed", sets).losses;
  expect_within_a_percent(delayed, full, "recipe delayed");
  EXPECT_EQ(delayed.front(), tensor.front()) << "the first step has a history";
  EXPECT_NE(delayed, tensor) << "recipe delayed rounds as recipe tensor";
  const std::vector<double> saturated = runs.field("delayed", "fp8_saturated");
  ASSERT_FALSE(saturated.empty());
  EXPECT_GT(*std::ranges::max_element(saturated), 0) << "values grew and none was cut off";
  EXPECT_TRUE(runs.field("tensor", "fp8_saturated").empty());
}

// Histories are of the checkpoint (Q8-34): the same run stopped and continued has the same bits, and
// goes on under another recipe, or with another history, and back.
TEST(Trainer, Q8_34_ARunOfRecipeDelayedGoesOnBitForBitAndUnderAnother) {
  Runs runs;
  const std::vector<std::string> row = {"train.precision=auto",
                                        "model.width=128",
                                        "model.moe.hidden=128",
                                        "train.micro_batch=4",
                                        "checkpoint.at=[6]",
                                        "model.moe.shared.experts=1",
                                        "train.fp8.attention=true",
                                        "train.fp8.ffn=true",
                                        "model.mla={kv_rank: 128, rope_dim: 32, "
                                        "nope_dim: 96, value_dim: 32}"};
  std::vector<std::string> delayed = row;
  delayed.emplace_back("train.fp8={recipe: delayed, history: 4}");
  const Result whole = runs.run("whole", delayed);
  EXPECT_THROW(runs.run("cut", delayed, "batch:6=throw"), std::exception);
  const Result rest = runs.run("cut", delayed);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
  std::vector<std::string> longer = row;
  longer.emplace_back("train.fp8.recipe=delayed");
  const struct {
    const char* name;
    const std::vector<std::string>&first, &then;
  } changes[] = {{"begun", row, delayed}, {"ended", delayed, row}, {"longer", delayed, longer}};
  for (const auto& [name, first, then] : changes) {
    EXPECT_THROW(runs.run(name, first, "batch:6=throw"), std::exception);
    EXPECT_EQ(runs.run(name, then).state.done.steps, 12) << name;
  }
}

// The same bits where weights are kept over microbatches and where blocks are computed again: the
// first pass of those counts nothing.
TEST(Trainer, Q8_21_BlocksThatAreComputedAgainHaveTheHistoriesOfOthers) {
  Runs runs;
  std::vector<std::string> sets = {"train.precision=auto",     "model.width=128",
                                   "model.moe.hidden=128",     "train.micro_batch=2",
                                   "train.fp8.attention=true", "train.fp8.recipe=delayed"};
  const Result want = runs.run("plain", sets);
  for (const char* more : {"train.recompute=1", "train.fp8.weights=on_use"}) {
    sets.emplace_back(more);
    const Result got = runs.run(more, sets);
    EXPECT_EQ(got.losses, want.losses) << more;
    EXPECT_TRUE(at::equal(got.weights, want.weights)) << more;
  }
}

// The same of a dense feed-forward and a shared expert.
TEST(Trainer, Fp8FeedForwardsChangeTheLossByLessThanAPercent) {
  Runs runs;
  std::vector<std::string> sets = {"train.steps=200",         "train.precision=auto",
                                   "model.width=128",         "model.moe.hidden=128",
                                   "train.optimizer.lr=1e-3", "model.first_dense=1",
                                   "model.ffn=256",           "model.moe.shared.experts=1"};
  const std::vector<std::string> full = runs.run("full", sets).losses;
  sets.emplace_back("train.fp8.weight_grad=fp8");
  const std::vector<std::string> experts = runs.run("experts", sets).losses;
  sets.emplace_back("train.fp8.ffn=true");
  const std::vector<std::string> all = runs.run("ffn", sets).losses;
  expect_within_a_percent(all, full, "ffn");
  EXPECT_NE(all, experts) << "feed-forwards are as without";
}

// Masters are what a checkpoint has (Q8-34): a run goes on with fp8 and without, and the same run
// stopped and continued has the same bits.
TEST(Trainer, Fp8MayChangeAtAResumeAndChangesNothingElse) {
  Runs runs;
  const std::vector<std::string> wide = {"train.precision=auto", "model.width=128",
                                         "model.moe.hidden=128", "checkpoint.at=[6]"};
  std::vector<std::string> low = wide;
  low.emplace_back("train.fp8.skip_last=1");
  const Result whole = runs.run("whole", low);
  EXPECT_THROW(runs.run("cut", low, "batch:6=throw"), std::exception);
  const Result rest = runs.run("cut", low);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
  EXPECT_THROW(runs.run("off", low, "batch:6=throw"), std::exception);
  EXPECT_EQ(runs.run("off", wide).state.done.steps, 12);
}

// Rounded once a step or in each of its microbatches, weights have the same bits: in every step,
// when layers are recomputed, when an update is skipped, and after a load.
TEST(Trainer, Fp8WeightsKeptOverMicrobatchesChangeNoBit) {
  Runs runs;
  for (const std::string more :
       {"train.spike.skip=false", "train.recompute=1", "model.mla.kv_rank=128"}) {
    std::vector<std::string> sets = {"train.precision=auto", "model.width=128",
                                     "train.micro_batch=2",  "model.moe.hidden=128",
                                     "checkpoint.at=[6]",    more,
                                     "model.first_dense=1",  "model.ffn=128"};
    sets.emplace_back("model.moe.shared.experts=1");
    sets.emplace_back("train.fp8.attention=true");
    sets.emplace_back("train.fp8.ffn=true");
    sets.emplace_back("train.fp8.weights=on_use");
    const Result want = runs.run("on_use" + more, sets);
    sets.back() = "train.fp8.weights=kept";
    const Result got = runs.run("kept" + more, sets);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_TRUE(at::equal(got.weights, want.weights));
    EXPECT_THROW(runs.run("cut" + more, sets, "batch:6=throw"), std::exception);
    const Result rest = runs.run("cut" + more, sets);
    EXPECT_EQ(rest.losses, want.losses);
    EXPECT_TRUE(at::equal(rest.weights, want.weights));
  }
}

// Files hold f32 moments: a run goes on with other ones, and the first loss is the same.
TEST(Trainer, MomentsOfAnotherTypeAreLoaded) {
  Runs runs;
  const std::vector<std::string> int8 = {"train.optimizer.moments=int8", "checkpoint.at=[6]"};
  EXPECT_THROW(runs.run("a", int8, "batch:6=throw"), std::exception);
  const Result rest = runs.run("a", {"train.optimizer.moments=f32"});
  EXPECT_EQ(rest.state.done.steps, 12);
  EXPECT_THROW(runs.run("b", {"checkpoint.at=[6]"}, "batch:6=throw"), std::exception);
  EXPECT_EQ(runs.run("b", int8).state.done.steps, 12);
}

// Row 41: one module more, and it goes on bit for bit.
TEST(Trainer, MultiTokenPredictionTrainsAndGoesOn) {
  Runs runs;
  const std::vector<std::string> sets = {"model.mtp={depth: 2, weight: 0.3}", "checkpoint.at=[6]",
                                         "train.steps=24"};
  const Result whole = runs.run("whole", sets);
  EXPECT_THROW(runs.run("cut", sets, "batch:6=throw"), std::exception);
  const Result rest = runs.run("cut", sets);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
  const std::vector<double> predicted = runs.field("whole", "mtp_loss");
  ASSERT_EQ(predicted.size(), 24u);
  // Nothing is known at first; of 32 positions 31 and 30 have an id so far ahead.
  EXPECT_NEAR(predicted.front(), 0.3 * std::log(256) * (31 + 30) / 64, 0.05);
  EXPECT_LT(predicted.back(), 0.97 * predicted.front());
}

// Row 43: a list of layers that differ, as a recipe says it.
TEST(Trainer, LayersOfManySortsTrainAndGoOn) {
  Runs runs;
  const std::vector<std::string> sets = {
      "model.layers=4", "model.ffn=48", "checkpoint.at=[6]",
      "model.overrides=[{layers: [0], experts: 0}, {layers: [1], window: 8, heads: 2}, "
      "{layers: [2], attention: false, experts: 2, top_k: 1, hidden: 32}]"};
  const Result whole = runs.run("whole", sets);
  EXPECT_LT(loss_of(whole.losses.back()), loss_of(whole.losses.front()) - 0.1);
  EXPECT_THROW(runs.run("cut", sets, "batch:6=throw"), std::exception);
  const Result rest = runs.run("cut", sets);
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
}

// Row 165: adapters of all experts learn, and nothing else moves.
TEST(Trainer, OnlyTheAdaptersOfExpertsChange) {
  Runs runs;
  const std::vector<std::string> sets = {"model.moe.lora.rank=2",
                                         "train.optimizer.groups=[{names: '*', frozen: true}, "
                                         "{names: '*lora*', frozen: false}]"};
  std::vector<std::string> none = sets;
  none.emplace_back("train.optimizer.lr=0");
  const std::map<std::string, at::Tensor> before = runs.weights_of("before", none),
                                          after = runs.weights_of("after", sets);
  int64_t adapters = 0;
  for (const auto& [name, value] : after) {
    const bool adapter = name.find("lora") != std::string::npos;
    adapters += adapter;
    EXPECT_EQ(!at::equal(value, before.at(name)), adapter) << name;
  }
  EXPECT_EQ(adapters, 2 * 4);  // two layers, A and B of W1 and of W2, for all experts
}

// Row 245: so do those of a whole model, without a list of what is frozen.
TEST(Trainer, OnlyTheAdaptersOfAWholeModelChange) {
  Runs runs;
  const std::vector<std::string> sets = {
      "model.layers=2",
      "model.ffn=48",
      "model.overrides=[{layers: [1], experts: 0}]",
      "model.moe.shared.experts=1",
      "model.lora={rank: 2, targets: [attention, experts, shared, router, ffn]}",
      "train.optimizer.lr=0.01"};
  std::vector<std::string> none = sets;
  none.back() = "train.optimizer.lr=0";
  const std::map<std::string, at::Tensor> before = runs.weights_of("before", none),
                                          after = runs.weights_of("after", sets);
  int64_t adapters = 0;
  for (const auto& [name, value] : after) {
    const bool adapter = name.ends_with("lora_a") || name.ends_with("lora_b");
    adapters += adapter;
    EXPECT_EQ(!at::equal(value, before.at(name)), adapter) << name;
    const bool starts_at_zero = name.ends_with("lora_b");
    EXPECT_TRUE(!starts_at_zero || !before.at(name).any().item<bool>()) << name;
  }
  // Two matrices each of: q, k, v and out of two layers; two of experts, of shared ones and of the
  // dense feed-forward; the router.
  EXPECT_EQ(adapters, 2 * (2 * 4 + 2 + 2 + 2 + 1));
}

TEST(Trainer, F120_Fp16OverflowHalvesTheScaleAndGoesOn) {
  Runs runs;
  const Result r = runs.run("fp16", {"train.precision=fp16", "train.loss_scale.initial=4294967296",
                                     "train.loss_scale.hysteresis=1", "train.steps=30"});
  EXPECT_LT(r.state.loss_scale.scale, 0x1p32);
  EXPECT_GT(r.state.updates, 0);
  EXPECT_EQ(r.state.updates + r.state.skipped, 30);
}

TEST(Trainer, Bf16KeepsF32MastersThroughACheckpoint) {
  for (const std::string kind : {"adamw", "sgd", "lion", "muon", "adafactor", "soap"}) {
    Runs runs;
    const std::vector<std::string> sets = {"train.precision=bf16", "checkpoint.at=[5]",
                                           "train.optimizer.kind=" + kind};
    const Result whole = runs.run("whole", sets);
    EXPECT_THROW(runs.run("cut", sets, "batch:5=throw"), std::exception);
    const Result rest = runs.run("cut", sets);
    EXPECT_EQ(whole.losses, rest.losses) << kind;
    EXPECT_TRUE(at::equal(whole.weights, rest.weights)) << kind;
  }
}

// A checkpoint does not depend on how masters are stored: f32 resumes from bf16 with every bit.
TEST(Trainer, WeightsOfABf16RunAreItsMasters) {
  Runs runs;
  std::map<std::string, at::Tensor> masters;
  const auto take = [&](Trainer& trainer) {
    const ParamStore& store = trainer.learner().store();
    for (size_t s = 0; s < store.slots().size(); ++s) {
      const Bucket& b = store.buckets()[static_cast<size_t>(store.slots()[s].bucket)];
      masters[store.slots()[s].named.name] =
          store.part(static_cast<int64_t>(s), master_of(b)).clone();
    }
  };
  runs.run("bf16", {"train.precision=bf16"}, "", take);
  const std::map<std::string, at::Tensor> wanted = std::exchange(masters, {});
  runs.run("fp32",
           {"train.optimizer.lr=0", "checkpoint.init_from=" + runs.path("bf16") + "/step-000012"},
           "", take);
  ASSERT_EQ(wanted.size(), masters.size());
  for (const auto& [name, master] : masters)
    EXPECT_TRUE(at::equal(master, wanted.at(name))) << name;
}

TEST(Trainer, F102_AStopSavesAndTheSameCallGoesOn) {
  Runs runs;
  const Result whole = runs.run("whole", {"train.steps=40"});
  std::thread sender([log = runs.path("part") + "/log.jsonl"] {
    const auto has_begun = [&] {
      return std::filesystem::exists(log) && read_file(log).find("\"loss\"") != std::string::npos;
    };
    while (!has_begun()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(::getpid(), SIGTERM);
  });
  const Result part = runs.run("part", {"train.steps=40"}, "batch=sleep:500");
  sender.join();
  EXPECT_EQ(part.end, RunEnd::kStopped);
  EXPECT_LT(part.state.done.steps, 40);
  const Result rest = runs.run("part", {"train.steps=40"});
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
}

}  // namespace
}  // namespace troupe
