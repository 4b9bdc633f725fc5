// troupe status: how runs stand, for a person and for a script that watches them.
#include <iostream>
#include <memory>

#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/train/observe/run_status.h"

namespace troupe {
namespace {

struct StatusVerb {
  std::vector<std::string> folders;
  bool json = false;
};

struct RunStatuses {
  std::vector<RunStatus> runs;
  static void visit(auto& s, auto&& f) { f("runs", s.runs); }
};

void print_status(const StatusVerb& verb, Call& call) {
  const double now = unix_seconds();
  RunStatuses all;
  for (const std::string& folder : verb.folders) {
    for (const std::string& run : run_folders_in(folder)) all.runs.push_back(run_status(run, now));
  }
  for (const RunStatus& run : all.runs) {
    if (call.code == 0) call.code = exit_code_of(run);
  }
  if (verb.json) return print_json(all);
  const bool one = all.runs.size() == 1;
  std::cout << (one ? status_text(all.runs.front()) : status_table(all.runs));
}

}  // namespace

void add_status(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand(
      "status", "says how runs stand: state, process, step, loss, checkpoint, age of the log");
  const auto options = std::make_shared<StatusVerb>();
  verb->add_option("folders", options->folders,
                   "a run's folder, or one that holds runs; several runs make a table")
      ->required();
  verb->add_flag("--json", options->json, "print JSON: {\"runs\": [...]}");
  verb->footer(
      "Example: troupe status runs/quickstart\n"
      "         troupe status runs\n"
      "Exit: 0 if each runs, finished or was stopped; else the code of the first that failed,\n"
      "6 for one that was killed, 4 for one without a readable exit.json.");
  verb->callback([options, &call] { print_status(*options, call); });
}

}  // namespace troupe
