#include "apps/sweep_result.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "apps/print.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/first_line.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/run_log.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

SweepState state_of(const ExitRecord& record) {
  switch (record.state) {
    case RunState::kFinished: return SweepState::kFinished;
    case RunState::kStopped: return SweepState::kStopped;
    case RunState::kFailed: return SweepState::kFailed;
    case RunState::kEnded: return record.code == 0 ? SweepState::kStopped : SweepState::kFailed;
    case RunState::kRunning: break;
  }
  const bool gone = !is_alive(record.start).value_or(true);
  return gone ? SweepState::kKilled : SweepState::kRunning;
}

void read_end(SweepResult& out) {
  const std::optional<ExitRecord> record = read_exit(out.folder);
  if (!record) return;
  out.state = state_of(*record);
  out.code = record->code;
  out.step = record->step;
  const bool badly = out.state == SweepState::kFailed || out.state == SweepState::kKilled;
  out.why = badly ? first_line(standing(*record)) : "";
}

void read_losses(SweepResult& out) {
  const RunLog log = read_run_log(out.folder + "/log.jsonl");
  out.tokens_per_second = log.usual("tokens_s");
  const auto losses = log.series.find("loss");
  if (losses != log.series.end() && !losses->second.empty()) {
    out.step = losses->second.rbegin()->first;
    const int64_t count = std::min<int64_t>(std::ssize(losses->second), kLossSteps);
    double sum = 0;
    for (auto [at, left] = std::pair(losses->second.rbegin(), count); left > 0; ++at, --left) {
      sum += at->second;
    }
    out.loss = sum / static_cast<double>(count);
    out.of = "train";
  }
  if (log.sets.empty()) return;
  for (const RunLog::Evaluation& evaluation : log.evaluations) {
    if (evaluation.set != log.sets.front()) continue;
    out.loss = evaluation.loss;  // the last one stays
    out.of = "valid";
  }
}

std::string fixed_or_dash(double value, int digits) {
  return std::isfinite(value) ? fixed(value, digits) : "-";
}

}  // namespace

bool has_log(const SweepResult& result) {
  return is_there(result.folder + "/log.jsonl");
}

void read_result(SweepResult& result) {
  try {
    read_end(result);
    if (has_log(result)) read_losses(result);
  } catch (const Error& error) {
    result.why = first_line(error.what());
  }
}

void rank_results(std::vector<SweepResult>& results) {
  const auto place = [](const SweepResult& r) {
    return std::tuple(r.state != SweepState::kFinished, r.of != "valid",
                      std::isfinite(r.loss) ? r.loss : HUGE_VAL);
  };
  std::ranges::stable_sort(results, {}, place);
}

void print_results(const std::vector<SweepResult>& ranked) {
  size_t width = 3;
  for (const SweepResult& r : ranked) width = std::max(width, r.name.size());
  const int wide = static_cast<int>(width);
  print_text("rank  %-*s %9s  %-5s %8s %9s  %s\n", wide, "run", "loss", "of", "step", "tokens/s",
             "folder");
  int64_t rank = 0;
  for (const SweepResult& r : ranked) {
    const bool finished = r.state == SweepState::kFinished;
    print_text("%4s  %-*s %9s  %-5s %8s %9s  %s%s\n",
               finished ? std::to_string(++rank).c_str() : "-", wide, r.name.c_str(),
               fixed_or_dash(r.loss, 4).c_str(), r.of.empty() ? "-" : r.of.c_str(),
               std::to_string(r.step).c_str(),
               std::isfinite(r.tokens_per_second) ? short_number(r.tokens_per_second).c_str() : "-",
               r.folder.c_str(), finished ? "" : ("  " + to_text(r.state)).c_str());
  }
  for (const SweepResult& r : ranked) {
    if (!r.why.empty()) print_text("%s: %s\n", r.name.c_str(), r.why.c_str());
  }
}

}  // namespace troupe
