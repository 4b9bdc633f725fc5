#include "troupe/train/loop/resume_checks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "troupe/checkpoint/files/names.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/folder/waive_option.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/train/observe/run_files.h"

namespace troupe {
namespace {

// A link in a run folder is not ours, and what it leads to says nothing of the run (F141).
bool is_ours(const std::string& path) {
  std::error_code error;
  return is_there(path) && !std::filesystem::is_symlink(path, error);
}

// A part of the way, in all three units.
Position part_of(const Position& whole, int64_t i, int64_t of) {
  return {whole.steps * i / of, whole.samples * i / of, whole.tokens * i / of};
}

double decay_at(const OptimizerBase& base, const Position& at, const Position& run) {
  return ramped(base.weight_decay, base.weight_decay_end.value_or(base.weight_decay),
                base.weight_decay_form, at.steps, run.steps);
}

}  // namespace

std::string other_schedule(const TrainConfig& train, const Position& done, const Position& was,
                           const Position& now) {
  if (was == now || was.steps == 0) return {};
  constexpr int64_t kPlaces = 64;
  const OptimizerBase& base = base_of(train.optimizer);
  for (int64_t i = 1; i <= kPlaces; ++i) {
    const Position at = part_of(done, i, kPlaces);
    const double rate =
        lr_factor(train.schedule, at, at, was) - lr_factor(train.schedule, at, at, now);
    const double decay = decay_at(base, at, was) - decay_at(base, at, now);
    if (std::abs(rate) <= 1e-9 && std::abs(decay) <= 1e-9) continue;
    return "the run was to be " + std::to_string(was.steps) + " steps long and is now " +
           std::to_string(now.steps) + ": of that length, the " + std::to_string(done.steps) +
           " steps so far would have had another " +
           (std::abs(rate) > 1e-9 ? "learning rate" : "weight decay");
  }
  return {};
}

std::string other_training(const TrainConfig& was, const TrainConfig& now) {
  constexpr std::string_view kCompared[] = {"optimizer", "schedule",  "clip",  "precision",
                                            "fp8",       "loss_mean", "spike", "batch_ramp"};
  const auto is_compared = [&](std::string_view path) {
    return std::ranges::any_of(kCompared, [&](std::string_view key) {
      return path.starts_with(key) && (path.size() == key.size() || path[key.size()] == '.');
    });
  };
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [path, value] : flatten(was)) values[path] = {value, "none"};
  for (const auto& [path, value] : flatten(now)) {
    values.try_emplace(path, "none", "none").first->second.second = value;
  }
  std::string out;
  for (const auto& [path, both] : values) {
    if (!is_compared(path) || both.first == both.second) continue;
    out += (out.empty() ? "train." : ", train.") + path + ' ' + both.first + " -> " + both.second;
  }
  return out;
}

void warn_of_other_training(const std::string& run, const TrainConfig& now, const Log& log) {
  const std::string path = run + "/recipe.yaml";
  if (!is_there(path)) return;
  try {
    Sources sources;
    const std::string what = other_training(load_recipe(path, {}, sources).train, now);
    if (!what.empty()) log.warning("resumes with other settings than before: " + what);
  } catch (const Error& error) {  // of another version, or written to by hand
    log.info("settings are not compared with those before: " + std::string(error.what()));
  }
}

void require_counters(const TrainState& state, int64_t step, const std::string& folder) {
  constexpr int64_t kMost = int64_t{1} << 60;  // a run goes on counting from there
  const auto require = [&](const char* name, int64_t value) {
    if (value < 0 || value > kMost)
      fail(Code::kDamagedCheckpoint, folder, "its state has", name, value);
  };
  for (const auto& [name, at] : {std::pair("done", &state.done), std::pair("run", &state.run)}) {
    require((std::string(name) + ".steps").c_str(), at->steps);
    require((std::string(name) + ".samples").c_str(), at->samples);
    require((std::string(name) + ".tokens").c_str(), at->tokens);
  }
  require("updates", state.updates);
  require("skipped", state.skipped);
  require("skipped_now", state.skipped_now);
  require("nonfinite", state.nonfinite);
  require("loss_tokens", state.loss_tokens);
  require("reruns", state.reruns);
  const RebalanceState& placed = state.rebalance;
  require("rebalance.ranks", placed.ranks);
  for (const int64_t rows : placed.rows) require("rebalance.rows", rows);
  for (const int64_t owner : placed.owners) {
    if (owner >= 0 && owner < placed.ranks) continue;
    fail(Code::kDamagedCheckpoint, folder, "its state has an expert on rank", owner, "of",
         placed.ranks);
  }
  if (!(state.loss_scale.scale > 0)) {
    fail(Code::kDamagedCheckpoint, folder, "its state has a loss scale of", state.loss_scale.scale);
  }
  if (!(state.last_norm >= 0)) {
    fail(Code::kDamagedCheckpoint, folder, "its state has a gradient norm of", state.last_norm);
  }
  if (state.done.steps != step) {
    fail(Code::kDamagedCheckpoint, folder, "is of step", step, "and its state of step",
         state.done.steps);
  }
}

