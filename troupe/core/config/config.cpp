#include "troupe/core/config/config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "troupe/core/text/units.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

std::string quoted(std::string_view text) {
  return '"' + std::string(text) + '"';
}

std::string_view leaf(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

// Each value of an assignment has a copy of its source, which need not show a list of thousands.
std::string source_of(const std::string& assignment, const std::string& option) {
  constexpr size_t kShown = 200;
  std::string out = option + ' ' + assignment;
  if (out.size() <= kShown) return out;
  out.resize(utf8_before(out, kShown + 1));
  return out + "...";
}

// A value of --set has no line; its source says it all.
void forget_lines(Yaml& y, const std::string& source) {
  y.where = {source};
  for (Yaml& item : y.items) forget_lines(item, source);
  for (Yaml::Field& field : y.fields) {
    field.where = {source};
    forget_lines(field.value, source);
  }
}

// What other programs call a value.
struct OtherWord {
  std::string_view theirs, ours;
};
constexpr OtherWord kOtherWords[] = {{"gpu", "cuda"},
                                     {"nvidia", "cuda"},
                                     {"float32", "fp32"},
                                     {"bfloat16", "bf16"},
                                     {"float16", "fp16"}};

// Ours for theirs, where it is one of those that are `wanted`.
std::string_view translated(const std::string& text, std::string_view wanted) {
  const std::string word = normalized(text);
  for (const auto& [theirs, ours] : kOtherWords) {
    const size_t at = word == theirs ? wanted.find(ours) : std::string_view::npos;
    if (at != std::string_view::npos) return ours;
  }
  return {};
}

// "1000" for "1e3", "1_000" or "1k" where a whole number is wanted; empty: it is none.
std::string whole_number(const std::string& text, std::string_view wanted) {
  constexpr double kExact = 9007199254740992;  // doubles hold all whole numbers up to here
  if (!wanted.starts_with("an integer") && !wanted.starts_with("a whole number")) return {};
  std::string plain = text;
  std::erase_if(plain, [](char c) { return c == '_' || c == ','; });
  Count count;
  if (from_text(plain, count) || from_text(expectation(plain, count).guess, count)) {
    const std::string digits = to_text(count.value);
    return digits == text ? "" : digits;  // a number that is too large as it is
  }
  double value = 0;
  if (!from_text(plain, value) || value != std::trunc(value) || std::abs(value) > kExact) return {};
  const std::string digits = to_text(static_cast<int64_t>(value));
  return digits == text ? "" : digits;
}

// What was probably meant.
std::string guess_of(const std::string& text, const Expectation& expected) {
  const std::string_view known = translated(text, expected.wanted);
  if (!known.empty()) return std::string(known);
  return expected.guess.empty() ? whole_number(text, expected.wanted) : expected.guess;
}

// A section's name for the reader of a message.
std::string section(std::string_view path) {
  return path.empty() ? "the recipe" : std::string(path);
}

}  // namespace

Yaml override_yaml(const std::string& assignment, const std::string& option) {
  constexpr int64_t kDeepest = 64;
  const std::string source = source_of(assignment, option);
  const auto equals = assignment.find('=');
  if (equals == 0 || equals == std::string::npos) {
    fail(Code::kBadOverride, source, "not of the form path=value");
  }
  Yaml value = parse_yaml(assignment.substr(equals + 1), source);
  forget_lines(value, source);
  std::string path = assignment.substr(0, equals);
  if (std::ranges::count(path, '.') >= kDeepest) {
    fail(Code::kBadOverride, source, "nested deeper than", kDeepest);
  }
  for (;;) {
    const auto dot = path.rfind('.');
    Yaml outer;
    outer.kind = Yaml::Kind::kMap;
    outer.where = {source};
    outer.fields.push_back({path.substr(dot + 1), {source}, std::move(value)});
    if (dot == std::string::npos) return outer;
    value = std::move(outer);
    path.resize(dot);
  }
}

