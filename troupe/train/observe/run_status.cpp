#include "troupe/train/observe/run_status.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <utility>

#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/columns.h"
#include "troupe/core/text/first_line.h"
#include "troupe/core/text/one_line.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/distributed/status/process.h"
#include "troupe/train/observe/run_log.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

// All that a run's files tell, each read once.
struct RunFacts {
  RunStatus status;
  std::optional<ExitRecord> record;
  RunLog log;
};

bool was_ended_by_nobody(const RunStatus& status) {
  return status.state == "killed";
}

// Keeps what f throws as the status's warning: a damaged file hides no other.
template <class F>
void unless_damaged(RunStatus& status, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    status.warning += (status.warning.empty() ? "" : "; ") + first_line(error.what());
  }
}

void add_record(RunFacts& facts) {
  RunStatus& out = facts.status;
  unless_damaged(out, [&] { facts.record = read_exit(out.run); });
  out.state = "unknown";
  if (!facts.record) return;
  const ExitRecord& record = *facts.record;
  out.state = to_text(record.state);
  out.code = record.code;
  out.error = record.error;
  out.message = record.message;
  out.host = record.start.host;
  out.pid = record.start.pid;
  out.step = record.step;
  if (record.state != RunState::kRunning) return;
  out.alive = is_alive(record.start);
  if (out.alive == false) out.state = "killed";
  if (out.alive == true) out.spares = spares_beside(static_cast<int>(out.pid));
}

void add_log(RunFacts& facts, double now) {
  RunStatus& out = facts.status;
  const std::string path = out.run + "/log.jsonl";
  if (!is_there(path)) return;
  unless_damaged(out, [&] { facts.log = read_run_log(path); });
  const auto loss = facts.log.series.find("loss");
  if (loss != facts.log.series.end() && !loss->second.empty()) {
    out.loss = loss->second.rbegin()->second;
  }
  if (facts.log.sessions.empty()) return;
  const RunLog::Session& last = facts.log.sessions.back();
  out.silent_s = std::max(0.0, now - last.end);
  // The record of a run that did not end itself has the step of its start.
  const bool ended = facts.record && out.state != "running" && !was_ended_by_nobody(out);
  if (!ended) out.step = std::max(out.step, last.last_step);
}

void add_checkpoints(RunStatus& out) {
  std::vector<int64_t> steps;
  unless_damaged(out, [&] { steps = steps_in(out.run); });
  out.checkpoints = std::ssize(steps);
  const int64_t newest = steps.empty() ? 0 : steps.back();
  if (!steps.empty()) out.checkpoint = step_name(newest);
  out.lost_steps = std::max<int64_t>(0, out.step - newest);
}

RunFacts facts_of(const std::string& run, double now) {
  RunFacts facts;
  facts.status.run = run;
  add_record(facts);
  add_log(facts, now);
  add_checkpoints(facts.status);
  return facts;
}

std::string count_of(int64_t n, const std::string& one) {
  return std::to_string(n) + ' ' + one + (n == 1 ? "" : "s");
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fixed(loss, 3) : "-";
}

std::string age_text(double seconds) {
  return std::isfinite(seconds) ? short_time(seconds) + " ago" : "-";
}

std::string time_in_utc(double unix_seconds) {
  if (!(std::abs(unix_seconds) < 1e11)) return "at an unknown time";
  const auto at = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  char text[32] = {};
  if (::gmtime_r(&at, &parts) != nullptr) {
    std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  }
  return text;
}

std::string state_line(const RunFacts& facts) {
  if (facts.record) return first_line(standing(*facts.record));
  return "unknown: exit.json is not there or cannot be read";
}

std::string checkpoints_line(const RunStatus& status) {
  if (status.checkpoints == 0 && status.step == 0) return "none, and no step that it would hold";
  if (status.checkpoints == 0) {
    return "none: a start does " + count_of(status.step, "step") + " again";
  }
  std::string out =
      status.checkpoint + ", the newest of " + std::to_string(status.checkpoints) + "; ";
  if (status.lost_steps == 0) return out + "no step after it";
  return out + count_of(status.lost_steps, "step") + " after it, to " +
         std::to_string(status.step) +
         (status.state == "running" ? "" : ", that a start does again");
}

// The last event that is more than the run's usual course.
std::string last_event_line(const RunLog& log) {
  constexpr std::array<std::string_view, 7> kUsual = {"start", "resume",   "stop",     "end",
                                                      "save",  "replicas", "rebalance"};
  for (auto event = log.events.rbegin(); event != log.events.rend(); ++event) {
    const std::string_view kind = std::string_view(event->text).substr(0, event->text.find(' '));
    if (std::ranges::find(kUsual, kind) != kUsual.end()) continue;
    return "step " + std::to_string(event->step) + ": " + one_line(event->text);
  }
  return "none but starts, saves and ends";
}

std::string log_line(const RunFacts& facts) {
  if (facts.log.sessions.empty()) return "log.jsonl has no line";
  const RunLog::Session& last = facts.log.sessions.back();
  return "its last line is of step " + std::to_string(last.last_step) + ", " +
         time_in_utc(last.end) + " (" + age_text(facts.status.silent_s) + "), loss " +
         loss_text(facts.status.loss) + "; " + count_of(std::ssize(facts.log.sessions), "start");
}

