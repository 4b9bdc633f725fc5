// RUN/report.html: one page without a script or an outside reference, made of what the run wrote
// (log.jsonl, recipe.yaml, env.json, exit.json). It can be made at any time, also during the
// run. Several runs make one page with a curve each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "troupe/core/file/publish.h"
#include "troupe/train/observe/expert_use.h"
#include "troupe/train/observe/health.h"
#include "troupe/train/observe/record.h"
#include "troupe/train/observe/run_log.h"
#include "troupe/train/report/markup.h"

namespace troupe {

// The event that tells every expert's share.
LogRecord experts_record(const std::vector<LayerLoad>& loads);

struct ReportRun {
  std::string name;  // its folder
  RunLog log;
  std::string recipe = {}, environment = {}, exit = {};  // the files' texts; empty: not there
  std::optional<ExpertUse> use = {};                     // of `troupe inspect experts`
};
// A report about a single run has its samples, events and files too; `forecast` is a section of its
// own (report_forecast.h). One about several has the recipe values that differ.
std::string report_html(const std::vector<ReportRun>& runs, const Markup& forecast = {});

// Writes RUN/report.html and returns its path. With a machine file also what was forecast, beside
// what the run took.
std::string write_report(Fs& fs, const std::string& run, const std::string& machine = "");
void write_comparison(Fs& fs, const std::vector<std::string>& runs, const std::string& path);

}  // namespace troupe