TrainState read_state(const Manifest& manifest, const std::string& folder) {
  constexpr std::array<std::string_view, 5> kLater = {"run", "save_seconds", "rebalance", "reruns",
                                                      "last_norm"};
  const auto is_missing = [&](const Yaml::Field& field) {
    return std::ranges::find(kLater, field.name) != kLater.end() &&
           std::ranges::find(manifest.scalars.fields, field.name, &Yaml::Field::name) ==
               manifest.scalars.fields.end();
  };
  std::ostringstream defaults;
  write_json(defaults, TrainState());
  Manifest whole{.step = manifest.step, .scalars = manifest.scalars};
  for (Yaml::Field& field : parse_json(defaults.str(), folder).fields) {
    if (is_missing(field)) whole.scalars.fields.push_back(std::move(field));
  }
  TrainState out;
  read_scalars(whole, folder, out);
  require_counters(out, manifest.step, folder);
  return out;
}

std::string lost_steps(const std::string& run) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const std::string latest = run + "/latest";
  try {
    if (is_ours(latest)) {
      const std::string text = read_file(latest, Code::kNoCheckpoint, kMost);
      return "the file latest says " + text.substr(0, text.find('\n'));
    }
    const std::optional<ExitRecord> record = read_exit(run);
    return !record || record->checkpoint.empty() ? "" : "exit.json names " + record->checkpoint;
  } catch (const Error& e) {
    return std::string("what is left cannot be read: ") + e.what();
  }
}

void refuse_lost_steps(const CheckpointConfig& config, bool force, const Log& log) {
  if (config.resume.kind != Resume::kAuto) return;
  const std::string lost = lost_steps(config.dir);
  if (!lost.empty() && !force) {
    fail(Code::kNoCheckpoint, config.dir,
         "has no checkpoint, and " + lost +
             ". Bring the steps back, take another checkpoint.dir, or start anew in it with"
             " checkpoint.resume: never");
  }
  if (lost.empty() && !is_there(config.dir + "/log.jsonl")) return;
  log.warning(config.dir + " has the log of an earlier start and no checkpoint" +
              (lost.empty() ? "" : " (" + lost + ")") + ": this start begins at step 0");
}

void warn_of_other_users(const std::string& run, const Log& log) {
  struct stat info {};
  if (::stat(run.c_str(), &info) != 0) return;
  const std::string risk = ": what they leave there may be taken for this run's checkpoints";
  if ((info.st_mode & S_IWOTH) != 0) {
    log.warning(run + " may be written to by every user of this machine" + risk + "; chmod o-w " +
                shell_word(run));
  } else if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    log.warning(run + " belongs to another user, number " + std::to_string(info.st_uid) + risk);
  }
}

void clear_leftovers(Fs& fs, const std::string& run, const Log& log) {
  if (RunLock::if_free(run) == nullptr) return;
  const int64_t removed = remove_staging(fs, run);
  if (removed == 0) return;
  log.info("removed " + std::to_string(removed) + " leftovers of a save that was killed");
}

namespace {

// The command without what sets `key`, which another --set is to give.
std::string without_set(std::string command, const std::string& key) {
  for (const bool quoted : {false, true}) {
    const std::string begin = std::string(" --set ") + (quoted ? "'" : "") + key + '=';
    for (size_t at = command.find(begin); at != std::string::npos; at = command.find(begin)) {
      const size_t end = command.find(quoted ? '\'' : ' ', at + begin.size());
      if (quoted && end == std::string::npos) return command;
      command.erase(at, end == std::string::npos ? end : end - at + (quoted ? 1 : 0));
    }
  }
  return command;
}

}  // namespace

std::string twice_as_long(const ResolvedRun& recipe, const Position& run,
                          const std::string& command) {
  const TrainConfig& train = recipe.train;
  const Position twice = {2 * run.steps, 2 * run.samples, 2 * run.tokens};
  const std::string key = train.steps > 0 ? "train.steps" : "train.tokens";
  const Count tokens{2 * std::max(train.tokens.value, run.tokens)};
  std::string out = without_set(command, key) + " --set " + key + '=' +
                    (train.steps > 0 ? std::to_string(twice.steps) : to_text(tokens));
  if (other_schedule(train, run, run, twice).empty()) return out;
  const std::vector<std::string>& waived = recipe.checkpoint.waive_changed;
  std::vector<std::string> more;
  if (!matches_any(waived, "train.length")) more.emplace_back("train.length");
  return without_set(out, "checkpoint.waive_changed") + ' ' + waive_option(waived, more);
}

}  // namespace troupe
