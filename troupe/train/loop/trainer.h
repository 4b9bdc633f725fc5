// A run from its recipe to its end: opens the data, resumes, trains, evaluates, saves, logs. The
// same call resumes it after any stop.
//
//   RUN/recipe.yaml given.yaml env.json   the recipe, resolved and as given; the environment
//   RUN/log.txt log.jsonl tb/             logs
//   RUN/step-000120/ latest               checkpoints
//   RUN/report.html exit.json             at the end
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/train/loop/after_step.h"
#include "troupe/train/loop/batch_loader.h"
#include "troupe/train/loop/periodic_evaluation.h"
#include "troupe/train/loop/resume_run.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/run_logger.h"
#include "troupe/train/loop/save_control.h"
#include "troupe/train/loop/stop_control.h"
#include "troupe/train/observe/profile.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/step/learner.h"

namespace troupe {

enum class RunEnd { kFinished, kAlreadyFinished, kStopped };

class Trainer {
 public:
  Trainer(const ResolvedRun& recipe, const RunTools& tools);
  ~Trainer();

  RunEnd run();
  const TrainState& state() const { return state_; }
  Learner& learner() { return *learner_; }
  RankStatus status() const { return pulse_.now(); }  // for a message about what failed
  std::string newest_checkpoint() const { return saves_->newest(); }
  bool writes_checkpoint() const { return saves_->busy(); }  // once `begun` was called; any thread

 private:
  using Clock = RunContext::Clock;

  // trainer_start.cpp
  void open_run();

  // trainer.cpp
  std::optional<Feed> next_feed();
  StepReport step_with_routing(const Feed& given, const Learner::Votes& votes);
  void one_step(const Feed& feed, Clock::time_point begin, double waited);
  void note(const StepReport& report, const Feed& feed);
  RunEnd stop();
  RunEnd finish();
  std::string train_on() const;

  const ResolvedRun recipe_;
  RunTools tools_;
  TrainState state_;
  const RunContext context_;
  const ParallelState& parallel_;
  Pulse& pulse_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Data data_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<RunLogger> logger_;
  std::unique_ptr<SaveControl> saves_;
  StopControl stop_;
  std::optional<Evaluation> evaluation_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<AfterStep> after_step_;
  std::unique_ptr<Profile> profile_;
  ResumedRun resumed_;
};

}  // namespace troupe
