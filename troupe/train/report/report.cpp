#include "troupe/train/report/report.h"

#include <unistd.h>

#include <cmath>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/report/report_forecast.h"
#include "troupe/train/report/report_parts.h"
#include "troupe/train/report/svg.h"

namespace troupe {
namespace {

std::string read_if_there(const std::string& path) {
  return ::access(path.c_str(), R_OK) == 0 ? read_file(path) : "";
}

void section(Markup& out, const std::string& title, const Markup& body) {
  if (!body.empty()) out << "<h2>" << title << "</h2>\n" << body;
}

Markup text_block(const std::string& text) {
  Markup out;
  if (!text.empty()) out << "<pre>" << text << "</pre>\n";
  return out;
}

// The policy forbids scripts even where an escape would be missing.
void head(Markup& out, const std::string& title) {
  out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n<title>"
      << title
      << "</title>\n<style>body{font:15px/1.5 sans-serif;max-width:76em;margin:1.5em auto;"
         "padding:0 1em;color:var(--ink);background:var(--page)}h1{overflow-wrap:anywhere}"
         "pre{background:var(--box);padding:1em;overflow:auto;white-space:pre-wrap;"
         "overflow-wrap:anywhere;font-size:13px}"
         "table{border-collapse:collapse}.wide{overflow-x:auto}"
         "td,th{border:1px solid var(--edge);padding:.2em .6em;text-align:left;vertical-align:top}"
         "th{font-weight:600}"
         ".columns{display:grid;grid-template-columns:1fr 1fr;gap:1.2em 1.5em;margin:1em 0}"
      << svg::style()
      << "@media(max-width:45em){.columns{grid-template-columns:1fr}svg text{font-size:13px}"
         "h1{font-size:1.4em}body{margin:.5em auto;padding:0 .7em}}"
         "</style></head>\n<body>\n<h1>"
      << title << "</h1>\n";
}

ReportRun read_run(const std::string& run) {
  return {.name = run,
          .log = read_run_log(run + "/log.jsonl"),
          .recipe = read_if_there(run + "/recipe.yaml"),
          .environment = read_if_there(run + "/env.json"),
          .exit = read_if_there(run + "/exit.json"),
          .use = read_expert_use(run)};
}

}  // namespace

LogRecord experts_record(const std::vector<LayerLoad>& loads) {
  LogRecord layers;
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
  LogRecord out;
  out.add("event", std::string_view("experts"));
  out.add_json("layers", layers.json());
  return out;
}

std::string report_html(const std::vector<ReportRun>& runs, const Markup& forecast) {
  std::string title;
  for (const ReportRun& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  Markup out;
  head(out, title);
  out << report::summary_table(runs) << "<div class=\"columns\">\n"
      << report::charts(runs) << "</div>\n";
  section(out, "Forecast and measured", forecast);
  if (runs.size() == 1) {
    const ReportRun& run = runs.front();
    section(out, "Load of experts", report::expert_maps(run.log));
    if (run.use) section(out, "Who goes to which expert", report::use_tables(*run.use));
    section(out, "Samples", report::sample_table(run.log));
    section(out, "Evaluations", report::evaluation_table(run.log));
    section(out, "Events", report::event_table(run));
    section(out, "Recipe", text_block(run.recipe));
    section(out, "Environment", text_block(run.environment));
  } else {
    section(out, "Recipes: what differs", report::recipe_differences(runs));
    for (const ReportRun& run : runs) {
      section(out, "Events of " + run.name, report::event_table(run));
    }
  }
  out << "</body></html>\n";
  return out.str();
}

std::string write_report(Fs& fs, const std::string& run, const std::string& machine) {
  const std::string path = run + "/report.html";
  const ReportRun read = read_run(run);
  Markup forecast;
  if (!machine.empty()) {
    Sources sources;
    RunEnvironment environment;
    read_config(parse_json(read_file(run + "/env.json"), run + "/env.json"), environment);
    forecast = forecast_section(load_recipe(run + "/recipe.yaml", {}, sources), environment.ranks,
                                load_machine(machine), read.log);
  }
  publish_file(fs, path, report_html({read}, forecast));
  return path;
}

void write_comparison(Fs& fs, const std::vector<std::string>& runs, const std::string& path) {
  std::vector<ReportRun> read;
  for (const std::string& run : runs) read.push_back(read_run(run));
  write_output(fs, path, report_html(read));
}

}  // namespace troupe
