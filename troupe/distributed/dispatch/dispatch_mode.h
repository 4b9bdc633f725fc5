// How rows reach the ranks of their experts, and how results come back: a2a_dispatcher.h says what
// each mode computes, the dispatchers' own headers how they send.
#pragma once

#include <array>

#include "troupe/core/text/text.h"

namespace troupe {

enum class DispatchMode { kFast, kExact };
constexpr auto names_of(DispatchMode) {
  return std::array{Named{"fast", DispatchMode::kFast}, Named{"exact", DispatchMode::kExact}};
}

enum class DispatcherKind { kAuto, kAllToAll, kAllGather, kTwoLevel };
constexpr auto names_of(DispatcherKind) {
  return std::array{Named{"auto", DispatcherKind::kAuto},
                    Named{"all_to_all", DispatcherKind::kAllToAll},
                    Named{"all_gather", DispatcherKind::kAllGather},
                    Named{"two_level", DispatcherKind::kTwoLevel}};
}

// What rows travel as on their way out; wire.h says what kInt8 makes of them.
enum class WireType { kNative, kInt8 };
constexpr auto names_of(WireType) {
  return std::array{Named{"native", WireType::kNative}, Named{"int8", WireType::kInt8}};
}

}  // namespace troupe
