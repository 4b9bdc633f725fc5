#include "troupe/train/recipe/foreign/shell_scope.h"

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

// A line `A="$A $A"` doubles what A holds. Of a real script all values together are some KB.
constexpr size_t kMostOfOne = size_t{1} << 20;
constexpr size_t kMostOfAll = size_t{8} << 20;
constexpr size_t kMostWords = size_t{32} << 20;  // a script may have 4 MiB, and loops
constexpr size_t kMostCommands = 100'000;
constexpr size_t kDeepestFunction = 32;  // functions in functions
constexpr int64_t kMostArguments = 1000;

size_t bytes_of(const ShellScope::Words& words) {
  size_t out = 0;
  for (const ShellWord& word : words) out += word.text.size() + sizeof(ShellWord);
  return out;
}

}  // namespace

ShellScope::ShellScope(const std::map<std::string, std::string>& given, const std::string& file)
    : file_(file) {
  for (const auto& [name, value] : given) {
    int64_t number = 0;
    if (!from_text(name, number) || number < 1 || number > kMostArguments) {
      variables_[name] = {{value, 0}};
      continue;
    }
    if (static_cast<size_t>(number) > arguments.size()) arguments.resize(number);
    arguments[number - 1] = value;
  }
}

std::vector<std::pair<std::string, ShellWord>> ShellScope::texts_of_flags() const {
  std::vector<std::pair<std::string, ShellWord>> out;
  for (const auto& [name, words] : variables_) {
    if (words.size() != 1) continue;
    const size_t first = words[0].text.find_first_not_of(" \t\n");
    if (first != std::string::npos && words[0].text.compare(first, 2, "--") == 0) {
      out.emplace_back(name, words[0]);
    }
  }
  std::ranges::stable_sort(out, {}, [](const auto& one) { return one.second.line; });
  return out;
}

const ShellScope::Words* ShellScope::find(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

void ShellScope::set(const std::string& name, Words value, bool more) {
  Words& old = variables_[name];
  size_t& held = held_[name];
  if (!more) old.clear(), held = 0;
  held += bytes_of(value);
  if (held > kMostOfOne) fail_growth(name + " grows over 1 MiB");
  // A text grows, an array gets more words.
  const bool array = std::find(arrays.begin(), arrays.end(), name) != arrays.end();
  if (more && !array && old.size() == 1 && value.size() == 1) {
    old[0].text += value[0].text;
    return;
  }
  old.insert(old.end(), value.begin(), value.end());
}

void ShellScope::set_element(const std::string& name, const std::string& key,
                             const ShellWord& value, bool more) {
  int64_t index = 0;
  if (is_keyed(name) || !from_text(key, index)) return set(name + '[' + key + ']', {value}, more);
  Words& words = variables_[name];
  if (index < 0) index += static_cast<int64_t>(words.size());
  constexpr int64_t kMostElements = 10'000;
  if (index < 0 || index > kMostElements) return;
  const auto at = static_cast<size_t>(index);
  size_t& held = held_[name];
  held += value.text.size() + sizeof(ShellWord) * (at < words.size() ? 1 : at + 1 - words.size());
  if (held > kMostOfOne) fail_growth(name + " grows over 1 MiB");
  if (at >= words.size()) words.resize(at + 1);
  words[at] = {more ? words[at].text + value.text : value.text, value.line};
}

void ShellScope::unset(const std::string& name) {
  variables_.erase(name);
  held_.erase(name);
}

void ShellScope::keep_local(const std::string& name) {
  if (frames_.empty()) return;
  const Words* const old = find(name);
  frames_.back().locals.emplace(name, old == nullptr ? std::nullopt : std::optional(*old));
  count_value(old == nullptr ? 0 : bytes_of(*old));
}

ShellScope::Words ShellScope::given_arguments() const {
  Words out;
  for (const std::optional<std::string>& argument : arguments) {
    if (!argument) break;
    out.push_back({*argument, line});
  }
  return out;
}

void ShellScope::enter(const Words& words) {
  if (frames_.size() >= kDeepestFunction) fail_growth("functions call each other without end:");
  Frame frame;
  frame.arguments = std::exchange(arguments, {});
  for (const ShellWord& word : words) arguments.emplace_back(word.text);
  frames_.push_back(std::move(frame));
}

void ShellScope::leave() {
  arguments = std::move(frames_.back().arguments);
  for (auto& [name, value] : frames_.back().locals) {
    unset(name);
    if (value) set(name, std::move(*value), /*more=*/false);
  }
  frames_.pop_back();
}

void ShellScope::count_value(size_t bytes) {
  values_ += bytes;
  if (values_ > kMostOfAll) fail_growth("what variables are replaced by grows over 8 MiB");
}

void ShellScope::count_words(size_t bytes) {
  words_ += bytes;
  if (words_ > kMostWords) fail_growth("the words of its commands grow over 32 MiB");
}

void ShellScope::count_command() {
  if (++commands_ <= kMostCommands) return;
  fail(
      Code::kBadValue, file_ + ':' + std::to_string(line), "has run", std::to_string(kMostCommands),
      "commands without an end: a loop that ends by what a command does. Nothing is run here; give "
      "the words of the command alone");
}

void ShellScope::fail_growth(const std::string& what) const {
  fail(Code::kBadValue, file_ + ':' + std::to_string(line), what,
       "with the values of other variables; a script of arguments holds some KB. Write its value "
       "out, or give the words of the command alone");
}

}  // namespace troupe
