// What a check of this machine found.
#pragma once

#include <string>

namespace troupe {

struct Finding {
  enum Verdict { kOk, kWarn, kFail };
  Verdict verdict = kOk;
  std::string what;       // "memory"
  std::string found;      // "62.8 GiB"
  std::string cure = {};  // for a warning or a failure
};

std::string line_of(const Finding& finding);  // "ok    memory: 62.8 GiB"

}  // namespace troupe
