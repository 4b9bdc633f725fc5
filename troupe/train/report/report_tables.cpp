#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/config/yaml.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/report_parts.h"
#include "troupe/train/report/svg.h"

namespace troupe::report {
namespace {

double last_of(const RunLog& log, const std::string& name) {
  const auto found = log.series.find(name);
  return found == log.series.end() || found->second.empty() ? NAN : found->second.rbegin()->second;
}

std::string number_text(double value) {
  return std::isfinite(value) ? svg::short_label(value) : "";
}

std::string parameters(const RunLog& log) {
  if (!(log.params > 0)) return "";
  const std::string all = short_number(log.params);
  return log.active_params == log.params ? all
                                         : all + ", " + short_number(log.active_params) + " active";
}

std::string steps(const RunLog& log) {
  const auto loss = log.series.find("loss");
  if (loss == log.series.end() || loss->second.empty()) return "none was logged";
  return std::to_string(loss->second.rbegin()->first);
}

std::string speed(const RunLog& log) {
  const double rate = log.usual("tokens_s");
  if (std::isnan(rate)) return "";
  const bool forced = log.series.contains("forced");  // R3
  return short_number(rate) +
         (forced ? " tokens/s, FORCED routing: no training speed" : " tokens/s");
}

std::string loss(const RunLog& log) {
  const auto found = log.series.find("loss");
  if (found == log.series.end() || found->second.empty()) return "";
  return number_text(found->second.begin()->second) + " at first, " +
         number_text(found->second.rbegin()->second) + " now";
}

// The best value on the first validation set, which decides the best checkpoint as well.
std::string best(const RunLog& log, double RunLog::Evaluation::*value) {
  const RunLog::Evaluation* least = nullptr;
  for (const RunLog::Evaluation& e : log.evaluations) {
    if (e.set != log.evaluations.front().set || !std::isfinite(e.*value)) continue;
    if (least == nullptr || e.*value < least->*value) least = &e;
  }
  if (least == nullptr) return "";
  return number_text(least->*value) + " (" + least->set + ", step " + std::to_string(least->step) +
         ")";
}

std::string duration(const RunLog& log) {
  return std::isfinite(log.seconds()) ? short_time(log.seconds()) : "";
}

std::string starts(const RunLog& log) {
  if (log.sessions.empty()) return "";
  const std::string all = std::to_string(log.sessions.size());
  return log.kills() == 0 ? all
                          : all + "; " + std::to_string(log.kills()) + " after a kill or an error";
}

std::string utc(double unix_seconds) {
  if (!(std::abs(unix_seconds) < 1e11)) return "";
  const auto at = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  char buffer[32] = {};
  if (::gmtime_r(&at, &parts) != nullptr) {
    std::strftime(buffer, sizeof(buffer), "%Y-%m-%d %H:%M:%S", &parts);
  }
  return std::string(buffer);
}

void flatten_into(const Yaml& y, const std::string& path, std::map<std::string, std::string>& out) {
  if (y.kind == Yaml::Kind::kScalar) out[path] = y.text;
  if (y.kind == Yaml::Kind::kNull) out[path] = "null";
  for (const Yaml::Field& f : y.fields) {
    flatten_into(f.value, path.empty() ? f.name : path + "." + f.name, out);
  }
  for (size_t i = 0; i < y.items.size(); ++i) {
    flatten_into(y.items[i], path + "[" + std::to_string(i) + "]", out);
  }
}

Markup header(const std::string& first, const std::vector<ReportRun>& runs) {
  Markup out;
  out << "<div class=\"wide\"><table><tr><th>" << first << "</th>";
  for (const ReportRun& run : runs) out << "<th>" << run.name << "</th>";
  out << "</tr>\n";
  return out;
}

// How it ended the last time, where the log does not tell.
std::string exit_text(const ReportRun& run) {
  if (run.exit.empty() || (!run.log.sessions.empty() && run.log.sessions.back().ended)) return "";
  ExitRecord exit;
  try {
    read_config(parse_json(run.exit, run.name + "/exit.json"), exit);
  } catch (const Error&) {
    return "exit.json cannot be read";
  }
  return exit.code == 0 ? "" : "exit.json: " + standing(exit);
}

}  // namespace

Markup summary_table(const std::vector<ReportRun>& runs) {
  const std::vector<std::pair<std::string, std::string (*)(const RunLog&)>> rows = {
      {"parameters", parameters},
      {"steps", steps},
      {"tokens",
       [](const RunLog& l) {
         const double tokens = last_of(l, "tokens");
         return std::isfinite(tokens) ? short_number(tokens) : "";
       }},
      {"duration", duration},
      {"speed", speed},
      {"training loss", loss},
      {"best validation loss", [](const RunLog& l) { return best(l, &RunLog::Evaluation::loss); }},
      {"best bits per byte",
       [](const RunLog& l) { return best(l, &RunLog::Evaluation::bits_per_byte); }},
      {"busiest expert",
       [](const RunLog& l) {
         const std::string load = number_text(last_of(l, "moe/load"));
         return load.empty() ? "" : load + " times the mean";
       }},
      {"starts", starts},
      {"lines of the log that are torn",
       [](const RunLog& l) { return l.torn == 0 ? "" : std::to_string(l.torn); }},
  };
  Markup out = header("", runs);
  for (const auto& [name, value] : rows) {
    std::vector<std::string> cells;
    for (const ReportRun& run : runs) cells.push_back(value(run.log));
    if (std::ranges::all_of(cells, [](const std::string& c) { return c.empty(); })) continue;
    out << "<tr><th>" << name << "</th>";
    for (const std::string& cell : cells) out << "<td>" << cell << "</td>";
    out << "</tr>\n";
  }
  out << "</table></div>\n";
  return out;
}

Markup recipe_differences(const std::vector<ReportRun>& runs) {
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].recipe.empty()) continue;
    std::map<std::string, std::string> of;
    flatten_into(parse_yaml(runs[i].recipe, runs[i].name + "/recipe.yaml"), "", of);
    for (const auto& [path, text] : of) {
      auto& row = values[path];
      row.resize(runs.size());
      row[i] = text;
    }
  }
  Markup rows;
  for (const auto& [path, row] : values) {
    const std::string& first = row.front();
    if (std::ranges::all_of(row, [&](const std::string& v) { return v == first; })) continue;
    rows << "<tr><th>" << path << "</th>";
    for (const std::string& value : row) rows << "<td>" << value << "</td>";
    rows << "</tr>\n";
  }
  Markup out;
  if (rows.empty()) return out;
  out << header("key", runs) << rows << "</table></div>\n";
  return out;
}

