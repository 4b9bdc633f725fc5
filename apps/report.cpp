// troupe report: a run as one page.
#include "troupe/train/report.h"

#include <iostream>
#include <memory>

#include "apps/verbs.h"

namespace troupe {

void add_report(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("report", "makes RUN/report.html of a run, at any time");
  const auto run = std::make_shared<std::string>();
  verb->add_option("run", *run, "the run's folder")->required();
  const auto machine = std::make_shared<std::string>();
  verb->add_option("--machine", *machine,
                   "what `troupe bench machine` wrote: the forecast beside what the run took");
  verb->footer("Example: troupe report runs/quickstart");
  verb->callback([run, machine] {
    Fs fs;
    std::cout << write_report(fs, *run, *machine) << '\n';
  });
}

}  // namespace troupe