namespace detail {

Sources Reader::finish() {
  if (!faults_.empty()) throw Error(faults_, first_);
  return std::move(sources_);
}

Sources Reader::finish(std::vector<std::string>& unread, std::optional<Error>& faults) {
  if (!faults_.empty()) faults.emplace(faults_, first_);
  unread.insert(unread.end(), unread_.begin(), unread_.end());
  return std::move(sources_);
}

void Reader::add_fault(Code code, const Where& where, const std::string& what) {
  if (faults_.empty()) {
    first_ = code;
  } else {
    faults_ += '\n';
  }
  faults_ += fault_text(to_text(where), code, what);
}

void Reader::refuse(const Yaml& y, const std::string& path, const Expectation& expected) {
  unread_.push_back(path);
  std::string what = section(path) + " must be " + expected.wanted;
  switch (y.kind) {
    case Yaml::Kind::kNull: what += ", and is empty"; break;
    case Yaml::Kind::kScalar: what += ", not " + quoted(y.text); break;
    case Yaml::Kind::kList: what += ", not a list"; break;
    case Yaml::Kind::kMap: what += ", not a section"; break;
  }
  const std::string guess =
      y.kind == Yaml::Kind::kScalar ? guess_of(y.text, expected) : expected.guess;
  if (!guess.empty()) what += "; did you mean " + quoted(guess) + "?";
  add_fault(Code::kBadValue, y.where, what);
}

void Reader::refuse_choice(const Yaml& y, const std::string& path,
                           const std::vector<std::string_view>& kinds) {
  refuse(y, path,
         {"a section, or one of " + joined(kinds), std::string(nearest_choice(y.text, kinds))});
}

void Reader::unknown_kind(const Yaml::Field& field, const std::string& path,
                          const std::vector<std::string_view>& kinds) {
  unread_.push_back(path);
  const std::string& name = field.value.text;
  const std::string_view guess = nearest_choice(name, kinds);
  add_fault(Code::kNoSuchKind, field.where,
            "no " + field.name + " " + quoted(name) + " in " + section(path) +
                (guess.empty() ? " (there is: " + joined(kinds) + ")"
                               : "; did you mean " + quoted(guess) + "?"));
}

void Reader::given_twice(const Yaml::Field& field, const std::string& path) {
  add_fault(Code::kWrittenTwice, field.where,
            quoted(field.name) + " is written twice: " + quoted(path) + " is already given by " +
                to_text(sources_[path]));
}

void Reader::unknown_field(const Yaml::Field& field, const std::string& path,
                           const std::vector<std::string_view>& names) {
  add_fault(
      Code::kNoSuchField, field.where,
      "no field " + quoted(field.name) + " in " + section(path) + hint(field.name, path, names));
}

std::string Reader::meant_here(const std::string& name,
                               const std::vector<std::string_view>& names) {
  const std::string wanted = normalized(name);
  for (const std::string& same : {wanted, wanted + 's'}) {
    if (std::ranges::find(names, same) != names.end()) return same;
  }
  return std::string(nearest(name, names));
}

// From the surest to the vaguest: the name in other letters; the plural of it; another program's
// name for it; the same name elsewhere; a name like it here; a name much like it in a section of
// this one, then elsewhere, since of many short names one is always near; all that there is.
std::string Reader::hint(const std::string& name, const std::string& path,
                         const std::vector<std::string_view>& names) {
  const std::string wanted = normalized(name);
  if (std::ranges::find(names, wanted) != names.end()) {
    return "; did you mean " + quoted(wanted) + "?";
  }
  if (std::ranges::find(names, wanted + 's') != names.end()) {
    return "; did you mean " + quoted(wanted + 's') + "?";
  }
  const auto alias =
      std::ranges::find_if(aliases_, [&](const Alias& known) { return known.name == wanted; });
  if (alias != aliases_.end()) return "; here it is " + quoted(alias->path);
  constexpr size_t kEnough = size_t{64} << 10;  // each guess compares a name with all paths
  if (faults_.size() > kEnough) return "";
  std::string places;
  if (paths_.empty()) paths_ = list_paths_();
  std::vector<std::string_view> leaves, inner;  // inner: "" where it is not of this section
  for (const std::string& known : paths_) {
    leaves.push_back(leaf(known));
    inner.push_back(known.starts_with(join(path, "")) ? leaves.back() : std::string_view());
    if (leaves.back() != wanted) continue;
    const bool at_root = known.size() == wanted.size();
    places +=
        (places.empty() ? "" : " or ") +
        (at_root ? "the top level" : quoted(known.substr(0, known.size() - wanted.size() - 1)));
  }
  if (!places.empty()) return "; it belongs under " + places;
  if (const auto guess = nearest(name, names); !guess.empty()) {
    return "; did you mean " + quoted(guess) + "?";
  }
  const auto place_of_guess = [&](std::string_view guess,
                                  const std::vector<std::string_view>& from) {
    const auto at = std::ranges::find(from, guess) - from.begin();
    return "; did you mean " + quoted(paths_[static_cast<size_t>(at)]) + "?";
  };
  const size_t most = std::max<size_t>(1, name.size() / 3);
  if (!path.empty()) {
    const auto guess = nearest(name, inner, most);
    if (!guess.empty()) return place_of_guess(guess, inner);
  }
  if (const auto guess = nearest(name, leaves, most); !guess.empty()) {
    return place_of_guess(guess, leaves);
  }
  return " (there is: " + joined(names) + ")";
}

std::string Printer::comment(const std::string& path) const {
  const auto source = sources_.find(path);
  if (source == sources_.end()) return "";
  const std::string where = to_text(source->second);
  return "  # " + where.substr(0, where.find_first_of("\r\n"));  // A comment ends with its line.
}

}  // namespace detail
}  // namespace troupe
