#include "troupe/train/machine/finding.h"

namespace troupe {

std::string line_of(const Finding& f) {
  const char* const verdict = f.verdict == Finding::kOk     ? "ok    "
                              : f.verdict == Finding::kWarn ? "warn  "
                                                            : "fail  ";
  return verdict + f.what + ": " + f.found + (f.cure.empty() ? "" : ". " + f.cure);
}

}  // namespace troupe
