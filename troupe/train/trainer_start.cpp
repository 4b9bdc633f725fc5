// How a run begins: opens its data, builds the model, resumes from a checkpoint, says what it will
// do.
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <utility>

#include "troupe/checkpoint/group_of_state.h"
#include "troupe/checkpoint/names.h"
#include "troupe/checkpoint/run_folder.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/text/readable.h"
#include "troupe/distributed/dispatch/dispatchers.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/log_start.h"
#include "troupe/train/observe/stacks.h"
#include "troupe/train/observe/thread_limit.h"
#include "troupe/train/resume.h"
#include "troupe/train/trained_model.h"
#include "troupe/train/trainer.h"

namespace troupe {
namespace {

Fingerprint model_keys(const ModelConfig& model) {
  Fingerprint out;
  for (auto& [path, value] : flatten(model)) out.emplace_back("model." + path, std::move(value));
  return out;
}

// What must not change on resume: the model, the order of its data, its seed.
void add_config(Fingerprint& out, const Recipe& recipe) {
  for (auto& entry : model_keys(recipe.model)) out.push_back(std::move(entry));
  out.emplace_back("data.sequence", std::to_string(recipe.data.sequence));
  out.emplace_back("train.seed", std::to_string(recipe.train.seed));
  out.emplace_back("train.batch", std::to_string(plan_of(recipe).batch));
}

// The recipe with its microbatch, and why it is that.
std::pair<Recipe, std::string> settled_for(Recipe recipe, const ParallelSetup& setup) {
  if (!setup.state.alone()) {
    recipe.train.micro_batch = setup.layout.micro_batch;
    return {std::move(recipe), setup.layout.micro_why};
  }
  const RanksAtHand one{.memory = available_memory(recipe), .on_gpu = runs_on_gpu(recipe)};
  const MicroBatchChoice micro = choose_micro_batch(recipe, one);
  recipe.train.micro_batch = micro.sequences;
  return {std::move(recipe), micro.why};
}

void require_rows_sent(const ParallelSetup& setup) {
  if (!setup.experts || sends_rows(setup.parallel().dispatcher)) return;
  fail(Code::kBadValue, "parallel.dispatcher", "none leaves each token on its rank, with experts",
       "that are not its own: it times steps (troupe bench --ranks N). Train with auto");
}

// Fails before anything is allocated if the run cannot fit, instead of being killed for memory.
void require_memory(const Recipe& recipe, const RunTools& tools) {
  const ParallelState& parallel = tools.setup->state;
  const double available = available_memory(recipe, parallel.world().place().local_size);
  if (available <= 0) return;  // the device is not here: device_of says so
  Recipe laid = recipe;
  laid.parallel = tools.setup->parallel();
  const MemoryVerdict verdict = judge_memory(laid, runs_on_gpu(laid), available, parallel.size());
  if (!verdict.fits && !tools.force) {
    throw Error("model, train: " + verdict.line, Code::kTooLarge);  // the line has the code
  }
  if (verdict.warns) tools.log.warning(verdict.line);
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const RunTools& tools)
    : Trainer(settled_for(recipe, *tools.setup), tools) {}

Trainer::Trainer(const std::pair<Recipe, std::string>& settled, const RunTools& tools)
    : recipe_(settled.first),
      micro_why_(settled.second),
      tools_(tools),
      plan_(plan_of(recipe_)),
      context_{.recipe = recipe_, .tools = tools_, .plan = plan_, .state = state_},
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
  auto [tokenizer, data] = open_data(recipe_, tools_.log, tools_.signals.question());
  tokenizer_ = std::move(tokenizer);
  data_ = std::move(data);
  pulse_.begin(Phase::kModel);
  require_rows_sent(*tools_.setup);
  require_memory(recipe_, tools_);
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
  resume_run();
  saves_->list_tensors();
}

Trainer::~Trainer() {
  tools_.signals.on_status({});
}

void Trainer::resume_run() {
  fingerprint_ = data_.train->fingerprint();
  add_config(fingerprint_, recipe_);
  for (const auto& [what, value] : fingerprint_) parallel_.require_equal(what, value);
  const CheckpointGroup group = checkpoint_group(parallel_);
  CheckpointConfig config = recipe_.checkpoint;
  if (tools_.force) config.waive_changed = {"*"};
  CheckpointState to_load;
  learner_->checkpoint().add_to(to_load, {.to_load = true});
  if (context_.writes_logs()) warn_of_other_users(config.dir, tools_.log);
  const auto loaded = resume(config, to_load, fingerprint_, group, tools_.faults,
                             /*defaults=*/model_keys(ModelConfig{}));
  run_id_ = loaded ? loaded->point.manifest.run : group.all_gather(new_run_id())[0];
  if (loaded) {
    state_ = read_state(loaded->point.manifest, loaded->point.folder);
    require_schedule(loaded->point.folder);
    learner_->checkpoint().loaded(false);
    if (!learner_->restore(state_.rebalance)) {
      tools_.log.info(
          "experts start in the default placement, not in the one that the checkpoint's run had "
          "chosen");
    }
    resumed_step_ = state_.done.steps;
    saves_->resumed(resumed_step_, loaded->point.folder);
    read_bytes_ =
        static_cast<int64_t>(parallel_.all_reduce({static_cast<double>(loaded->bytes_read)})[0]);
    for (const std::string& passed : loaded->point.passed_over) {
      tools_.log.warning("passed over " + passed);
    }
    if (!loaded->point.latest_note.empty()) tools_.log.warning(loaded->point.latest_note);
    for (const std::string& note : loaded->notes) tools_.log.info(note);
    if (context_.writes_logs()) warn_of_other_training(config.dir, recipe_.train, tools_.log);
  } else if (!config.init_from.empty()) {
    const Loaded from = load_weights(*learner_, config.init_from,
                                     {.waive_missing = config.waive_missing,
                                      .waive_unused = config.waive_unused,
                                      .cast = config.cast,
                                      .strict = config.strict},
                                     tools_.faults, group);
    for (const std::string& note : from.notes) tools_.log.info(note);
    tools_.log.info("weights from " + config.init_from + "; step 0");
  }
  if (!loaded && context_.writes_logs())
    refuse_lost_steps(recipe_.checkpoint, tools_.force, tools_.log);
  state_.run = plan_.run;
  pulse_.done(state_.done.steps);
}

// A run that resumes with another length had another learning rate schedule so far: refused unless
// waived.
void Trainer::require_schedule(const std::string& folder) const {
  if (plan_.run.steps <= state_.done.steps) return;  // it is finished
  const std::string what = other_schedule(recipe_.train, state_.done, state_.run, plan_.run);
  if (what.empty()) return;
  const std::string name = "train.length";
  const std::vector<std::string>& waived = recipe_.checkpoint.waive_changed;
  if (!tools_.force && !matches_any(waived, name)) {
    fail(Code::kOtherRun, folder,
         what + ". To continue anyway from sample " + std::to_string(state_.done.samples) +
             ", set checkpoint.waive_changed=[" + name + "]");
  }
  tools_.log.warning(what + "; continuing from sample " + std::to_string(state_.done.samples));
}

// Locks the run folder and opens its files.
void Trainer::open_run() {
  saves_->open(run_id_, fingerprint_);
  if (tools_.begun) tools_.begun();
  saves_->require_space();
  logger_->open(resumed_step_);
  profile_ =
      std::make_unique<Profile>(context_.writes_logs() ? recipe_.profile : ProfileConfig{},
                                recipe_.checkpoint.dir, tools_.log, !learner_->device().is_cpu());
  log_start({.context = context_,
             .learner = *learner_,
             .data = *data_.train,
             .micro_why = micro_why_,
             .checkpoint_bytes = saves_->checkpoint_bytes(),
             .resumed_step = resumed_step_,
             .newest = saves_->newest()});
  saves_->foresee();
  logger_->start(resumed_step_, read_bytes_);
  cadences_.emplace(context_, resumed_step_);
  evaluation_.emplace(context_, *learner_, data_, tokenizer_.get(), *logger_, stop_);
}

}  // namespace troupe
