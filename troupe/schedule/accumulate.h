// One process holds the whole model: each microbatch goes forward through all chunks and back, and
// the gradients add up until the one update.
//   0: F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1 U
#pragma once

#include <string_view>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

struct Accumulate {
  static constexpr std::string_view kKind = "accumulate";
  static void visit(auto&, auto&&) {}
  Schedule build(const StepWork& work) const;
};

}  // namespace troupe
