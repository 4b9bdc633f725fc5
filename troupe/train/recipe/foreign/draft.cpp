#include "troupe/train/recipe/foreign/draft.h"

#include <algorithm>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/core/text/one_line.h"
#include "troupe/core/text/suggest.h"
#include "troupe/train/recipe/problems.h"

namespace troupe {
namespace {

// "place: E2005 text" without the first two.
std::string without_place(const std::string& line) {
  const auto code = line.find(": E");
  const auto what = code == std::string::npos ? code : line.find(' ', code + 2);
  return what == std::string::npos ? line : line.substr(what + 1);
}

// How many sections two paths have in common.
size_t common_sections(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  size_t n = 0;
  while (n + 1 < a.size() && n + 1 < b.size() && a[n] == b[n]) ++n;
  return n;
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> out;
  std::istringstream in(path);
  for (std::string part; std::getline(in, part, '.');) out.push_back(part);
  return out;
}

// "a:\n  b: value  # origin\n" of the path a.b; its first `kept` sections are open already.
std::string recipe_line(const std::vector<std::string>& parts, size_t kept,
                        const std::string& value, const std::string& origin) {
  std::string out;
  for (size_t depth = kept; depth < parts.size(); ++depth) {
    out.append(2 * depth, ' ').append(parts[depth]).append(":");
    if (depth + 1 < parts.size()) out += '\n';
  }
  return out.append(" ").append(value).append("  # ").append(one_line(origin)).append("\n");
}

// Fills in what is open, so that the rest can be looked at; false: that does not make a recipe of it.
bool stands_in(Recipe& recipe) {
  if (recipe.data.train.empty()) recipe.data.train.emplace_back(MockTokens{});
  if (recipe.checkpoint.dir.empty()) recipe.checkpoint.dir = "run";
  if (recipe.train.steps == 0 && recipe.train.tokens.value == 0) recipe.train.steps = 1 << 20;
  if (recipe.train.global_batch == 0 && recipe.train.global_batch_tokens.value == 0) {
    recipe.train.global_batch = recipe.train.micro_batch.value_or(1);
  }
  try {
    validate(recipe, {});
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

std::string quoted_yaml(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
                     text.front() != '-' && text.find_first_not_of(".-") != std::string::npos;
  return plain && text != "null" && text != "true" && text != "false" ? text : to_text(text);
}

std::string quoted_list(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + quoted_yaml(text);
  return '[' + out + ']';
}

std::string comment_line(std::string_view what, const std::string& text) {
  return "# " + std::string(what) + ": " + one_line(text) + '\n';
}

std::string number_text(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? to_text(whole) : to_text(value);
}

void Draft::set(const std::string& path, const std::string& value, const Origin& origin) {
  if (origin.place.empty() && !open_flags_.empty()) {
    miss(path, origin.text + ", unless " + open_flags_ + " gives it");
    paths_.insert(path);
    return;
  }
  if (value.find('$') != std::string::npos) {
    miss(path, origin.text + " is given from outside the file: --variable NAME=VALUE, or --set " +
                   path + "=...");
    paths_.insert(path);
    return;
  }
  if (one_line(value) != value) {
    return refuse(origin,
                  path + ": a control character, an end of a line or bytes that are no UTF-8");
  }
  try {
    read_config(parse_yaml(recipe_line(split(path), 0, value, origin.text), "recipe"), recipe_);
  } catch (const Error& error) {
    return refuse(origin, without_place(error.what()), error.code());
  }
  paths_.insert(path);
  const auto there = std::find_if(lines_.begin(), lines_.end(),
                                  [&](const Line& line) { return line.path == path; });
  if (there != lines_.end()) lines_.erase(there);
  lines_.push_back({path, value, origin.text});
  out_.mapped.push_back(origin.text + " -> " + path + ": " + value);
}

void Draft::set_text(const std::string& path, const std::string& text, const Origin& origin) {
  set(path, quoted_yaml(text), origin);
}

void Draft::ignore(const Origin& origin, std::string_view why) {
  out_.ignored.push_back(origin.text + ": " + std::string(why));
}

void Draft::defer(const Origin& origin, std::string_view why) {
  out_.deferred.push_back(origin.text + ": " + std::string(why));
}

void Draft::beside(const std::vector<Origin>& origins, const std::string& command) {
  for (const Origin& origin : origins) {
    out_.mapped.push_back(origin.text + " -> a command beside the run: " + command);
  }
  commands_ += comment_line("beside the run", command);
}

void Draft::refuse(const Origin& origin, const std::string& why, Code code) {
  const std::string place = origin.place.empty() ? "" : origin.place + ": ";
  out_.refused.push_back(place + to_text(code) + ' ' + origin.text + ": " + why);
}

void Draft::refuse_unknown(const Origin& origin, std::string_view kind, std::string_view name,
                           const std::vector<std::string_view>& known, std::string_view mark) {
  constexpr int kMostGuesses = 100;  // each compares a name with all that are known
  const std::string_view guess =
      ++guesses_ > kMostGuesses ? std::string_view() : nearest(name, known);
  std::string why = "not a " + std::string(kind) + " that is known here";
  if (!guess.empty()) why.append("; did you mean ").append(mark).append(guess).append("?");
  refuse(origin, why, Code::kNoSuchField);
}

void Draft::need(const std::string& path, std::string_view why) {
  if (!has(path) && !out_.open.contains(path)) miss(path, std::string(why));
}

void Draft::miss(const std::string& path, const std::string& why) {
  out_.missing.push_back(path + ": " + why);
  out_.open.insert(path);
}

void Draft::leave_open(const Origin& origin) {
  out_.waits = true;
  const std::string line =
      origin.text + " is given from outside the file: --variable NAME=VALUE gives it";
  if (left_open_.insert(line).second) out_.missing.push_back(line);
}

void Draft::leave_out(const Origin& origin, std::string_view why) {
  out_.missing.push_back(origin.text + ": " + std::string(why));
}

void Draft::leave_defaults_open(const Origin& origin) {
  leave_open(origin);
  open_flags_ += (open_flags_.empty() ? "" : ", ") + origin.text;
}

// Sections in the recipe's order, lines in the order in which they were set.
std::string Draft::text() const {
  std::vector<std::string> order;
  Recipe::visit(recipe_,
                [&](std::string_view name, const auto&, auto&&...) { order.emplace_back(name); });
  const auto rank = [&](const Line& line) {
    return std::find(order.begin(), order.end(), split(line.path)[0]) - order.begin();
  };
  std::vector<std::pair<std::vector<std::string>, const Line*>> sorted;
  for (const Line& line : lines_) sorted.emplace_back(split(line.path), &line);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto& a, const auto& b) { return rank(*a.second) < rank(*b.second); });
  // A section's lines come together, where its first one stands.
  for (size_t i = 0; i < sorted.size(); ++i) {
    for (size_t depth = sorted[i].first.size() - 1; depth > 0; --depth) {
      const auto mine = [&](const auto& other) {
        return common_sections(sorted[i].first, other.first) >= depth;
      };
      std::stable_partition(sorted.begin() + static_cast<int64_t>(i) + 1, sorted.end(), mine);
    }
  }
  std::string out = commands_;
  std::vector<std::string> open;
  for (const auto& [parts, line] : sorted) {
    const size_t kept = open.empty() ? 0 : common_sections(open, parts);
    out += recipe_line(parts, kept, line->value, line->origin);
    open = parts;
  }
  return out;
}

// The recipe is read back as it is written, so that what is said is what `check` says of the file.
void Draft::try_out() {
  Sources sources;
  Recipe written;
  Problems problems(sources);
  problems.gather("", [&] {
    sources = read_config(parse_yaml(out_.recipe, "the recipe"), written);
    validate(written, sources);
  });
  add_faults(out_, problems.lines());
  const bool knows_model = std::ranges::none_of(out_.open, [](const std::string& key) {
    return key.starts_with("model.") && key != "model.vocab";
  });
  if (knows_model && out_.faults.empty() && stands_in(written)) {
    out_.checked = std::make_shared<Recipe>(std::move(written));
  }
}

bool Draft::tells(std::string_view setting) const {
  const auto names = [&](const std::string& line) { return line.find(setting) != line.npos; };
  return std::ranges::any_of(out_.mapped, names) || std::ranges::any_of(out_.ignored, names) ||
         std::ranges::any_of(out_.deferred, names) || std::ranges::any_of(out_.refused, names) ||
         std::ranges::any_of(out_.missing, names) || std::ranges::any_of(out_.notes, names);
}

Conversion Draft::finish(bool whole) {
  out_.recipe = text();
  out_.whole = whole;
  if (whole && out_.refused.empty()) try_out();
  for (auto* lines : {&out_.mapped, &out_.ignored, &out_.deferred, &out_.refused, &out_.missing,
                      &out_.notes, &out_.faults}) {
    for (std::string& line : *lines) line = one_line(line);
  }
  return std::move(out_);
}

}  // namespace troupe
