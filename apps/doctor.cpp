// troupe doctor: what of this machine a run would stumble over.
#include "troupe/train/machine/doctor.h"

#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/check.h"

namespace troupe {

void add_doctor(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("doctor", "looks this machine over: ok, warn or fail");
  const auto folder = std::make_shared<std::string>(".");
  verb->add_option("folder", *folder, "where runs will be written");
  verb->footer("Example: troupe doctor runs\nReturns 7 where a line says fail.");
  verb->callback([folder, &call] {
    for (const Finding& finding : examine(*folder)) {
      std::cout << line_of(finding) << '\n';
      if (finding.verdict == Finding::kFail) call.code = static_cast<int>(ExitClass::kResource);
    }
  });
}

}  // namespace troupe
