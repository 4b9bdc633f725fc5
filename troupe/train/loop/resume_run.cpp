#include "troupe/train/loop/resume_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "troupe/checkpoint/files/base.h"
#include "troupe/checkpoint/files/names.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/folder/waive_option.h"
#include "troupe/checkpoint/state/group_of_state.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/train/loop/resume_checks.h"
#include "troupe/train/run/trained_model.h"

namespace troupe {
namespace {

Fingerprint model_keys(const ModelConfig& model) {
  Fingerprint out;
  for (auto& [path, value] : flatten(model)) out.emplace_back("model." + path, std::move(value));
  return out;
}

Fingerprint renamed_keys(const ModelConfig& model) {
  Fingerprint out;
  for (const auto& [old, path] : old_names(model))
    out.emplace_back("model." + old, "model." + path);
  return out;
}

// What must not change on resume: the model, the order of its data, its seed.
void add_config(Fingerprint& out, const ResolvedRun& recipe) {
  for (auto& entry : model_keys(recipe.model)) out.push_back(std::move(entry));
  out.emplace_back("data.sequence", std::to_string(recipe.data.sequence));
  out.emplace_back("train.seed", std::to_string(recipe.train.seed));
  out.emplace_back("train.batch", std::to_string(recipe.plan.batch));
}

bool holds_step(const std::string& run) {
  try {
    return find_resume(run, {}).has_value();
  } catch (const Error&) {  // none is complete
    return false;
  }
}

// What this attempt takes where one before it has taken what checkpoint.resume says, and so set all
// other steps aside: those that there are now are this run's.
Resume after_restart(const CheckpointConfig& config, const Log& log) {
  const Resume again = {.kind = config.resume.kind == Resume::kNever && !holds_step(config.dir)
                                    ? Resume::kNever
                                    : Resume::kAuto};
  log.info("checkpoint.resume: " + to_text(config.resume) +
           " was done by an earlier attempt; this one takes " +
           (again.kind == Resume::kAuto ? "the newest step" : "none, as there is none yet"));
  return again;
}

// The wish of the recipe, as far as it is still to be done: rank 0 knows.
Resume what_to_resume(const RunContext& run, const CheckpointGroup& group) {
  Resume out = run.recipe.checkpoint.resume;
  if (!for_one_start(out)) return out;
  if (group.rank == 0 && run.tools.restarted) {
    out = after_restart(run.recipe.checkpoint, run.log());
  }
  from_text(group.all_gather(to_text(out))[0], out);
  return out;
}

// A run that resumes with another length had another learning rate schedule so far: refused unless
// waived.
void require_schedule(const RunContext& run, const std::string& folder) {
  if (run.recipe.plan.run.steps <= run.state.done.steps) return;  // it is finished
  const std::string what =
      other_schedule(run.recipe.train, run.state.done, run.state.run, run.recipe.plan.run);
  if (what.empty()) return;
  const std::string name = "train.length";
  const std::vector<std::string>& waived = run.recipe.checkpoint.waive_changed;
  if (!run.tools.force && !matches_any(waived, name)) {
    fail(Code::kOtherRun, folder,
         what + ". To continue anyway from sample " + std::to_string(run.state.done.samples) +
             ", add: " + waive_option(waived, {name}));
  }
  run.log().warning(what + "; continuing from sample " + std::to_string(run.state.done.samples));
}

// One line for all adapters that begin anew: a model has thousands.
void log_load_notes(const std::vector<std::string>& notes, const Log& log) {
  int64_t adapters = 0;
  for (const std::string& note : notes) {
    const std::string_view name = std::string_view(note).substr(0, note.find(" is not in"));
    const bool adapter = note.starts_with("waived: ") && is_adapter(name);
    adapters += adapter;
    if (!adapter) log.info(note);
  }
  if (adapters > 0) {
    log.info(std::to_string(adapters) +
             " factors of adapters are not in the checkpoint and begin with zero effect");
  }
}

// Frozen weights that came from somewhere else than the base, of all ranks: experts may move.
std::set<std::string> frozen_without(const std::set<std::string>& in_base, Learner& learner,
                                     const CheckpointGroup& group) {
  std::string mine;
  for (const std::string& name : learner.checkpoint().frozen()) {
    if (!in_base.contains(name)) mine += name + '\n';
  }
  std::set<std::string> out;
  for (const std::string& names : group.all_gather(mine)) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) out.insert(name);
  }
  return out;
}

bool names_base(const ResolvedRun& recipe) {
  return has_adapters(recipe.model) && recipe.checkpoint.base == SavedBase::kNamed;
}