// What tells most of a failure of that class, as docs/guide/when_it_fails.md has it.
std::string advice_for(const RunStatus& status) {
  const std::string run = shell_word(status.run);
  switch (was_ended_by_nobody(status) ? static_cast<int64_t>(ExitClass::kPeer) : status.code) {
    case static_cast<int64_t>(ExitClass::kUsage): return "troupe check " + run + "/given.yaml";
    case static_cast<int64_t>(ExitClass::kData):
      return "troupe check " + run + "/given.yaml opens all data and names what is wrong";
    case static_cast<int64_t>(ExitClass::kCheckpoint):
      return "troupe inspect " + run + " reads every byte of its newest checkpoint";
    case static_cast<int64_t>(ExitClass::kNumeric):
      return "the last event names tensor, expert and rank; train.optimizer.lr and train.clip bound"
             " a step";
    case static_cast<int64_t>(ExitClass::kPeer):
      if (is_there(status.run + "/flight.json")) {
        return "troupe inspect " + run + "/flight.json shows who waited for whom";
      }
      return "the machine's log (dmesg) names a process that was killed for want of memory";
    case static_cast<int64_t>(ExitClass::kResource):
      return "troupe plan " + run + "/recipe.yaml for memory, troupe doctor for the machine";
    default: return "please report it: docs/guide/when_it_fails.md says with which files";
  }
}

std::string next_line(const RunStatus& status) {
  if (status.state == "running") return "the run goes on";
  if (status.state == "finished") return "nothing: it is done; more train.steps make it longer";
  const std::string again = status.checkpoints > 0
                                ? "the same command goes on after " + status.checkpoint
                                : "the same command begins at step 0";
  const bool well = status.code == 0 && !was_ended_by_nobody(status);
  return well ? again : advice_for(status) + "; then " + again;
}

}  // namespace

bool is_run(const std::string& folder) {
  if (is_there(folder + "/exit.json") || is_there(folder + "/log.jsonl")) return true;
  std::error_code error;
  return std::filesystem::is_directory(folder, error) && !steps_in(folder).empty();
}

std::vector<std::string> run_folders_in(const std::string& folder) {
  if (is_run(folder)) return {folder};
  std::vector<std::string> out;
  if (file_kind(folder, Code::kBadRunFolder) == FileKind::kFolder) {
    for (const std::string& name : names_in(folder, Code::kBadRunFolder)) {
      if (is_run(folder + '/' + name)) out.push_back(folder + '/' + name);
    }
  }
  if (out.empty()) {
    fail(Code::kBadValue, folder, "is neither a run's folder nor one that holds runs");
  }
  return out;
}

RunStatus run_status(const std::string& run, double now) {
  return facts_of(run, now).status;
}

int exit_code_of(const RunStatus& status) {
  constexpr int64_t kMost = 255;  // of a process
  if (was_ended_by_nobody(status)) return static_cast<int>(ExitClass::kPeer);
  if (status.state == "unknown") return static_cast<int>(ExitClass::kCheckpoint);
  if (status.code <= 0) return 0;
  return static_cast<int>(std::min(status.code, kMost));
}

std::string status_text(const RunStatus& status) {
  std::string state = status.state;
  if (status.pid > 0) state += ", process " + std::to_string(status.pid) + " on " + status.host;
  if (status.spares > 0) {
    state += ", " + std::to_string(status.spares) + (status.spares == 1 ? " spare" : " spares");
  }
  if (status.state == "running" && !status.alive) state += " (only that machine can tell)";
  if (status.code > 0) state += ", code " + std::to_string(status.code) + ' ' + status.error;
  std::string out = status.run + "  " + state + "\n  step        " + std::to_string(status.step) +
                    ", loss " + loss_text(status.loss) + "\n  checkpoint  " +
                    checkpoints_line(status) + "\n  log         last line " +
                    age_text(status.silent_s) + '\n';
  if (!status.warning.empty()) out += "  warning: " + one_line(status.warning) + '\n';
  return out;
}

std::string status_table(const std::vector<RunStatus>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "state", "code", "step", "loss", "checkpoint", "log"}};
  for (const RunStatus& run : runs) {
    rows.push_back({one_line(run.run), run.state, run.code < 0 ? "-" : std::to_string(run.code),
                    std::to_string(run.step), loss_text(run.loss),
                    run.checkpoint.empty() ? "-" : run.checkpoint, age_text(run.silent_s)});
  }
  std::string out = in_columns(rows);
  for (const RunStatus& run : runs) {
    if (!run.warning.empty()) out += run.run + ": warning: " + one_line(run.warning) + '\n';
  }
  return out;
}

std::string end_text(const std::string& run, double now) {
  const RunFacts facts = facts_of(run, now);
  std::string out = run + "  " + state_line(facts) + "\n  log         " + log_line(facts) +
                    "\n  last event  " + last_event_line(facts.log) + "\n  checkpoint  " +
                    checkpoints_line(facts.status) + "\n  next        " + next_line(facts.status) +
                    '\n';
  if (!facts.status.warning.empty()) {
    out += "  warning: " + one_line(facts.status.warning) + '\n';
  }
  return out;
}

}  // namespace troupe
