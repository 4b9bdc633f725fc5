// A stretch of training, for fields such as `warmup`, `every` and `decay`: "2000" or "2000 steps",
// "100K samples", "1B tokens", "10%" of the run, "30min".
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "troupe/core/text/text.h"

namespace troupe {

struct Span {
  enum class Unit { kSteps, kSamples, kTokens, kPercent, kTime };
  int64_t value = 0;  // kTime: nanoseconds
  Unit unit = Unit::kSteps;
  auto operator<=>(const Span&) const = default;
};

constexpr Span steps(int64_t n) {
  return {n, Span::Unit::kSteps};
}

bool from_text(std::string_view text, Span& out);
std::string to_text(const Span& span);
Expectation expectation(std::string_view text, const Span& out);

// How far a run is, or how long: the same run in three units.
struct Position {
  int64_t steps = 0;
  int64_t samples = 0;  // sequences
  int64_t tokens = 0;
  static void visit(auto& p, auto&& f) {
    f("steps", p.steps);
    f("samples", p.samples);
    f("tokens", p.tokens);
  }
  auto operator<=>(const Position&) const = default;
};
int64_t in_unit(const Position& position, Span::Unit unit);  // steps, samples or tokens
// The span as a number of `unit`; a percentage is of `run`. Refuses a span of another unit.
int64_t resolved(const Span& span, Span::Unit unit, const Position& run);

// When something is to be done: each time that `every` has passed since the last time.
class Cadence {
 public:
  explicit Cadence(Span every) : every_(every) {}
  // Steps, samples, tokens: true when a multiple of the span is in (before, now]; a resumed run
  // asks at the same places. Time: when that many seconds passed since the last true.
  bool due(const Position& before, const Position& now, double seconds);

 private:
  Span every_;
  double last_seconds_ = 0;
};

}  // namespace troupe
