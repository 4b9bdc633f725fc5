// What ranks decide together: seen in a run of two processes, by its flight recorder and its end.
#include "troupe/train/step_agreement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/testing/torch/ranks.h"
#include "troupe/train/trainer.h"

namespace troupe {
namespace {

constexpr std::string_view kTwoRanks =
    "model: {layers: 1, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 12, precision: fp32, optimizer: {lr: 3e-3}}\n"
    "parallel: {shard: none, expert: 1}\n"
    "checkpoint: {every: 0, every_steps: 0}\n"
    "log: {every: 1000 steps}\n"
    "run: {device: cpu, threads: 1}\n";

Recipe recipe_in(const std::string& folder, const std::string& more = "") {
  Recipe out;
  read_config(parse_yaml(std::string(kTwoRanks), "nano"), out);
  read_config(override_yaml("checkpoint.dir=" + folder), out);
  if (!more.empty()) read_config(override_yaml(more), out);
  validate(out, {});
  return out;
}

// Runs `recipe` on the ranks of `world`; `look` sees the end.
void run(World& world, const Recipe& recipe, const std::function<void(Trainer&, RunEnd)>& look,
         const std::function<void()>& before = {}) {
  Fs fs;
  Signals signals;
  const Faults none;
  Trainer trainer(recipe, {.log = Log(),
                           .fs = fs,
                           .faults = none,
                           .signals = signals,
                           .continue_with = "troupe train nano",
                           .setup = std::make_shared<ParallelSetup>(
                               std::shared_ptr<World>(&world, [](World*) {}), recipe)});
  if (before) before();
  const RunEnd end = trainer.run();
  look(trainer, end);
}

std::string shared_folder(World& world, const testing::TemporaryFolder& own) {
  return world.all_gather_texts("folder", own / "run")[0];
}

// A step between the first and the last issues one all-reduce of its own in `optim`, and none
// before the next one's forward: neither for the batch nor for what is due.
TEST(StepAgreement, AStepHasNoSumOfItsOwnOnTheHost) {
  testing::in_ranks(2, [](World& world) {
    const testing::TemporaryFolder folder;
    run(world, recipe_in(shared_folder(world, folder)), [&](Trainer&, RunEnd end) {
      EXPECT_EQ(end, RunEnd::kFinished);
      std::map<int64_t, std::map<Phase, int>> sums;  // by steps done
      world.pulse().flight().visit([&](const FlightRecorder::Raw& raw) {
        if (raw.event != Note::kIssue || raw.operation.what != Collective::kAllReduce) return;
        ++sums[raw.done][unpack_status(raw.done, raw.phase, raw.at).phase];
      });
      int with_batch = 0, steps = 0;
      for (int64_t done = 8; done < 11; ++done) {
        auto& of = sums[done];
        EXPECT_GE(of[Phase::kReduce] + of[Phase::kBackward], 1) << done;  // of gradients
        EXPECT_EQ(of[Phase::kOptim], 1) << done;
        EXPECT_EQ(of[Phase::kLog], 0) << done;
        with_batch += of[Phase::kBatch] > 0;
        ++steps;
      }
      // A batch that is not ready yet is waited for by all: rare, as batches are made two ahead.
      EXPECT_LT(with_batch, steps);
      world.all_gather_texts("end", "");
    });
  });
}

// A signal to rank 1 alone stops both behind the same step.
TEST(StepAgreement, ASignalToOneRankStopsAll) {
  testing::in_ranks(2, [](World& world) {
    const testing::TemporaryFolder folder;
    const auto before = [&] {
      if (world.rank() == 1) ::kill(::getpid(), SIGTERM);
    };
    run(
        world, recipe_in(shared_folder(world, folder), "train.steps=100000"),
        [&](Trainer& trainer, RunEnd end) {
          EXPECT_EQ(end, RunEnd::kStopped);
          const std::string done = std::to_string(trainer.state().done.steps);
          const std::vector<std::string> all = world.all_gather_texts("done", done);
          EXPECT_EQ(all[0], all[1]);
          EXPECT_LT(trainer.state().done.steps, 100);
          EXPECT_TRUE(std::filesystem::exists(trainer.newest_checkpoint()));
        },
        before);
  });
}

}  // namespace
}  // namespace troupe
