#include "troupe/train/loop/resume_checks.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <sstream>
#include <string>

#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

TEST(ResumeChecks, F163_CountersThatNoRunHasAreDamageOfTheCheckpoint) {
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
    bad.*counter = INT64_MAX;  // and one more for the next step
    EXPECT_PRED2(testing::has, refused(bad), "9223372036854775807");
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
  bad = good;
  bad.rebalance = {.ranks = 2, .owners = {0, 1, 1, 2}, .rows = {1, 2, 3, 4}};
  EXPECT_PRED2(testing::has, refused(bad), "an expert on rank 2 of 2");
  bad.rebalance.owners = {0, 1, 1, -1};
  EXPECT_PRED2(testing::has, refused(bad), "an expert on rank -1 of 2");
  bad.rebalance = {.ranks = 2, .owners = {0, 1}, .rows = {1, -2}};
  EXPECT_PRED2(testing::has, refused(bad), "rebalance.rows -2");
}

TEST(ResumeChecks, F131_ACounterThatIsMissingIsNamedAndNeverBeginsAnew) {
  std::ostringstream out;
  TrainState state;
  state.done = {.steps = 5, .samples = 40, .tokens = 1280};
  state.updates = 5;
  write_json(out, state);
  const std::string whole = out.str();
  const auto manifest = [](const std::string& text) {
    return Manifest{.step = 5, .scalars = parse_json(text, "manifest.json")};
  };
  EXPECT_EQ(read_state(manifest(whole), "run/step-000005").updates, 5);
  const auto without = [&](const std::string& name) {  // of a field that is a number
    const size_t begin = whole.find('"' + name + "\":"), end = whole.find(',', begin);
    EXPECT_LT(end, whole.size()) << name;
    return manifest(whole.substr(0, begin) + whole.substr(end + 1));
  };
  for (const char* name : {"updates", "skipped", "nonfinite", "loss_tokens", "samples"}) {
    EXPECT_PRED2(testing::has,
                 testing::refusal_code(Code::kStateMismatch,
                                       [&] { read_state(without(name), "run/step-000005"); }),
                 name);
  }
  EXPECT_EQ(read_state(without("save_seconds"), "run/step-000005").save_seconds, 0);
}

TEST(ResumeChecks, OtherSettingsOfTrainingAreToldWithBothValues) {
  Recipe was, now;
  EXPECT_EQ(other_training(was.train, now.train), "");
  now.train.clip = 0.5;
  now.train.steps = 7;        // other_schedule() tells it
  now.train.micro_batch = 2;  // changes no sum
  EXPECT_EQ(other_training(was.train, now.train), "train.clip 1 -> 0.5");
  now.train.optimizer.select("muon");
  const std::string what = other_training(was.train, now.train);
  EXPECT_NE(what.find("train.optimizer.kind adamw -> muon"), std::string::npos) << what;
}

TEST(ResumeChecks, F165_WhatIsLeftOfARunTellsThatItHadSteps) {
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

TEST(ResumeChecks, F165_LostStepsAreRefusedAndAnOldLogIsSaid) {
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

TEST(ResumeChecks, F168_AFinishedRunClearsWhatAKilledSaveLeft) {
  const testing::TemporaryFolder run;
  Fs fs;
  const std::string staged = make_staging_directory(fs, run / "step-000005");
  EXPECT_TRUE(is_there(staged));
  clear_leftovers(fs, run.path(), Log());
  EXPECT_FALSE(is_there(staged));
}

TEST(ResumeChecks, F170_AFolderThatOthersMayWriteToIsSaid) {
  const testing::TemporaryFolder run;
  const auto lines = std::make_shared<testing::Lines>();
  const Log log({lines});
  const auto said = [&] {
    warn_of_other_users(run.path(), log);
    return lines->text;
  };
  ASSERT_EQ(::chmod(run.path().c_str(), 0775), 0);
  EXPECT_EQ(said(), "");  // a group that works together
  ASSERT_EQ(::chmod(run.path().c_str(), 01777), 0);
  EXPECT_NE(said().find("may be written to by every user of this machine"), std::string::npos);
  if (::geteuid() != 0) GTEST_SKIP() << "needs to be root, to give a folder to another user";
  ASSERT_EQ(::chmod(run.path().c_str(), 0700) + ::chown(run.path().c_str(), 65534, 65534), 0);
  EXPECT_NE(said().find("belongs to another user, number 65534"), std::string::npos);
}

}  // namespace
}  // namespace troupe
