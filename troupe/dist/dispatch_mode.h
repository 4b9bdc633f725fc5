// How results come back from the ranks of their experts: a2a_dispatcher.h says what each computes.
#pragma once

#include <array>

#include "troupe/core/text.h"

namespace troupe {

enum class DispatchMode { kFast, kExact };
constexpr auto names_of(DispatchMode) {
  return std::array{Named{"fast", DispatchMode::kFast}, Named{"exact", DispatchMode::kExact}};
}

}  // namespace troupe
