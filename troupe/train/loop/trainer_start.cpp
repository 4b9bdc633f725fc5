// How a run begins: opens its data, builds the model, resumes (resume_run.h), says what it will do.
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <utility>

#include "troupe/checkpoint/state/group_of_state.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/text/readable.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/loop/startup_log.h"
#include "troupe/train/loop/trainer.h"
#include "troupe/train/observe/stacks.h"
#include "troupe/train/observe/thread_limit.h"
#include "troupe/train/run/data_warnings.h"
#include "troupe/train/run/kept_tokenizer.h"
#include "troupe/train/run/open_teacher.h"

namespace troupe {
namespace {

// Fails before anything is allocated if the run cannot fit, instead of being killed for memory.
void require_memory(const ResolvedRun& recipe, const RunTools& tools) {
  const ParallelState& parallel = tools.setup->state;
  const double available = available_memory(recipe, parallel.world().place().local_size);
  if (available <= 0) return;  // the device is not here: device_of says so
  const MemoryVerdict verdict =
      judge_memory(recipe, runs_on_gpu(recipe), available, parallel.size());
  if (!verdict.fits && !tools.force) {
    throw Error("model, train: " + verdict.line, Code::kTooLarge);  // the line has the code
  }
  if (verdict.warns) tools.log.warning(verdict.line);
}

// Ranks of a host look before any of them takes its part, or the last would find less.
void require_host_memory(const ResolvedRun& recipe, const RunTools& tools) {
  if (!recipe.train.offload_state || !runs_on_gpu(recipe)) return;
  const ParallelState& parallel = tools.setup->state;
  // A save in the background copies it once more (checkpoint/state/saver.h).
  const double copies = recipe.checkpoint.background ? 2 : 1;
  const HostVerdict verdict =
      judge_host_state(copies * host_state(recipe, /*on_gpu=*/true, parallel.size()),
                       parallel.world().place().local_size, free_host_memory());
  run_on_all(checkpoint_group(parallel), [&] {
    if (!verdict.fits && !tools.force) {
      throw Error("train.offload_state: " + verdict.line, Code::kTooLarge);
    }
    return std::string();
  });
  verdict.fits ? tools.log.info(verdict.line) : tools.log.warning(verdict.line);
}

// Opens what the run learns from. Rank 0 looks which step that is: a teacher that is being trained may
// get a newer one at any time.
void take_teacher(const RunContext& run, Learner& learner) {
  if (!run.recipe.train.teacher) return;
  const CheckpointGroup group = checkpoint_group(run.parallel());
  const std::string folder = run_on_all(
      group, [&] { return group.rank == 0 ? teacher_folder(run.recipe) : std::string(); })[0];
  run_on_all(group, [&] {
    if (learner.has_head()) open_teacher(run.recipe, folder, learner);
    return std::string();
  });
  const TeacherConfig& teacher = *run.recipe.train.teacher;
  run.log().info("teacher: " + folder + ", " +
                 to_text(costs_of(teacher_model(run.recipe)).params()) + " parameters; weight " +
                 to_text(teacher.weight) + ", temperature " + to_text(teacher.temperature) +
                 (teacher.top > 0 ? ", its " + to_text(teacher.top) + " first words" : ""));
}

}  // namespace

Trainer::Trainer(const ResolvedRun& recipe, const RunTools& tools)
    : recipe_(recipe),
      tools_(tools),
      context_{.recipe = recipe_, .tools = tools_, .state = state_},
      parallel_(tools_.setup->state),
      pulse_(context_.pulse()),
      stop_(context_) {
  FLAGS_caffe2_use_fatal_for_enforce = false;  // running out of memory throws, not aborts
  const int64_t threads = recipe_.run.threads;
  const int computing = static_cast<int>(
      threads > 0 ? threads : std::min<int64_t>(at::get_num_threads(), host_cores()));
  require_threads(computing);
  at::set_num_threads(computing);
  pulse_.begin(Phase::kData);
  DataWarnings warnings(parallel_, tools_.log);
  auto [tokenizer, data] =
      open_data(recipe_, {warnings.log(), tools_.log}, tools_.signals.question());
  warnings.gather();
  tokenizer_ = std::move(tokenizer);
  data_ = std::move(data);
  pulse_.begin(Phase::kModel);
  require_memory(recipe_, tools_);
  require_host_memory(recipe_, tools_);
  learner_ = std::make_unique<Learner>(
      recipe_, device_of_rank(recipe_, parallel_.world().place().local_rank), tools_.faults,
      tools_.setup);
  if (learner_->precision() == Precision::kFp16) {
    state_.loss_scale = start_of(recipe_.train.loss_scale);
  }
  logger_ = std::make_unique<RunLogger>(context_, *learner_);
  saves_ = std::make_unique<SaveControl>(context_, *learner_, *logger_);
  tools_.signals.on_status([log = tools_.log] { log.info("stacks:\n" + stacks_of_all_threads()); });
  pulse_.begin(Phase::kLoad);
  tools_.faults.at("load.read");
  take_teacher(context_, *learner_);
  resumed_ = resume_run(context_, data_.train->fingerprint(), *learner_, *saves_);
  saves_->list_tensors();
}

Trainer::~Trainer() {
  tools_.signals.on_status({});
}

// Locks the run folder and opens its files.
void Trainer::open_run() {
  saves_->open(resumed_.id, resumed_.fingerprint);
  if (tools_.begun) tools_.begun();
  if (context_.writes_logs() && tokenizer_ != nullptr) {
    keep_tokenizer(tools_.fs, recipe_.checkpoint.dir, recipe_.data.tokenizer, *tokenizer_,
                   tools_.log);
  }
  saves_->require_space();
  logger_->open(resumed_.step);
  profile_ =
      std::make_unique<Profile>(context_.writes_logs() ? recipe_.profile : ProfileConfig{},
                                recipe_.checkpoint.dir, tools_.log, !learner_->device().is_cpu());
  log_start({.context = context_,
             .learner = *learner_,
             .data = *data_.train,
             .checkpoint_bytes = saves_->checkpoint_bytes(),
             .resumed_step = resumed_.step,
             .newest = saves_->newest()});
  saves_->foresee();
  logger_->start(resumed_.step, resumed_.read_bytes, resumed_.index_bytes);
  evaluation_.emplace(context_, *learner_, data_, tokenizer_.get(), *logger_, stop_);
  loader_ =
      std::make_unique<BatchLoader>(context_, *tools_.setup, *data_.train, learner_->device());
  after_step_ = std::make_unique<AfterStep>(context_,
                                            AfterStep::Parts{.loader = *loader_,
                                                             .stop = stop_,
                                                             .evaluation = *evaluation_,
                                                             .saves = *saves_,
                                                             .logger = *logger_,
                                                             .learner = *learner_},
                                            resumed_.step);
}

}  // namespace troupe
