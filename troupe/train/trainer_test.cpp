#include "troupe/train/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "troupe/core/config.h"
#include "troupe/core/file.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

// The nano model of the reliability tests, on bytes.
constexpr std::string_view kNano =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64, router: {balance: {aux_loss: 0.01}}}}\n"
    "data: {train: [{kind: mock}], valid: [{kind: mock, documents: 4}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 12, precision: fp32, optimizer: {lr: 3e-3},\n"
    "        schedule: {warmup: 2}}\n"
    "checkpoint: {every_steps: 4}\n"
    "run: {device: cpu}\n";

struct Result {
  RunEnd end;
  std::vector<std::string> losses;  // as the log tells them
  at::Tensor weights;               // all masters, moments and routers' state, end to end
  TrainState state;
};

at::Tensor all_of(const ParamStore& store) {
  std::vector<at::Tensor> out;
  for (const Bucket& b : store.buckets()) {
    out.push_back(b.master.flatten());
    for (const at::Tensor& moment : b.state) out.push_back(moment.flatten());
  }
  for (const NamedParam& other : store.others()) out.push_back(other.param->value.flatten());
  return at::cat(out).detach();
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t out = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++out;
  return out;
}

double loss_of(const std::string& line) {
  return std::stod(line.substr(line.rfind(':') + 1));
}

class Runs {
 public:
  Result run(const std::string& name, std::vector<std::string> sets = {},
             const std::string& faults = "") {
    Recipe recipe;
    read_config(parse_yaml(std::string(kNano), "nano"), recipe);
    sets.push_back("checkpoint.dir=" + (folder_ / name));
    for (const std::string& set : sets) read_config(override_yaml(set), recipe);
    validate(recipe, {});
    Fs fs;
    Signals signals;
    const Faults points(faults);
    Trainer trainer(recipe, {.log = Log(),
                             .fs = fs,
                             .faults = points,
                             .signals = signals,
                             .force = false,
                             .continue_with = "troupe train nano"});
    const RunEnd end = trainer.run();
    return {end, losses(name), all_of(trainer.learner().store()), trainer.state()};
  }

  std::vector<std::string> losses(const std::string& name) const {
    std::vector<std::string> out;
    std::istringstream lines(read_file(folder_ / name + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("\"loss\":");
      if (line.find("\"event\"") == std::string::npos && at != std::string::npos) {
        out.push_back(line.substr(0, line.find(',')) + line.substr(at, line.find(',', at) - at));
      }
    }
    return out;
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

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

TEST(Trainer, F122_EveryOptimizerAndRouterGoesOnBitForBit) {
  Runs runs;
  const std::string router = "model.moe.router=";
  int number = 0;
  for (const std::string& one :
       {std::string("train.optimizer.kind=sgd"), std::string("train.optimizer.kind=lion"),
        std::string("train.optimizer.kind=muon"), router + "{kind: sigmoid_bias}",
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

TEST(Trainer, F18_GoingOnFromAnEarlierStepSetsLaterOnesAside) {
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
  for (const std::string kind : {"adamw", "sgd", "lion", "muon"}) {
    const std::string lr = kind == "sgd" ? "0.5" : kind == "lion" ? "1e-3" : "3e-3";
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

TEST(Trainer, F120_Fp16OverflowHalvesTheScaleAndGoesOn) {
  Runs runs;
  const Result r = runs.run("fp16", {"train.precision=fp16", "train.loss_scale.initial=4294967296",
                                     "train.loss_scale.hysteresis=1", "train.steps=30"});
  EXPECT_LT(r.state.loss_scale.scale, 0x1p32);
  EXPECT_GT(r.state.updates, 0);
  EXPECT_EQ(r.state.updates + r.state.skipped, 30);
}

TEST(Trainer, Bf16KeepsF32MastersThroughACheckpoint) {
  Runs runs;
  const std::vector<std::string> sets = {"train.precision=bf16", "checkpoint.at=[5]"};
  const Result whole = runs.run("whole", sets);
  EXPECT_THROW(runs.run("cut", sets, "batch:5=throw"), std::exception);
  const Result rest = runs.run("cut", sets);
  EXPECT_EQ(whole.losses, rest.losses);
  EXPECT_TRUE(at::equal(whole.weights, rest.weights));
}

TEST(Trainer, F102_AStopSavesAndTheSameCallGoesOn) {
  Runs runs;
  const Result whole = runs.run("whole", {"train.steps=40"});
  // The signal comes before the first step: the flag is read between steps.
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(::getpid(), SIGTERM);
  });
  const Result part = runs.run("part", {"train.steps=40"}, "batch=sleep:50");
  sender.join();
  EXPECT_EQ(part.end, RunEnd::kStopped);
  EXPECT_LT(part.state.done.steps, 40);
  const Result rest = runs.run("part", {"train.steps=40"});
  EXPECT_EQ(rest.losses, whole.losses);
  EXPECT_TRUE(at::equal(rest.weights, whole.weights));
}

}  // namespace
}  // namespace troupe
