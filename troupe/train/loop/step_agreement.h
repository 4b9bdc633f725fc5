// What the ranks of a run decide together after each step: whether to stop, what is due, and the
// loss weight of the next batch. The values are added up in the step's one all-reduce, beside loss
// and gradient norm (Learner::step), so that no step waits for a sum of its own on the host.
#pragma once

#include <vector>

#include "troupe/train/loop/batch_loader.h"
#include "troupe/train/loop/cadences.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/save_control.h"
#include "troupe/train/loop/stop_control.h"

namespace troupe {

class StepAgreement {
 public:
  // All outlive it.
  StepAgreement(const RunContext& run, BatchLoader& loader, Cadences& cadences, StopControl& stop,
                const SaveControl& saves)
      : run_(run), loader_(loader), cadences_(cadences), stop_(stop), saves_(saves) {}

  // This rank's values of the step from `before` to `after`: asked once a step.
  std::vector<double> votes(const Position& before, const Position& after);
  // Decides by the sums over ranks: agrees on the next batch and on a stop, and says what is due.
  StepDuties decide(const std::vector<double>& sums);

 private:
  const RunContext& run_;
  BatchLoader& loader_;
  Cadences& cadences_;
  StopControl& stop_;
  const SaveControl& saves_;
  StepDuties own_;
  std::string own_reason_;
};

}  // namespace troupe
