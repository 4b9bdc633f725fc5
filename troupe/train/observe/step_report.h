// What one step of training gave: losses, what is not finite, MoE statistics, seconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "troupe/nn/moe_stats.h"

namespace troupe {

// Tensors on the device; nothing has been waited for.
struct StepOutput {
  at::Tensor loss;                           // f64 scalar: this rank's part of the step's loss
  at::Tensor mtp;                            // undefined without MTP modules
  std::map<std::string, at::Tensor> aux;     // sum over layers and microbatches, coefficient out
  std::map<std::string, int64_t> aux_terms;  // how many were summed
  std::map<int64_t, std::vector<MoeStats>> moe;  // by unit, over all microbatches
};

// Host seconds per phase; `own` excludes waiting for other ranks. On a GPU: launch time only.
struct PhaseSeconds {
  double forward = 0, backward = 0, reduce = 0, update = 0;
};
struct StepSeconds : PhaseSeconds {
  PhaseSeconds own = {};
};

struct ExpertsMoved {
  int64_t layer = 0;
  int64_t experts = 0;           // that moved
  double before = 1, after = 1;  // max/mean of the ranks' rows, over the steps that were counted
};

struct StepReport {
  double loss = 0;       // as train.loss_mean has it, over the targets that count
  double mtp_loss = 0;   // the same of MTP modules, their factor included
  double grad_norm = 0;  // before clipping
  double lr = 0, weight_decay = 0;
  bool finite = true;
  bool skipped = false;
  std::string spike;      // what is out of line; empty: nothing
  std::string first_bad;  // of a step that is not finite: where it began, and if a replay finds it
  int64_t tokens = 0;     // of the global batch
  double weight_sum = 0;  // of all its targets
  StepOutput output;
  StepSeconds seconds;
  int64_t lost_rows = 0;                 // C7: of the first attempt, where the step was done again
  std::vector<ExpertsMoved> moved = {};  // after it: what add_to() named is somewhere else
};

}  // namespace troupe
