#include "troupe/train/report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "troupe/core/file.h"
#include "troupe/core/json.h"
#include "troupe/core/text.h"
#include "troupe/train/recipe.h"
#include "troupe/train/report_forecast.h"
#include "troupe/train/run_files.h"
#include "troupe/train/svg.h"

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
  return y != nullptr && from_text(y->text, out) ? out : std::nan("");
}
std::string text(const Yaml& y, std::string_view name) {
  const Yaml* found = field(y, name);
  return found == nullptr ? "" : found->text;
}

// A start at a step forgets what is said of later ones.
void forget_after(RunLog& log, int64_t step) {
  for (auto& [name, values] : log.series) values.erase(values.upper_bound(step), values.end());
  const auto later = [&](const auto& entry) { return entry.step > step; };
  std::erase_if(log.evaluations, later);
  std::erase_if(log.samples, later);
  std::erase_if(log.experts, later);
}

void add_event(RunLog& log, const Yaml& y, int64_t step) {
  const std::string kind = text(y, "event");
  if (kind == "start" || kind == "resume") forget_after(log, step);
  if (kind == "eval")
    log.evaluations.push_back({step, text(y, "set"), number(field(y, "val/loss"))});
  if (kind == "sample") log.samples.push_back({step, text(y, "prompt"), text(y, "text")});
  if (kind == "experts") {
    RunLog::Experts& entry = log.experts.emplace_back(RunLog::Experts{step, {}});
    for (const Yaml::Field& layer : field(y, "layers")->fields) {
      auto& shares = entry.layers[std::stoll(layer.name)];
      for (const Yaml& share : layer.value.items) shares.push_back(number(&share));
    }
    return;
  }
  if (kind == "eval" || kind == "sample") return;
  std::string more;
  for (const char* name : {"what", "first", "why", "saved"}) {
    if (field(y, name) != nullptr) more += ' ' + text(y, name);
  }
  log.events.push_back({step, kind + more});
}

std::string escaped(std::string_view s) {
  std::string out;
  for (const char c : s) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string read_if_there(const std::string& path) {
  return ::access(path.c_str(), R_OK) == 0 ? read_file(path) : "";
}

void section(std::ostream& os, const std::string& title, const std::string& body) {
  if (!body.empty()) os << "<h2>" << title << "</h2>\n" << body;
}

std::string chart_of(const RunLog& log, const std::string& name, const std::string& title,
                     bool logarithmic = false) {
  const auto found = log.series.find(name);
  if (found == log.series.end() || found->second.empty()) return {};
  return svg::line_chart(title, {{title, found->second}}, logarithmic);
}

std::string loss_chart(const RunLog& log) {
  std::vector<svg::Line> lines;
  const auto found = log.series.find("loss");
  if (found != log.series.end()) lines.push_back({"loss", found->second});
  for (const RunLog::Evaluation& e : log.evaluations) {
    const std::string name = "validation: " + e.set;
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const svg::Line& l) { return l.name == name; });
    if (line == lines.end()) line = lines.insert(line, {name, {}});
    line->values[e.step] = e.loss;
  }
  return lines.empty() ? "" : svg::line_chart("loss", lines, false);
}

// What ranks do themselves in a step; the others wait for the slowest.
std::string ranks_chart(const RunLog& log) {
  const auto least = log.series.find("ranks/own_min_s"), most = log.series.find("ranks/own_max_s");
  if (least == log.series.end() || most == log.series.end()) return {};
  return svg::line_chart("a rank's own work in a step, seconds",
                         {{"the slowest rank", most->second}, {"the fastest", least->second}},
                         false);
}

// A picture a layer: time to the right, experts downwards. Of many layers those whose load is
// worst.
std::string expert_maps(const RunLog& log) {
  if (log.experts.empty()) return {};
  constexpr size_t kShown = 8;
  std::vector<std::pair<double, int64_t>> worst;
  for (const auto& [layer, shares] : log.experts.back().layers) {
    if (!shares.empty())
      worst.emplace_back(-*std::max_element(shares.begin(), shares.end()), layer);
  }
  std::sort(worst.begin(), worst.end());
  worst.resize(std::min(worst.size(), kShown));
  std::sort(worst.begin(), worst.end(), [](auto& a, auto& b) { return a.second < b.second; });
  std::string out =
      "<p>Each square is an expert's tokens over the layer's mean: white 0, green 1, "
      "red 3 and more.</p>\n";
  for (const auto& [load, layer] : worst) {
    std::vector<std::vector<double>> columns;
    for (const RunLog::Experts& e : log.experts) {
      const auto found = e.layers.find(layer);
      if (found != e.layers.end()) columns.push_back(found->second);
    }
    out += svg::heat_map("layer " + std::to_string(layer), columns);
  }
  return out;
}

std::string sample_table(const RunLog& log) {
  if (log.samples.empty()) return {};
  std::ostringstream os;
  for (const RunLog::Sample* s : {&log.samples.front(), &log.samples.back()}) {
    os << "<h3>after step " << s->step << "</h3><pre>" << escaped(s->text) << "</pre>\n";
    if (log.samples.size() == 1) break;
  }
  return os.str();
}

