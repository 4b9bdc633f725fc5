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
constexpr size_t kMostWork = 16'000'000;
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
  Arguments numbered;
  for (const auto& [name, value] : given) {
    int64_t number = 0;
    if (!from_text(name, number) || number < 1 || number > kMostArguments) {
      variables_[name] = {{value, 0}};
      continue;
    }
    if (static_cast<size_t>(number) > numbered.size()) numbered.resize(number);
    numbered[number - 1] = value;
  }
  set_arguments(std::move(numbered));
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
  if (more && !array_names_.contains(name) && old.size() == 1 && value.size() == 1) {
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

void ShellScope::add_array(const std::string& name) {
  if (array_names_.insert(name).second) arrays_.push_back(name);
}

void ShellScope::set_arguments(Arguments arguments) {
  count_work(arguments.size());
  arguments_ = std::move(arguments);
  const auto end =
      std::ranges::find_if_not(arguments_, [](const auto& a) { return a.has_value(); });
  num_given_ = static_cast<size_t>(end - arguments_.begin());
}

ShellScope::Words ShellScope::given_arguments() {
  count_work(num_given_);
  Words out;
  for (size_t i = 0; i < num_given_; ++i) out.push_back({*arguments_[i], line});
  return out;
}

void ShellScope::enter(const Words& words) {
  if (frames_.size() >= kDeepestFunction) fail_growth("functions call each other without end:");
  frames_.push_back({.arguments = std::move(arguments_), .num_given = num_given_, .locals = {}});
  Arguments own;
  for (const ShellWord& word : words) own.emplace_back(word.text);
  set_arguments(std::move(own));
}

void ShellScope::leave() {
  arguments_ = std::move(frames_.back().arguments);
  num_given_ = frames_.back().num_given;
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

void ShellScope::count_work(size_t steps) {
  work_ += steps;
  if (work_ > kMostWork)
    fail_growth("the words that its commands go through again grow over 16 million");
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
