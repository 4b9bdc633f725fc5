// The state of a run besides its tensors: the `scalars` of a checkpoint.
#pragma once

#include <optional>

#include "troupe/core/config/span.h"
#include "troupe/train/optim/guard.h"
#include "troupe/train/params/rebalance_state.h"

namespace troupe {

struct TrainState {
  Position done;
  int64_t updates = 0;      // steps that changed the weights: what the optimizer counts by
  int64_t skipped = 0;      // steps that did not, in total
  int64_t skipped_now = 0;  // consecutive, until now
  int64_t nonfinite = 0;
  int64_t loss_tokens = 0;  // unmasked targets
  double loss_ema = 0;
  LossScaleState loss_scale;
  SpikeState spike;
  std::optional<double> best = {};  // lowest validation loss
  double seconds = 0;               // training time over all starts
  Position run = {};                // planned length of the run; 0: unknown
  double save_seconds = 0;          // duration of the last save; 0: none yet
  RebalanceState rebalance = {};    // as of a save
  int64_t reruns = 0;               // steps repeated because a rank exceeded its budget (C7)
  double last_norm = 0;             // of gradients, when it was last finite; 0: never yet

  static void visit(auto& s, auto&& f) {
    f("done", s.done);
    f("updates", s.updates);
    f("skipped", s.skipped);
    f("skipped_now", s.skipped_now);
    f("nonfinite", s.nonfinite);
    f("loss_tokens", s.loss_tokens);
    f("loss_ema", s.loss_ema);
    f("loss_scale", s.loss_scale);
    f("spike", s.spike);
    f("best", s.best);
    f("seconds", s.seconds);
    f("run", s.run);
    f("save_seconds", s.save_seconds);
    f("rebalance", s.rebalance);
    f("reruns", s.reruns);
    f("last_norm", s.last_norm);
  }
};

}  // namespace troupe