std::string evaluation_table(const RunLog& log) {
  if (log.evaluations.empty()) return {};
  std::ostringstream os;
  os << "<table><tr><th>step</th><th>set</th><th>loss</th><th>perplexity</th></tr>\n";
  for (const RunLog::Evaluation& e : log.evaluations) {
    os << "<tr><td>" << e.step << "</td><td>" << escaped(e.set) << "</td><td>"
       << svg::short_label(e.loss) << "</td><td>" << svg::short_label(std::exp(e.loss))
       << "</td></tr>\n";
  }
  return os.str() + "</table>\n";
}

std::string event_table(const RunLog& log) {
  std::ostringstream os;
  for (const RunLog::Event& e : log.events) {
    os << "<tr><td>" << e.step << "</td><td>" << escaped(e.text) << "</td></tr>\n";
  }
  return os.str().empty()
             ? ""
             : "<table><tr><th>step</th><th>event</th></tr>\n" + os.str() + "</table>\n";
}

std::string summary(const RunLog& log) {
  const auto loss = log.series.find("loss");
  if (loss == log.series.end() || loss->second.empty()) return "<p>No step was logged.</p>\n";
  const auto& [first_step, first] = *loss->second.begin();
  const auto& [last_step, last] = *loss->second.rbegin();
  std::ostringstream os;
  os << "<p class=\"verdict\">Step " << last_step << ": loss " << svg::short_label(first)
     << " at step " << first_step << ", " << svg::short_label(last) << " now";
  const auto load = log.series.find("moe/load");
  if (load != log.series.end() && !load->second.empty()) {
    os << "; busiest expert " << svg::short_label(load->second.rbegin()->second)
       << " times the mean";
  }
  os << ".</p>\n";
  return os.str();
}

}  // namespace

RunLog read_run_log(const std::string& path) {
  RunLog out;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // torn: every whole line ends
    const Yaml y = parse_json(line, path);
    const double at = number(field(y, "step"));
    if (!std::isfinite(at)) continue;
    const auto step = static_cast<int64_t>(at);
    if (field(y, "event") != nullptr) {
      add_event(out, y, step);
      continue;
    }
    for (const Yaml::Field& f : y.fields) {
      const double value = number(&f.value);
      if (std::isfinite(value) && f.name != "step") out.series[f.name][step] = value;
    }
  }
  return out;
}

Record experts_record(const std::vector<LayerLoad>& loads) {
  Record layers;
  for (const LayerLoad& load : loads) {
    double sum = 0;
    for (const double c : load.counts) sum += c;
    std::vector<double> shares;
    for (const double c : load.counts) {
      const double share = sum == 0 ? 0 : c * static_cast<double>(load.counts.size()) / sum;
      shares.push_back(std::round(share * 1000) / 1000);
    }
    layers.add(std::to_string(load.layer), shares);
  }
  Record out;
  out.add("event", std::string_view("experts"));
  out.add_json("layers", layers.json());
  return out;
}

std::string report_html(const RunLog& log, const ReportParts& parts) {
  std::ostringstream os;
  os << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>"
     << escaped(parts.name) << "</title>\n"
     << "<style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
        "color:#222}pre{background:#f5f5f5;padding:1em;overflow:auto;white-space:pre-wrap}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;"
        "text-align:left}svg{display:inline-block;margin:.3em}.verdict{font-size:1.2em}"
        "</style></head>\n<body>\n<h1>"
     << escaped(parts.name) << "</h1>\n"
     << summary(log) << loss_chart(log) << chart_of(log, "lr", "learning rate")
     << chart_of(log, "tokens_s", "tokens a second") << ranks_chart(log)
     << chart_of(log, "grad_norm", "gradient norm", true)
     << chart_of(log, "moe/load", "load of the busiest expert, over the mean");
  section(os, "Forecast and measured", parts.forecast);
  section(os, "Load of experts", expert_maps(log));
  section(os, "Samples", sample_table(log));
  section(os, "Evaluations", evaluation_table(log));
  section(os, "Events", event_table(log));
  section(os, "Recipe", parts.recipe.empty() ? "" : "<pre>" + escaped(parts.recipe) + "</pre>\n");
  section(os, "Environment",
          parts.environment.empty() ? "" : "<pre>" + escaped(parts.environment) + "</pre>\n");
  os << "</body></html>\n";
  return os.str();
}

std::string write_report(Fs& fs, const std::string& run, const std::string& machine) {
  const std::string path = run + "/report.html";
  const RunLog log = read_run_log(run + "/log.jsonl");
  ReportParts parts{.name = run,
                    .recipe = read_if_there(run + "/recipe.yaml"),
                    .environment = read_if_there(run + "/env.json")};
  if (!machine.empty()) {
    Sources sources;
    RunEnvironment environment;
    read_config(parse_json(read_file(run + "/env.json"), run + "/env.json"), environment);
    parts.forecast = forecast_section(load_recipe(run + "/recipe.yaml", {}, sources),
                                      environment.ranks, load_machine(machine), log);
  }
  publish_file(fs, path, report_html(log, parts));
  return path;
}

}  // namespace troupe
