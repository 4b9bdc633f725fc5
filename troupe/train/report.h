// RUN/report.html: one page without a single outside reference, made of what the run wrote
// (log.jsonl, recipe.yaml, env.json). It can be made at any time, also while the run goes on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troupe/core/publish.h"
#include "troupe/core/yaml.h"
#include "troupe/train/health.h"
#include "troupe/train/record.h"

namespace troupe {

// What log.jsonl says. Where a run was resumed at a step, what an earlier start wrote of later
// steps is dropped. A last line that is torn is left out.
struct RunLog {
  struct Evaluation {
    int64_t step;
    std::string set;
    double loss;
  };
  struct Sample {
    int64_t step;
    std::string prompt, text;
  };
  struct Experts {  // the share of each expert: its count over the mean
    int64_t step;
    std::map<int64_t, std::vector<double>> layers;
  };
  struct Event {
    int64_t step;
    std::string text;
  };
  std::map<std::string, std::map<int64_t, double>> series;  // name -> step -> value
  std::vector<Evaluation> evaluations;
  std::vector<Sample> samples;
  std::vector<Experts> experts;
  std::vector<Event> events;
};
RunLog read_run_log(const std::string& path);

// The event that tells every expert's share.
Record experts_record(const std::vector<LayerLoad>& loads);

struct ReportParts {
  std::string name, recipe, environment;
  std::string forecast = {};  // HTML: report_forecast.h
};
std::string report_html(const RunLog& log, const ReportParts& parts);
// Returns its path. With a machine file also what was forecast, beside what the run took.
std::string write_report(Fs& fs, const std::string& run, const std::string& machine = "");

}  // namespace troupe
