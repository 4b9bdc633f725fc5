#include "troupe/train/going_on.h"

#include <gtest/gtest.h>

#include "troupe/core/file/file.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

TEST(GoingOn, F163_CountersThatNoRunHasAreDamageOfTheCheckpoint) {
  TrainState good;
  good.done = {.steps = 5, .samples = 40, .tokens = 1280};
  good.updates = 5;
  require_counters(good, 5, "run/step-000005");
  const auto refused = [](const TrainState& state) {
    return testing::refusal_code(Code::kDamagedCheckpoint,
                                 [&] { require_counters(state, 5, "run/step-000005"); });
  };
  for (int64_t TrainState::*counter :
       {&TrainState::updates, &TrainState::skipped, &TrainState::skipped_now,
        &TrainState::nonfinite, &TrainState::loss_tokens, &TrainState::reruns}) {
    TrainState bad = good;
    bad.*counter = -1;
    EXPECT_PRED2(testing::has, refused(bad), "run/step-000005: E4004 its state has");
  }
  TrainState bad = good;
  bad.done.samples = -40;
  EXPECT_PRED2(testing::has, refused(bad), "done.samples -40");
  bad = good;
  bad.loss_scale.scale = 0;
  EXPECT_PRED2(testing::has, refused(bad), "a loss scale of 0");
  bad = good;
  bad.done.steps = 6;
  EXPECT_PRED2(testing::has, refused(bad), "is of step 5 and its state of step 6");
}

TEST(GoingOn, F165_WhatIsLeftOfARunTellsThatItHadSteps) {
  const testing::TemporaryFolder run;
  EXPECT_EQ(lost_steps(run.path()), "");
  testing::put_file(run / "log.jsonl", "{}\n");
  testing::put_file(run / "exit.json", "{\"code\":0,\"checkpoint\":\"\"}\n");
  EXPECT_EQ(lost_steps(run.path()), "");  // it ended before its first save
  testing::put_file(run / "exit.json", "{\"code\":0,\"checkpoint\":\"run/step-000200\"}\n");
  EXPECT_EQ(lost_steps(run.path()), "exit.json names run/step-000200");
  testing::put_file(run / "latest", "step-000200\n");
  EXPECT_EQ(lost_steps(run.path()), "the file latest says step-000200");
}

TEST(GoingOn, F165_LostStepsAreRefusedAndAnOldLogIsSaid) {
  const testing::TemporaryFolder run;
  const auto lines = std::make_shared<testing::Lines>();
  const Log log({lines});
  CheckpointConfig config;
  config.dir = run.path();
  refuse_lost_steps(config, false, log);
  EXPECT_EQ(lines->text, "");
  testing::put_file(run / "log.jsonl", "{}\n");
  refuse_lost_steps(config, false, log);
  EXPECT_PRED2(testing::has, lines->text, "begins at step 0");
  testing::put_file(run / "latest", "step-000200\n");
  const auto refusal =
      testing::refusal_code(Code::kNoCheckpoint, [&] { refuse_lost_steps(config, false, log); });
  EXPECT_PRED2(testing::has, refusal, "the file latest says step-000200. Bring the steps back");
  config.resume.kind = Resume::kNever;
  refuse_lost_steps(config, false, log);
}

TEST(GoingOn, F168_AFinishedRunClearsWhatAKilledSaveLeft) {
  const testing::TemporaryFolder run;
  Fs fs;
  const std::string staged = make_staging_directory(fs, run / "step-000005");
  EXPECT_TRUE(is_there(staged));
  clear_leftovers(fs, run.path(), Log());
  EXPECT_FALSE(is_there(staged));
}

}  // namespace
}  // namespace troupe
