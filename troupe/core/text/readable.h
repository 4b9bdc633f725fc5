// Numbers as people read them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace troupe {

// "512 B", "3.4 KiB", "12.5 GiB"
inline std::string readable_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
  return text;
}

}  // namespace troupe
