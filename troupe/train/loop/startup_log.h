// What a run logs of itself before its first step: ranks, device, model, kernels, batch, data.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/data/tokens/dataset.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct RunStart {
  const RunContext& context;
  Learner& learner;
  const Dataset& data;
  int64_t checkpoint_bytes = 0;
  int64_t resumed_step = -1;  // -1: it begins anew
  std::string newest = {};    // the checkpoint it resumed from
};

void log_start(const RunStart& start);

}  // namespace troupe
