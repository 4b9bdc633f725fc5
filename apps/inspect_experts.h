// troupe inspect experts RUN: who goes to which expert.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct InspectExperts {
  std::string run;
  std::vector<std::string> sets;
  int64_t samples = 64;
  bool json = false;
};
void inspect_experts(const InspectExperts& options);

}  // namespace troupe
