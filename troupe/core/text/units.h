// Numbers with units, for configs: "4M" tokens, "70GiB", "30min". The conversion is exact both
// ways: what does not come out whole, does not fit 63 bits or is negative is refused, and so is a
// unit that is not listed.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "troupe/core/text/text.h"

namespace troupe {

// K, M, B, T: thousands, or no unit. "1.5M", "2000".
struct Count {
  int64_t value = 0;
  auto operator<=>(const Count&) const = default;
};

// B; KiB, MiB, GiB, TiB: steps of 1024; KB, MB, GB, TB: steps of 1000. "70GiB", "0.5TB".
struct Bytes {
  int64_t value = 0;
  auto operator<=>(const Bytes&) const = default;
};

// ns, us, ms, s, min, h, d, from large to small where there are several: "500ms", "3h30min".
struct Duration {
  int64_t ns = 0;
  double seconds() const { return static_cast<double>(ns) * 1e-9; }
  auto operator<=>(const Duration&) const = default;
};

constexpr Duration milliseconds(int64_t n) {
  return {n * 1'000'000};
}
constexpr Duration seconds(int64_t n) {
  return milliseconds(n * 1000);
}
constexpr Duration minutes(int64_t n) {
  return seconds(n * 60);
}
constexpr Bytes gib(int64_t n) {
  return {n << 30};
}

bool from_text(std::string_view text, Count& out);
bool from_text(std::string_view text, Bytes& out);
bool from_text(std::string_view text, Duration& out);

// In the largest unit that leaves a whole number: "4M", "1500K", "1536MiB", "90min".
std::string to_text(Count count);
std::string to_text(Bytes bytes);
std::string to_text(Duration duration);

Expectation expectation(std::string_view text, const Count& out);
Expectation expectation(std::string_view text, const Bytes& out);
Expectation expectation(std::string_view text, const Duration& out);

}  // namespace troupe
