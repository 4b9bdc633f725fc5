// troupe report: a run as one page, or several runs beside each other.
#include "troupe/train/report/report.h"

#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

struct ReportVerb {
  std::vector<std::string> runs;
  std::string machine, out;
};

void make_report(const ReportVerb& verb) {
  Fs fs;
  if (verb.runs.size() == 1) {
    if (!verb.out.empty()) fail(Code::kBadValue, "--out is for several runs");
    std::cout << write_report(fs, verb.runs.front(), verb.machine) << '\n';
    return;
  }
  if (!verb.machine.empty()) fail(Code::kBadValue, "--machine takes one run");
  const std::string path = verb.out.empty() ? "comparison.html" : verb.out;
  write_comparison(fs, verb.runs, path);
  if (!is_standard_output(path)) std::cout << path << '\n';
}

}  // namespace

void add_report(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand(
      "report", "makes RUN/report.html of a run, at any time, or one page of several runs");
  const auto options = std::make_shared<ReportVerb>();
  verb->add_option("runs", options->runs, "the run's folder; several: their curves in one picture")
      ->required();
  verb->add_option("--machine", options->machine,
                   "what `troupe bench machine` wrote: the forecast beside what the run took");
  verb->add_option("--out", options->out,
                   "the page of several runs; default: comparison.html in the working folder");
  verb->footer("Example: troupe report runs/quickstart\n         troupe report runs/a runs/b");
  verb->callback([options] { make_report(*options); });
}

}  // namespace troupe
