// What all dispatchers between ranks have in common: all_to_all_dispatcher.h says what each mode computes.
#pragma once

#include <array>

#include "troupe/core/text/text.h"

namespace troupe {

enum class DispatchMode { kFast, kExact };
constexpr auto names_of(DispatchMode) {
  return std::array{Named{"fast", DispatchMode::kFast}, Named{"exact", DispatchMode::kExact}};
}

// What rows travel as on their way out; wire.h says what the types of 8 bits make of them.
enum class WireType { kNative, kInt8, kFp8 };
constexpr auto names_of(WireType) {
  return std::array{Named{"native", WireType::kNative}, Named{"int8", WireType::kInt8},
                    Named{"fp8", WireType::kFp8}};
}

}  // namespace troupe
