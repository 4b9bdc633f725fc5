// What a run says of itself before its first step: Trainer::say_start.
#include <ATen/Parallel.h>

#include "troupe/core/text/readable.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/start_lines.h"
#include "troupe/train/trainer.h"

namespace troupe {

void Trainer::say_start() const {
  const Log& log = tools_.log;
  const ModelCosts costs = learner_->model().costs();
  if (!ranks_.alone()) {
    log.info(ranks_.description() + "; " + ranks_.choice().why);
    for (const std::string& line :
         without_effect(recipe_.parallel, ranks_.parallel(), recipe_.model.moe.experts)) {
      log.warning(line);
    }
  }
  log.info("device " + device_name(learner_->device()) + ", " +
           std::to_string(at::get_num_threads()) + " threads, " + to_text(learner_->precision()));
  log.info("model " + short_number(static_cast<double>(costs.params())) + " parameters, " +
           short_number(static_cast<double>(costs.active_params())) + " active; " +
           std::to_string(recipe_.model.layers) + " layers, " +
           (recipe_.model.moe.experts > 0
                ? std::to_string(recipe_.model.moe.experts) + " experts, top " +
                      std::to_string(recipe_.model.moe.top_k)
                : std::string("dense")));
  const std::string warning = causality_line(recipe_.model);
  if (!warning.empty()) tools_.log.warning(warning);
  const std::string balance = balance_line(recipe_.model);
  if (!balance.empty()) log.info(balance);
  const std::string attention = attention_line(recipe_.model, learner_->precision(),
                                               recipe_.data.sequence, learner_->device());
  if (!attention.empty()) log.info(attention);
  if (recipe_.train.fp8) log.info(fp8_line(*recipe_.train.fp8, recipe_.model));
  log.info("batch " + std::to_string(plan_.batch) + " sequences of " +
           std::to_string(recipe_.data.sequence) + " = " +
           std::to_string(plan_.batch / plan_.micro_batch) + " x micro batch " +
           std::to_string(plan_.micro_batch) + " (" + micro_why_ + ")");
  for (const SourceUse& use : data_.train->uses(plan_.run.samples)) {
    log.info("data " + use.name + ": " + short_number(static_cast<double>(use.tokens)) +
             " tokens, " + fixed(use.epochs(), 2) + " epochs in this run");
  }
  log.info("run " + std::to_string(plan_.run.steps) + " steps, " +
           short_number(static_cast<double>(plan_.run.tokens)) + " tokens; lr " +
           to_text(base_of(recipe_.train.optimizer).lr) + ' ' +
           std::string(recipe_.train.schedule.kind()) + ", " +
           std::string(recipe_.train.optimizer.kind()));
  log.info("everything is written to " + recipe_.checkpoint.dir +
           (ranks_.alone() ? ", a checkpoint is " + readable_bytes(tensors_.owned_bytes()) : ""));
  if (resumed_step_ < 0) return;
  log.info("resumed step " + std::to_string(resumed_step_) + " from " + newest_ + ", " +
           std::to_string(state_.done.samples) + " samples done; next id " +
           std::to_string(state_.done.samples));
}

}  // namespace troupe
