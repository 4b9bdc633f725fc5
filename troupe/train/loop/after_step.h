// What follows each step: its log line and record, an evaluation, a comparison of replicas, a save,
// a stop. All ranks do the same after the same step.
//
//   votes = after.votes(before, end)            before the step
//   report = learner.step(feed, state, votes)   adds the ranks' votes up
//   after.run(report, feed, seconds)            decides by the sums, then does what is due
//
// The votes travel in the step's one all-reduce, beside loss and gradient norm, with what ranks must
// know of the next batch (BatchLoader::ahead), so that no step waits for a sum of its own on the
// host. Rank 0's clock decides what is due; a signal to any rank counts; one rank that has to stop
// stops all. One rank alone sends nothing: it votes after the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/train/loop/batch_loader.h"
#include "troupe/train/loop/periodic_evaluation.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/run_logger.h"
#include "troupe/train/loop/save_control.h"
#include "troupe/train/loop/stop_control.h"
#include "troupe/train/step/learner.h"

namespace troupe {

// What is due after a step: by this rank's clock and signals, or as agreed by all ranks.
struct StepDuties {
  bool line = false, record = false, eval = false, replicas = false, save = false;
  bool save_asked = false;  // by a signal
  bool status = false;
  bool save_failed = false;
  std::string why_save;
};

class AfterStep {
 public:
  // The parts of the run that it works on; all outlive it.
  struct Parts {
    BatchLoader& loader;
    StopControl& stop;
    Evaluation& evaluation;
    SaveControl& saves;
    RunLogger& logger;
    Learner& learner;
  };
  // The first ten steps from `resumed_step` (below 0: a new run) have a line each.
  AfterStep(const RunContext& run, const Parts& parts, int64_t resumed_step);

  // Of the step from `before` to `end`, which has not begun. Empty: one rank.
  Learner::Votes votes(const Position& before, const Position& end);
  // The step is done. Throws on all ranks where a save failed on one.
  void run(const StepReport& report, const Feed& feed, double seconds);

  // Evaluates, and saves where the loss is the best so far (checkpoint.keep_best).
  void evaluate();
  // Saves a last time, and waits for what is still being written.
  void save_last(const std::string& why);

 private:
  std::vector<double> own_votes();
  StepDuties own_duties();
  bool line_due(double now);
  StepDuties decide(const std::vector<double>& sums);
  void save(const std::string& why, WhenBusy when_busy);

  const RunContext& run_;
  const Parts parts_;
  const int64_t first_step_;
  Cadence line_, record_, eval_, save_time_, save_steps_, replicas_;
  double last_line_ = -1;
  Position before_, end_;  // of the present step
  StepDuties own_;
  std::string own_stop_;  // empty: this rank continues
};

}  // namespace troupe