// A run goes on to name the base that its checkpoint named. One whose checkpoint has all weights
// goes on to save all.
void keep_base(const RunContext& run, const Loaded& loaded, Learner& learner,
               const CheckpointGroup& group, SaveControl& saves) {
  const std::optional<BaseCheckpoint>& base = loaded.point.manifest.base;
  if (!base || !names_base(run.recipe)) return;
  run.log().info("frozen weights from the base " + base->folder);
  saves.leave_out(base_of(base->folder, read_manifest(base->folder), run.recipe.checkpoint.dir),
                  frozen_without(loaded.based, learner, group));
}

// The checkpoint that a run begins from.
void begin_base(const RunContext& run, const Loaded& from, Learner& learner,
                const CheckpointGroup& group, SaveControl& saves) {
  if (!names_base(run.recipe)) return;
  std::set<std::string> there = from.own;
  there.insert(from.based.begin(), from.based.end());
  saves.leave_out(base_of(from.point.folder, from.point.manifest, run.recipe.checkpoint.dir),
                  frozen_without(there, learner, group));
  run.log().info("checkpoints leave out the frozen weights and name their base, " +
                 from.point.folder + ": it has to stay (checkpoint.base: saved keeps them too)");
}

}  // namespace

ResumedRun resume_run(const RunContext& run, Fingerprint data, Learner& learner,
                      SaveControl& saves) {
  const ParallelState& parallel = run.parallel();
  ResumedRun out{.fingerprint = std::move(data)};
  add_config(out.fingerprint, run.recipe);
  parallel.require_equal("fingerprint", out.fingerprint);
  const CheckpointGroup group = checkpoint_group(parallel);
  CheckpointConfig config = run.recipe.checkpoint;
  config.resume = what_to_resume(run, group);
  if (run.tools.force) config.waive_changed = {"*"};
  CheckpointState to_load;
  learner.checkpoint().add_to(to_load, {.to_load = true});
  if (run.writes_logs()) warn_of_other_users(config.dir, run.log());
  const auto loaded =
      resume(config, to_load, out.fingerprint, group, run.tools.faults,
             {.defaults = model_keys(ModelConfig{}), .renamed = renamed_keys(run.recipe.model)});
  out.id = loaded ? loaded->point.manifest.run : group.all_gather(new_run_id())[0];
  if (loaded) {
    run.state = read_state(loaded->point.manifest, loaded->point.folder);
    require_schedule(run, loaded->point.folder);
    learner.checkpoint().loaded(false);
    if (!learner.restore(run.state.rebalance)) {
      run.log().info(
          "experts start in the default placement, not in the one that the checkpoint's run had "
          "chosen");
    }
    out.step = run.state.done.steps;
    saves.resumed(out.step, loaded->point.folder);
    keep_base(run, *loaded, learner, group, saves);
    const std::vector<double> read = parallel.all_reduce(
        {static_cast<double>(loaded->bytes_read), static_cast<double>(loaded->index_bytes)});
    out.read_bytes = static_cast<int64_t>(read[0]);
    out.index_bytes = static_cast<int64_t>(read[1]);
    for (const std::string& passed : loaded->point.passed_over) {
      run.log().warning("passed over " + passed);
    }
    if (!loaded->point.latest_note.empty()) run.log().warning(loaded->point.latest_note);
    for (const std::string& note : loaded->notes) run.log().info(note);
    if (run.writes_logs()) warn_of_other_training(config.dir, run.recipe.train, run.log());
  } else if (!config.init_from.empty()) {
    // Rank 0 looks: a run that is being trained may get a newer step at any time.
    const std::string folder = run_on_all(group, [&] {
      return group.rank == 0 ? init_point(config.init_from).folder : std::string();
    })[0];
    LoadOptions options{.waive_missing = config.waive_missing,
                        .waive_unused = config.waive_unused,
                        .cast = config.cast,
                        .strict = config.strict};
    if (has_adapters(run.recipe.model)) {
      std::ranges::copy(kAdapterNames, std::back_inserter(options.waive_missing));
    }
    const Loaded from = load_weights(learner, folder, options, run.tools.faults, group);
    log_load_notes(from.notes, run.log());
    run.log().info("weights from " + folder + "; step 0");
    begin_base(run, from, learner, group, saves);
  }
  if (!loaded && run.writes_logs()) refuse_lost_steps(config, run.tools.force, run.log());
  run.state.run = run.recipe.plan.run;
  run.pulse().done(run.state.done.steps);
  return out;
}

}  // namespace troupe
