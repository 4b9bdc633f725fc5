#include "troupe/train/observe/run_log.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/median.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"

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

// What the report's charts and tables, and its forecast, show of a step's record.
bool is_shown(std::string_view name) {
  static constexpr std::array<std::string_view, 15> kShown = {
      "update_s", "loss",       "lr",          "grad_norm",       "tokens",
      "tokens_s", "step_s",     "forward_s",   "moe/load",        "forced",
      "rss",      "backward_s", "memory_peak", "ranks/own_max_s", "ranks/own_min_s"};
  return std::ranges::find(kShown, name) != kShown.end();
}

// Drops every second entry of a full list; the first and the last stay.
template <class List>
void thin(List& list, size_t most) {
  if (list.size() < most) return;
  List kept;
  size_t behind = list.size();
  for (auto& entry : list) {
    --behind;
    if (behind % 2 == 0 || kept.empty()) kept.insert(kept.end(), std::move(entry));
  }
  list = std::move(kept);
}

// Entries are in the order of their steps, as a run writes them: what goes is at the end.
template <class T>
void drop_after(std::vector<T>& list, int64_t step) {
  while (!list.empty() && list.back().step > step) list.pop_back();
}

template <class T>
void add_in_order(std::vector<T>& list, T entry, size_t most) {
  if (!list.empty() && entry.step < list.back().step) return;  // no run writes that
  thin(list, most);
  list.push_back(std::move(entry));
}

// A run that resumes at a step drops the records of later ones.
void forget_after(RunLog& log, int64_t step) {
  for (auto& [name, values] : log.series) values.erase(values.upper_bound(step), values.end());
  drop_after(log.evaluations, step);
  drop_after(log.samples, step);
  drop_after(log.experts, step);
}

void note_event(RunLog& log, RunLog::Event event) {
  if (log.events.size() == RunLog::kMostEvents) return void(++log.more_events);
  constexpr size_t kLongest = 2000;
  if (event.text.size() > kLongest) event.text = repaired_utf8(event.text.substr(0, kLongest));
  log.events.push_back(std::move(event));
}

void add_evaluation(RunLog& log, RunLog::Evaluation entry) {
  const bool known = std::ranges::find(log.sets, entry.set) != log.sets.end();
  if (!known && log.sets.size() == RunLog::kMostSets) return;
  if (!known) log.sets.push_back(entry.set);
  add_in_order(log.evaluations, std::move(entry), RunLog::kMostEvaluations);
}

void begin_session(RunLog& log, const Yaml& y, int64_t step) {
  if (!log.sessions.empty() && !log.sessions.back().ended) {
    const RunLog::Session& lost = log.sessions.back();
    note_event(log, {lost.last_step,
                     "ended without a word: killed, or an error; " +
                         std::to_string(std::max<int64_t>(lost.last_step - step, 0)) +
                         " logged steps were done again",
                     lost.end});
  }
  if (log.sessions.size() == RunLog::kMostSessions) log.sessions.pop_back();
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
  RunLog::Experts entry{step, {}};
  for (const Yaml::Field& layer : layers->fields) {
    int64_t index = 0;
    if (!from_text(layer.name, index)) continue;
    auto& shares = entry.layers[index];
    for (const Yaml& share : layer.value.items) shares.push_back(number(&share));
  }
  add_in_order(log.experts, std::move(entry), RunLog::kMostExperts);
}

void add_event(RunLog& log, const Yaml& y, int64_t step) {
  const std::string kind = text(y, "event");
  if (kind == "start" || kind == "resume") begin_session(log, y, step);
  if ((kind == "stop" || kind == "end") && !log.sessions.empty()) log.sessions.back().ended = true;
  if (kind == "eval") {
    return add_evaluation(log, {step, text(y, "set"), number(field(y, "val/loss")),
                                number(field(y, "val/bits_per_byte"))});
  }
  if (kind == "sample") {
    return add_in_order(log.samples, {step, text(y, "prompt"), text(y, "text")},
                        RunLog::kMostSamples);
  }
  if (kind == "experts") return add_experts(log, y, step);
  std::string more;
  for (const char* name : {"what", "first", "why", "saved", "rank", "factor", "phase"}) {
    if (field(y, name) != nullptr) more += ' ' + text(y, name);
  }
  note_event(log, {step, kind + more, number(field(y, "time"))});
}

void add_line(RunLog& out, const std::string& line, const std::string& path) {
  Yaml y;
  try {
    y = parse_json(line, path);
  } catch (const Error&) {  // a full disk or a kill tears lines, and a run goes on after them
    ++out.torn;
    return;
  }
  const double at = number(field(y, "step"));
  if (!(std::abs(at) < 1e15)) return;
  const auto step = static_cast<int64_t>(at);
  if (field(y, "event") != nullptr) {
    add_event(out, y, step);
  } else {
    for (const Yaml::Field& f : y.fields) {
      const double value = is_shown(f.name) ? number(&f.value) : NAN;
      if (!std::isfinite(value)) continue;
      auto& values = out.series[f.name];
      thin(values, RunLog::kMostPoints);
      values.insert_or_assign(values.end(), step, value);
    }
  }
  if (out.sessions.empty()) return;
  RunLog::Session& session = out.sessions.back();
  session.last_step = std::max(session.last_step, step);
  const double time = number(field(y, "time"));
  if (std::isfinite(time)) session.end = time;
}

// The lines of a file that end, one after the other; a block of the file and a line are in memory.
class Lines {
 public:
  explicit Lines(const std::string& path) : file_(path, Code::kUnreadableData) {}

  // Nothing at the end, and for what has no end there. A line of more than kLongest is cut.
  bool next(std::string& line) {
    line.clear();
    for (;;) {
      const size_t end = block_.find('\n', at_);
      const size_t stop = std::min(end, block_.size());
      line.append(block_, at_, std::min(stop - at_, kLongest - line.size()));
      at_ = end == std::string::npos ? block_.size() : end + 1;
      if (end != std::string::npos) return true;
      if (!read()) return false;
    }
  }

 private:
  static constexpr size_t kLongest = size_t{16} << 20;

  bool read() {
    constexpr int64_t kBlock = int64_t{1} << 20;
    const int64_t size = std::min(kBlock, file_.size() - read_);
    if (size == 0) return false;
    block_.resize(static_cast<size_t>(size));
    file_.read_at(read_, std::as_writable_bytes(std::span(block_)));
    read_ += size;
    at_ = 0;
    return true;
  }

  InputFile file_;
  int64_t read_ = 0;
  std::string block_;
  size_t at_ = 0;
};

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

double RunLog::usual(const std::string& name) const {
  const auto found = series.find(name);
  if (found == series.end() || found->second.empty()) return NAN;
  std::vector<double> values;
  for (const auto& [step, value] : found->second) values.push_back(value);
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return median(values);
}

double RunLog::bytes_per_token() const {
  for (const Evaluation& e : evaluations) {
    if (e.bits_per_byte > 0) return e.loss / std::numbers::ln2 / e.bits_per_byte;
  }
  return NAN;
}

RunLog read_run_log(const std::string& path) {
  RunLog out;
  Lines lines(path);
  for (std::string line; lines.next(line);) add_line(out, line, path);
  return out;
}

}  // namespace troupe
