#include "troupe/core/config/span.h"

#include "troupe/core/check.h"
#include "troupe/core/text/units.h"

namespace troupe {
namespace {

struct Suffix {
  std::string_view text;
  Span::Unit unit;
};
constexpr Suffix kSuffixes[] = {
    {" steps", Span::Unit::kSteps},     {" step", Span::Unit::kSteps},
    {" samples", Span::Unit::kSamples}, {" tokens", Span::Unit::kTokens},
    {"%", Span::Unit::kPercent},        {"", Span::Unit::kSteps}};

}  // namespace

bool from_text(std::string_view text, Span& out) {
  Duration time;
  if (from_text(text, time) && text.find_first_not_of("0123456789") != std::string_view::npos) {
    out = {time.ns, Span::Unit::kTime};
    return true;
  }
  for (const Suffix& suffix : kSuffixes) {
    if (!text.ends_with(suffix.text)) continue;
    Count count;
    if (!from_text(text.substr(0, text.size() - suffix.text.size()), count)) return false;
    out = {count.value, suffix.unit};
    return out.unit != Span::Unit::kPercent || out.value <= 100;
  }
  return false;
}

std::string to_text(const Span& span) {
  const std::string count = to_text(Count{span.value});
  switch (span.unit) {
    case Span::Unit::kSteps: return count + " steps";
    case Span::Unit::kSamples: return count + " samples";
    case Span::Unit::kTokens: return count + " tokens";
    case Span::Unit::kPercent: return std::to_string(span.value) + "%";
    case Span::Unit::kTime: return to_text(Duration{span.value});
  }
  return {};
}

Expectation expectation(std::string_view, const Span&) {
  return {"a length such as 500 steps, 1B tokens, 100K samples, 5% or 30min"};
}

int64_t in_unit(const Position& position, Span::Unit unit) {
  TROUPE_CHECK(unit == Span::Unit::kSteps || unit == Span::Unit::kSamples ||
               unit == Span::Unit::kTokens);
  if (unit == Span::Unit::kSteps) return position.steps;
  return unit == Span::Unit::kSamples ? position.samples : position.tokens;
}

int64_t resolved(const Span& span, Span::Unit unit, const Position& run) {
  if (span.unit == Span::Unit::kPercent) {
    constexpr int64_t kMost = int64_t{1} << 62;
    const int64_t whole = in_unit(run, unit);
    return whole > 0 && span.value > kMost / whole ? kMost : whole * span.value / 100;
  }
  TROUPE_CHECK(span.unit == unit || span.value == 0, to_text(span), "among spans of another unit");
  return span.value;
}

bool Cadence::due(const Position& before, const Position& now, double seconds) {
  if (every_.value == 0) return false;
  if (every_.unit == Span::Unit::kTime) {
    if (seconds - last_seconds_ < static_cast<double>(every_.value) * 1e-9) return false;
    last_seconds_ = seconds;
    return true;
  }
  return in_unit(before, every_.unit) / every_.value != in_unit(now, every_.unit) / every_.value;
}

}  // namespace troupe
