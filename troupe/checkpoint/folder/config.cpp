#include "troupe/checkpoint/folder/config.h"

#include "troupe/core/check.h"

namespace troupe {

bool from_text(std::string_view text, Resume& out) {
  constexpr std::string_view kStep = "step ";
  if (text.starts_with(kStep)) {
    out.kind = Resume::kStep;
    return from_text(text.substr(kStep.size()), out.step) && out.step >= 0;
  }
  out.kind = text == "must" ? Resume::kMust : text == "never" ? Resume::kNever : Resume::kAuto;
  return out.kind != Resume::kAuto || text == "auto";
}

std::string to_text(const Resume& resume) {
  switch (resume.kind) {
    case Resume::kAuto: return "auto";
    case Resume::kMust: return "must";
    case Resume::kNever: return "never";
    case Resume::kStep: return "step " + std::to_string(resume.step);
  }
  return "?";
}

Expectation expectation(std::string_view, const Resume&) {
  return {"auto, must, never, or step N"};
}

void validate(const CheckpointConfig& config) {
  std::string faults;
  const auto require = [&](bool ok, const std::string& what) {
    if (ok) return;
    if (!faults.empty()) faults += '\n';
    faults += "checkpoint.";
    faults += what;
  };
  const auto at_least_0 = [&](const char* name, int64_t value) {
    require(value >= 0, std::string(name) + ": " + to_text(Code::kBadValue) + " is " +
                            std::to_string(value) + "; at least 0 is asked for");
  };
  at_least_0("every_steps", config.every_steps);
  at_least_0("keep", config.keep);
  at_least_0("keep_every", config.keep_every);
  at_least_0("keep_best", config.keep_best);
  for (const int64_t step : config.at) at_least_0("at", step);
  if (!faults.empty()) throw Error(faults, Code::kBadValue);
}

}  // namespace troupe
