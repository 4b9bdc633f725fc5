#include "troupe/train/observe/run_log.h"

#include <algorithm>
#include <numbers>
#include <sstream>

#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

const Yaml* field(const Yaml& y, std::string_view name) {
  for (const Yaml::Field& f : y.fields) {
    if (f.name == name) return &f.value;
  }
  return nullptr;
}
double number(const Yaml* y) {
  double out = 0;
  return y != nullptr && from_text(y->text, out) ? out : NAN;
}
std::string text(const Yaml& y, std::string_view name) {
  const Yaml* found = field(y, name);
  return found == nullptr ? "" : found->text;
}

// A run that resumes at a step drops the records of later ones.
void forget_after(RunLog& log, int64_t step) {
  for (auto& [name, values] : log.series) values.erase(values.upper_bound(step), values.end());
  const auto later = [&](const auto& entry) { return entry.step > step; };
  std::erase_if(log.evaluations, later);
  std::erase_if(log.samples, later);
  std::erase_if(log.experts, later);
}

void begin_session(RunLog& log, const Yaml& y, int64_t step) {
  if (!log.sessions.empty() && !log.sessions.back().ended) {
    const RunLog::Session& lost = log.sessions.back();
    log.events.push_back({lost.last_step,
                          "ended without a word: killed, or an error; " +
                              std::to_string(std::max<int64_t>(lost.last_step - step, 0)) +
                              " logged steps were done again",
                          lost.end});
  }
  forget_after(log, step);
  const double time = number(field(y, "time"));
  log.sessions.push_back({.begin = time, .end = time, .last_step = step});
  for (const auto& [name, out] :
       {std::pair("params", &log.params), std::pair("active_params", &log.active_params)}) {
    if (field(y, name) != nullptr) *out = number(field(y, name));
  }
}

void add_experts(RunLog& log, const Yaml& y, int64_t step) {
  const Yaml* layers = field(y, "layers");
  if (layers == nullptr) return;
  RunLog::Experts& entry = log.experts.emplace_back(RunLog::Experts{step, {}});
  for (const Yaml::Field& layer : layers->fields) {
    int64_t index = 0;
    if (!from_text(layer.name, index)) continue;
    auto& shares = entry.layers[index];
    for (const Yaml& share : layer.value.items) shares.push_back(number(&share));
  }
}

void add_event(RunLog& log, const Yaml& y, int64_t step) {
  const std::string kind = text(y, "event");
  if (kind == "start" || kind == "resume") begin_session(log, y, step);
  if ((kind == "stop" || kind == "end") && !log.sessions.empty()) log.sessions.back().ended = true;
  if (kind == "eval") {
    log.evaluations.push_back({step, text(y, "set"), number(field(y, "val/loss")),
                               number(field(y, "val/bits_per_byte"))});
    return;
  }
  if (kind == "sample") {
    log.samples.push_back({step, text(y, "prompt"), text(y, "text")});
    return;
  }
  if (kind == "experts") return add_experts(log, y, step);
  std::string more;
  for (const char* name : {"what", "first", "why", "saved", "rank", "factor", "phase"}) {
    if (field(y, name) != nullptr) more += ' ' + text(y, name);
  }
  log.events.push_back({step, kind + more, number(field(y, "time"))});
}

}  // namespace

double RunLog::seconds() const {
  double out = NAN;
  for (const Session& s : sessions) {
    if (std::isfinite(s.end - s.begin)) out = (std::isnan(out) ? 0 : out) + s.end - s.begin;
  }
  return out;
}

int64_t RunLog::kills() const {
  if (sessions.empty()) return 0;
  return std::count_if(sessions.begin(), std::prev(sessions.end()),
                       [](const Session& s) { return !s.ended; });
}

double RunLog::bytes_per_token() const {
  for (const Evaluation& e : evaluations) {
    if (e.bits_per_byte > 0) return e.loss / std::numbers::ln2 / e.bits_per_byte;
  }
  return NAN;
}

RunLog read_run_log(const std::string& path) {
  RunLog out;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // torn: every whole line ends
    Yaml y;
    try {
      y = parse_json(line, path);
    } catch (const Error&) {  // a full disk or a kill tears lines, and a run goes on after them
      ++out.torn;
      continue;
    }
    const double at = number(field(y, "step"));
    if (!(std::abs(at) < 1e15)) continue;
    const auto step = static_cast<int64_t>(at);
    if (field(y, "event") != nullptr) {
      add_event(out, y, step);
    } else {
      for (const Yaml::Field& f : y.fields) {
        const double value = number(&f.value);
        if (std::isfinite(value) && f.name != "step") out.series[f.name][step] = value;
      }
    }
    if (out.sessions.empty()) continue;
    RunLog::Session& session = out.sessions.back();
    session.last_step = std::max(session.last_step, step);
    const double time = number(field(y, "time"));
    if (std::isfinite(time)) session.end = time;
  }
  return out;
}

}  // namespace troupe
