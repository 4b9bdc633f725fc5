// The votes of a step add no collective to it: seen in a run of two processes, by its flight recorder.
// That a signal to one rank stops all is asked of the program (tests/troupe_ranks_faults_test).
#include "troupe/train/loop/after_step.h"

#include <gtest/gtest.h>

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
#include "troupe/train/loop/trainer.h"

namespace troupe {
namespace {

constexpr std::string_view kTwoRanks =
    "model: {layers: 1, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 12, precision: fp32, optimizer: {lr: 3e-3}}\n"
    "parallel: {shard: none, expert: 1}\n"
    "checkpoint: {every_steps: 1000}\n"
    "log: {every: 1000 steps}\n"
    "run: {device: cpu, threads: 1}\n";

Recipe recipe_in(const std::string& folder) {
  Recipe out;
  read_config(parse_yaml(std::string(kTwoRanks), "nano"), out);
  read_config(override_yaml("checkpoint.dir=" + folder), out);
  validate(out, {});
  return out;
}

// Runs `recipe` on the ranks of `world`; `look` sees the end.
void run(World& world, const Recipe& recipe, const std::function<void(Trainer&, RunEnd)>& look) {
  Fs fs;
  Signals signals;
  const Faults none;
  const ResolvedRun resolved = resolve(recipe, world);
  Trainer trainer(resolved, {.log = Log(),
                             .fs = fs,
                             .faults = none,
                             .signals = signals,
                             .continue_with = "troupe train nano",
                             .setup = std::make_shared<ParallelSetup>(
                                 std::shared_ptr<World>(&world, [](World*) {}), resolved)});
  const RunEnd end = trainer.run();
  look(trainer, end);
}

std::string shared_folder(World& world, const testing::TemporaryFolder& own) {
  return world.all_gather_texts("folder", own / "run")[0];
}

// A step between the first and the last issues one all-reduce of its own in `optim`, and none
// before the next one's forward: neither for the batch nor for what is due.
TEST(AfterStep, AStepHasNoSumOfItsOwnOnTheHost) {
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

}  // namespace
}  // namespace troupe
