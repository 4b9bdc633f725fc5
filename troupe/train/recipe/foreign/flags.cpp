#include "troupe/train/recipe/foreign/flags.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/shell_letters.h"

namespace troupe {
namespace {

bool is_flag(const std::string& word) {
  return word.starts_with("--") && word.size() > 2;
}

// "'99,1,0'": the quotes that a script keeps in a variable are not meant to be of the value.
std::string without_quotes(const std::string& word) {
  const bool quoted =
      word.size() > 1 && (word[0] == '\'' || word[0] == '"') && word.back() == word[0];
  return quoted ? word.substr(1, word.size() - 2) : word;
}

bool is_open(const std::string& value) {
  return value.find('$') != std::string::npos;
}

}  // namespace

Flags::Flags(const std::vector<ShellWord>& words, std::string file, Draft& draft)
    : file_(std::move(file)), draft_(draft) {
  constexpr size_t kMostFlags = 5000;  // of real scripts the longest has some hundred
  for (const ShellWord& word : words) {
    if (is_flag(word.text)) {
      if (flags_.size() >= kMostFlags) {
        fail(Code::kBadValue, file_ + ':' + std::to_string(word.line), "gives more than",
             kMostFlags, "flags: no trainer has as many");
      }
      const auto equals = word.text.find('=');
      std::string name = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
      std::replace(name.begin(), name.end(), '_', '-');
      flags_.push_back({name, {}, word.line});
      if (equals != std::string::npos)
        flags_.back().values = {without_quotes(word.text.substr(equals + 1))};
    } else if (!flags_.empty()) {
      flags_.back().values.push_back(without_quotes(word.text));
    } else {
      draft_.refuse({word.text, file_ + ':' + std::to_string(word.line)}, "stands before any flag");
    }
  }
}

// The last one counts, as it does there.
const Flags::Flag* Flags::find(const std::string& name) {
  used_.insert(name);
  const auto found = std::find_if(flags_.rbegin(), flags_.rend(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.rend() ? nullptr : &*found;
}

bool Flags::stands(std::string_view name) const {
  return std::ranges::any_of(flags_, [&](const Flag& flag) { return flag.name == name; });
}

std::string Flags::text(const std::string& name, const std::string& otherwise) {
  const Flag* const flag = find(name);
  if (flag == nullptr) return otherwise;
  if (flag->values.size() == 1) return flag->values[0];
  if (!flag->values.empty() &&
      std::all_of(flag->values.begin() + 1, flag->values.end(), is_shell_variable)) {
    for (auto more = flag->values.begin() + 1; more != flag->values.end(); ++more) {
      draft_.leave_open({*more, file_ + ':' + std::to_string(flag->line)});
    }
    return flag->values[0];
  }
  draft_.refuse(origin_of(*flag), flag->values.empty() ? "needs a value" : "takes one value");
  return otherwise;
}

std::vector<std::string> Flags::list(const std::string& name) {
  const Flag* const flag = find(name);
  return flag == nullptr ? std::vector<std::string>() : flag->values;
}

double Flags::number(const std::string& name, double otherwise) {
  const std::string value = text(name);
  double out = otherwise;
  if (value.empty() || from_text(value, out)) return out;
  if (is_open(value)) return draft_.leave_open(origin(name)), otherwise;
  draft_.refuse(origin(name), "a number is expected");
  return otherwise;
}

int64_t Flags::whole(const std::string& name, int64_t otherwise) {
  const std::string value = text(name);
  int64_t out = otherwise;
  if (value.empty() || from_text(value, out)) return out;
  if (is_open(value)) return draft_.leave_open(origin(name)), otherwise;
  draft_.refuse(origin(name), "a whole number is expected");
  return otherwise;
}

Origin Flags::origin_of(const Flag& flag) const {
  std::string out = "--" + flag.name;
  for (const std::string& value : flag.values) out += ' ' + value;
  return {out, file_ + ':' + std::to_string(flag.line)};
}

Origin Flags::origin(const std::string& name, const std::string& otherwise) {
  const Flag* const flag = find(name);
  if (flag != nullptr) return origin_of(*flag);
  return {"--" + name + (otherwise.empty() ? " not given" : ' ' + otherwise + ", its default"), ""};
}

std::vector<Flags::Flag> Flags::unused() const {
  std::vector<Flag> out;
  for (const Flag& flag : flags_) {
    if (!used_.contains(flag.name)) out.push_back(flag);
  }
  return out;
}

std::vector<Flags::Flag> Flags::used() const {
  std::vector<Flag> out;
  std::set<std::string> names;
  for (const Flag& flag : flags_) {
    if (used_.contains(flag.name) && names.insert(flag.name).second) out.push_back(flag);
  }
  return out;
}

}  // namespace troupe
