#include "troupe/core/text/units.h"

#include <limits>
#include <optional>
#include <span>

namespace troupe {
namespace {

struct Unit {
  std::string_view name;
  int64_t factor;
};

// Ascending where to_text may use them, then those that are only read.
constexpr int64_t kKilo = 1'000, kMega = 1'000'000, kGiga = 1'000'000'000,
                  kTera = 1'000'000'000'000;
constexpr Unit kCounts[] = {{"", 1}, {"K", kKilo}, {"M", kMega}, {"B", kGiga}, {"T", kTera}};
constexpr Unit kBytes[] = {{"B", 1},
                           {"KiB", int64_t{1} << 10},
                           {"MiB", int64_t{1} << 20},
                           {"GiB", int64_t{1} << 30},
                           {"TiB", int64_t{1} << 40},
                           {"KB", kKilo},
                           {"MB", kMega},
                           {"GB", kGiga},
                           {"TB", kTera}};
constexpr Unit kDurations[] = {
    {"ns", 1},           {"us", kKilo},       {"ms", kMega},           {"s", kGiga},
    {"min", 60 * kGiga}, {"h", 3600 * kGiga}, {"d", 24 * 3600 * kGiga}};
constexpr size_t kWrittenBytes = 5;

using Units = std::span<const Unit>;

const Unit* find(std::string_view name, Units units) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

bool is_digit(char c) {
  return '0' <= c && c <= '9';
}

// One "<number><unit>" at the front of a text.
struct Term {
  std::string_view digits;    // of the whole part
  std::string_view fraction;  // after the point
  std::string_view unit;
};

std::string_view take(std::string_view& text, bool digits) {
  size_t n = 0;
  while (n < text.size() && is_digit(text[n]) == digits) ++n;
  const std::string_view out = text.substr(0, n);
  text.remove_prefix(n);
  return out;
}

std::optional<Term> take_term(std::string_view& text) {
  Term term;
  term.digits = take(text, true);
  if (term.digits.empty()) return {};
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    term.fraction = take(text, true);
    if (term.fraction.empty()) return {};
  }
  term.unit = take(text, false);
  return term;
}

// digits.fraction * factor, or nothing if it is not whole or too large.
std::optional<int64_t> exact(const Term& term, int64_t factor) {
  __int128 number = 0, scale = 1;
  constexpr size_t kMaxDigits = 20;  // So that number * factor < 10^20 * 2^47 fits.
  if (term.digits.size() + term.fraction.size() > kMaxDigits) return {};
  for (const char c : term.digits) number = number * 10 + (c - '0');
  for (const char c : term.fraction) number = number * 10 + (c - '0'), scale *= 10;
  number *= factor;
  if (number % scale != 0 || number / scale > std::numeric_limits<int64_t>::max()) return {};
  return static_cast<int64_t>(number / scale);
}

bool parse_one(std::string_view text, Units units, int64_t& out) {
  const auto term = take_term(text);
  const Unit* const unit = term && text.empty() ? find(term->unit, units) : nullptr;
  const auto value = unit != nullptr ? exact(*term, unit->factor) : std::nullopt;
  if (!value) return false;
  return out = *value, true;
}

bool parse_sum(std::string_view text, Units units, int64_t& out) {
  out = 0;
  int64_t last = std::numeric_limits<int64_t>::max();
  do {
    const auto term = take_term(text);
    const Unit* const unit = term ? find(term->unit, units) : nullptr;
    if (unit == nullptr || unit->factor >= last) return false;
    const auto value = exact(*term, last = unit->factor);
    if (!value || __builtin_add_overflow(out, *value, &out)) return false;
  } while (!text.empty());
  return true;
}

std::string print(int64_t value, Units units) {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.factor == 0) best = &unit;
  }
  return std::to_string(value / best->factor) + std::string(best->name);
}

// The unit that was probably meant: the same in other letters, one that it abbreviates ("G"), or
// one that it spells out ("hours").
std::string_view meant(std::string_view name, Units units) {
  const std::string wanted = normalized(name);
  std::string_view longer, shorter;
  for (const Unit& unit : units) {
    const std::string known = normalized(unit.name);
    if (known == wanted) return unit.name;
    if (known.starts_with(wanted) && known.size() > longer.size()) longer = unit.name;
    if (name.starts_with(unit.name) && unit.name.size() > shorter.size()) shorter = unit.name;
  }
  return longer.empty() ? shorter : longer;
}

// `text` with every unknown unit replaced; nothing if one cannot be guessed.
std::string guess(std::string_view text, Units units) {
  std::string out;
  while (!text.empty()) {
    const std::string_view before = text;
    const auto term = take_term(text);
    if (!term) return "";
    std::string_view unit = term->unit;
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (find(unit, units) == nullptr) {
      if (!unit.empty()) unit = meant(unit, units);
      if (unit.empty()) return "";
    }
    const size_t number = before.size() - text.size() - term->unit.size();
    out.append(before.substr(0, number)).append(unit);
  }
  return out;
}

template <class T>
Expectation expect(std::string_view text, Units units, std::string_view example) {
  std::vector<std::string_view> names;
  for (const Unit& unit : units) {
    if (!unit.name.empty()) names.push_back(unit.name);
  }
  Expectation out{std::string(example) + " (" + joined(names) + ")", guess(text, units)};
  T value;
  if (!from_text(out.guess, value)) out.guess.clear();
  return out;
}

}  // namespace

bool from_text(std::string_view text, Count& out) {
  return parse_one(text, kCounts, out.value);
}
bool from_text(std::string_view text, Bytes& out) {
  return parse_one(text, kBytes, out.value);
}
bool from_text(std::string_view text, Duration& out) {
  return parse_sum(text, kDurations, out.ns);
}

std::string to_text(Count count) {
  return print(count.value, kCounts);
}
std::string to_text(Bytes bytes) {
  return print(bytes.value, Units(kBytes).first(kWrittenBytes));
}
std::string to_text(Duration duration) {
  return duration.ns == 0 ? "0s" : print(duration.ns, kDurations);
}

Expectation expectation(std::string_view text, const Count&) {
  return expect<Count>(text, kCounts, "a whole number such as 4M");
}
Expectation expectation(std::string_view text, const Bytes&) {
  return expect<Bytes>(text, kBytes, "a size such as 70GiB");
}
Expectation expectation(std::string_view text, const Duration&) {
  return expect<Duration>(text, kDurations, "a duration such as 30min");
}

}  // namespace troupe
