// What the parts of a run share: the trainer's loop, what it writes (run_logger.h), its checkpoints
// (save_control.h) and its end (stop_control.h). The Trainer makes and outlives them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/loop/signals.h"
#include "troupe/train/observe/live_steps.h"
#include "troupe/train/step/train_state.h"

namespace troupe {

// What a run is given beside its recipe.
struct RunTools {
  Log log;
  Fs& fs;
  const Faults& faults;
  Signals& signals;
  bool force = false;                // resumes although data, model or seed changed
  bool restarted = false;            // of rank 0: an attempt before had done checkpoint.resume
  std::string continue_with;         // the command that resumes: "troupe train run.yaml"
  std::function<void()> begun = {};  // called once the run folder is locked
  std::shared_ptr<const ParallelSetup> setup = std::make_shared<ParallelSetup>();
  LiveSteps steps = {};
};

struct RunContext {
  using Clock = std::chrono::steady_clock;

  const ResolvedRun& recipe;
  const RunTools& tools;
  TrainState& state;
  Clock::time_point start = Clock::now();

  const ParallelState& parallel() const { return tools.setup->state; }
  Pulse& pulse() const { return parallel().world().pulse(); }
  bool writes_logs() const { return parallel().writes_logs(); }
  const Log& log() const { return tools.log; }
  std::string step() const { return "step " + std::to_string(state.done.steps); }
  double seconds() const { return since(start); }
  static double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

}  // namespace troupe
