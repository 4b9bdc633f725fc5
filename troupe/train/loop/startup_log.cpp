#include "troupe/train/loop/startup_log.h"

#include <ATen/Parallel.h>

#include <string>
#include <vector>

#include "troupe/core/text/readable.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/loop/startup_lines.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/recipe/experts_kernels.h"
#include "troupe/train/step/step_graph.h"

namespace troupe {
namespace {

void log_ranks(const RunStart& start) {
  const Log& log = start.context.tools.log;
  const ResolvedRun& recipe = start.context.recipe;
  const ParallelSetup& setup = *start.context.tools.setup;
  if (setup.state.alone()) return;
  log.info(description(recipe, setup) + "; " + recipe.layout_why);
  for (const std::string& line :
       without_effect(recipe.given_parallel, recipe.parallel, recipe.model.moe.experts)) {
    log.warning(line);
  }
  const bool nccl = !start.learner.device().is_cpu() && !setup.state.world().staged();
  for (const std::string& line :
       nccl ? std::vector<std::string>() : without_nccl(recipe.given_parallel)) {
    log.warning(line);
  }
}

void log_model(const RunStart& start) {
  const Log& log = start.context.tools.log;
  const ResolvedRun& recipe = start.context.recipe;
  Learner& learner = start.learner;
  const ModelCosts costs = learner.model().costs();
  log.info("device " + device_name(learner.device()) + ", " +
           std::to_string(at::get_num_threads()) + " threads, " + to_text(learner.precision()));
  const std::string no_code = no_code_line(recipe.run.device);
  if (!no_code.empty()) log.warning(no_code);
  log.info("model " + short_number(static_cast<double>(costs.params())) + " parameters, " +
           short_number(static_cast<double>(costs.active_params())) + " active; " +
           std::to_string(recipe.model.layers) + " layers, " +
           (recipe.model.moe.experts > 0
                ? std::to_string(recipe.model.moe.experts) + " experts, top " +
                      std::to_string(recipe.model.moe.top_k)
                : std::string("dense")));
}

// What of model, device and keys a reader of the figures must know.
void log_notes(const RunStart& start) {
  const Log& log = start.context.tools.log;
  const ResolvedRun& recipe = start.context.recipe;
  const RunPlan& plan = recipe.plan;
  const ParallelSetup& setup = *start.context.tools.setup;
  Learner& learner = start.learner;
  const std::string warning = causality_line(recipe.model);
  if (!warning.empty()) log.warning(warning);
  const std::string forced = forced_line(recipe.model);
  if (!forced.empty()) log.warning(forced);
  if (!recipe.run.replay.empty()) {
    log.warning("run.replay: the experts of every token are those of " + recipe.run.replay +
                ", whatever the routers choose");
  }
  const std::string frozen = frozen_line(recipe.model.lora, learner);
  if (!frozen.empty()) log.info(frozen);
  const std::string balance = balance_line(recipe.model);
  if (!balance.empty()) log.info(balance);
  const std::string attention = attention_line(
      recipe.model, learner.precision(), recipe.data.sequence, recipe.parallel, learner.device());
  if (!attention.empty()) log.info(attention);
  const GpuProducts products{.type = type_of(learner.precision()),
                             .gpu = gpu_of(learner.device()),
                             .slices = recipe.parallel.expert_tensor};
  const std::string experts =
      recipe.train.fp8
          ? fp8_line(*recipe.train.fp8, recipe.model, products)
          : experts_kernels(recipe.model, products, plan.micro_batch * recipe.data.sequence).line;
  if (!experts.empty()) log.info(experts);
  const std::string eager =
      why_no_graph(setup.state.alone(), learner.device(), start.context.tools.faults);
  const std::string graph = graph_line(recipe.train, eager);
  if (!graph.empty()) eager.empty() ? log.info(graph) : log.warning(graph);
  const std::string offload = offload_line(recipe.train, learner.device());
  const std::string state = state_offload_line(recipe.train, learner.device());
  if (!state.empty()) learner.device().is_cpu() ? log.warning(state) : log.info(state);
  if (!offload.empty()) learner.device().is_cpu() ? log.warning(offload) : log.info(offload);
  const std::string update =
      update_line(recipe.train, plan.batch / plan.micro_batch / setup.state.data_ranks());
  if (!update.empty()) log.info(update);
  if (recipe.run.trial_kernels) {
    log.warning(learner.device().is_cuda()
                    ? "run.trial_kernels: kernels on trial run where there are any, in "
                      "place of those that are known to be faster"
                    : "run.trial_kernels does nothing: the device is cpu");
  }
}

void log_run(const RunStart& start) {
  const Log& log = start.context.tools.log;
  const ResolvedRun& recipe = start.context.recipe;
  const RunPlan& plan = recipe.plan;
  const ParallelSetup& setup = *start.context.tools.setup;
  log.info("batch " + std::to_string(plan.batch) + " sequences of " +
           std::to_string(recipe.data.sequence) + " = " +
           std::to_string(plan.batch / plan.micro_batch) + " x micro batch " +
           std::to_string(plan.micro_batch) + " (" + recipe.micro_why + ")");
  for (const SourceUse& use : start.data.uses(plan.run.samples)) {
    log.info("data " + use.name + ": " + short_number(static_cast<double>(use.tokens)) +
             " tokens, " + fixed(use.epochs(), 2) + " epochs in this run");
  }
  log.info("run " + std::to_string(plan.run.steps) + " steps, " +
           short_number(static_cast<double>(plan.run.tokens)) + " tokens; lr " +
           to_text(base_of(recipe.train.optimizer).lr) + ' ' +
           std::string(recipe.train.schedule.kind()) + ", " +
           std::string(recipe.train.optimizer.kind()));
  log.info(
      "everything is written to " + recipe.checkpoint.dir +
      (setup.state.alone() ? ", a checkpoint is " + readable_bytes(start.checkpoint_bytes) : ""));
  if (start.resumed_step < 0) return;
  log.info("resumed step " + std::to_string(start.resumed_step) + " from " + start.newest + ", " +
           "at sample " + std::to_string(start.context.state.done.samples));
}

}  // namespace

void log_start(const RunStart& start) {
  log_ranks(start);
  log_model(start);
  log_notes(start);
  log_run(start);
}

}  // namespace troupe