Markup sample_table(const RunLog& log) {
  Markup out;
  if (log.samples.empty()) return out;
  for (const RunLog::Sample* s : {&log.samples.front(), &log.samples.back()}) {
    out << "<h3>After step " << s->step << "</h3><pre>" << s->text << "</pre>\n";
    if (log.samples.size() == 1) break;
  }
  return out;
}

Markup evaluation_table(const RunLog& log) {
  Markup out;
  if (log.evaluations.empty()) return out;
  out << "<div class=\"wide\"><table><tr><th>step</th><th>set</th><th>loss</th><th>perplexity</th>"
         "<th>bits per byte</th></tr>\n";
  for (const RunLog::Evaluation& e : log.evaluations) {
    out << "<tr><td>" << e.step << "</td><td>" << e.set << "</td><td>" << number_text(e.loss)
        << "</td><td>" << number_text(std::exp(e.loss)) << "</td><td>"
        << number_text(e.bits_per_byte) << "</td></tr>\n";
  }
  out << "</table></div>\n";
  return out;
}

Markup event_table(const ReportRun& run) {
  Markup rows;
  for (const RunLog::Event& e : run.log.events) {
    rows << "<tr><td>" << e.step << "</td><td>" << utc(e.time) << "</td><td>" << e.text
         << "</td></tr>\n";
  }
  if (run.log.more_events > 0) {
    rows << "<tr><td></td><td></td><td>and " << run.log.more_events << " more</td></tr>\n";
  }
  const std::string exit = exit_text(run);
  if (!exit.empty()) rows << "<tr><td></td><td></td><td>" << exit << "</td></tr>\n";
  Markup out;
  if (rows.empty()) return out;
  out << "<div class=\"wide\"><table><tr><th>step</th><th>time (UTC)</th><th>event</th></tr>\n"
      << rows << "</table></div>\n";
  return out;
}

}  // namespace troupe::report
