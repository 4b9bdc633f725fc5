// Results of one training step: losses, non-finite values, MoE statistics, seconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troupe/nn/moe/moe_stats.h"

namespace troupe {

// Tensors on the device, not waited for.
struct StepOutput {
  at::Tensor loss;  // f64 scalar: this rank's part of the step's loss
  at::Tensor mtp;   // undefined without MTP modules
  // Of each microbatch, f64 scalars whose sums are loss and mtp: where StepInput::apart asks.
  std::vector<at::Tensor> losses, mtps;
  at::Tensor ce, kl;  // parts of `loss`; undefined without a teacher
  // With train.loss dpo: rewards_3 of ops/preference_loss.h, a mean over pairs as `loss` is.
  at::Tensor rewards_3;
  std::map<std::string, at::Tensor> aux;  // sum over layers and microbatches, without coefficient
  std::map<std::string, int64_t> aux_terms;      // number of summands
  std::map<int64_t, std::vector<MoeStats>> moe;  // by unit, over all microbatches
  std::vector<LayerChoices> choices;             // where they were asked for
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
  int64_t experts = 0;           // number of moved experts
  double before = 1, after = 1;  // max/mean rows per rank over the counted steps
};

// Means over preference pairs (ops/preference_loss.h).
struct PairRewards {
  double chosen = 0, rejected = 0;  // rewards
  double accuracy = 0;              // the part whose chosen answer has the larger one
  double margin() const { return chosen - rejected; }
};

struct StepReport {
  double loss = 0;        // as train.loss_mean defines it, over unmasked targets
  double mtp_loss = 0;    // the same for MTP modules, with their weight
  double ce = 0, kl = 0;  // with train.teacher: parts of `loss` (ops/soft_targets.h)
  PairRewards rewards;    // with train.loss: dpo
  double grad_norm = 0;   // before clipping
  double lr = 0, weight_decay = 0;
  bool finite = true;
  bool skipped = false;
  // train.update in_backward: units whose weights were updated before the step was judged.
  int64_t units_updated = 0;
  std::string spike;      // description of a loss or gradient spike; empty: none
  std::string first_bad;  // non-finite step: where it began, and whether a replay reproduces it
  int64_t tokens = 0;     // in the global batch
  double weight_sum = 0;  // sum of all its targets' weights
  std::vector<double> votes = {};  // of Learner::step, summed over the ranks
  StepOutput output;
  StepSeconds seconds;
  std::string graph = {};  // train.cuda_graph: what is to be told of the step; empty: nothing
  std::optional<int64_t> offloaded = {};  // train.offload_layers: bytes, of the first step alone
  int64_t lost_rows = 0;  // C7: rows over the budget in the first attempt of a repeated step
  // Under train.fp8.recipe delayed, int64 [] on the device: operands of this rank's layers with
  // values that were cut off, counted on one rank of those that have them.
  at::Tensor fp8_saturated = {};
  std::vector<ExpertsMoved> moved = {};  // moved after the step: call add_to() again
};

}  // namespace troupe
