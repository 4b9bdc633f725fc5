#include "troupe/train/recipe/foreign/draft.h"

#include <algorithm>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"

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

}  // namespace

std::string quoted_yaml(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
                     text.front() != '-' && text.find_first_not_of(".-") != std::string::npos;
  return plain && text != "null" && text != "true" && text != "false" ? text : to_text(text);
}

std::string number_text(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? to_text(whole) : to_text(value);
}

void Draft::set(const std::string& path, const std::string& value, const Origin& origin) {
  if (value.find('$') != std::string::npos) {
    miss(path, origin.text + " is given from outside the file: --variable NAME=VALUE, or --set " +
                   path + "=...");
    paths_.insert(path);
    return;
  }
  const std::string assignment = path + '=' + value;
  try {
    for (auto& [name, where] : read_config(override_yaml(assignment), recipe_)) {
      sources_[name] = where;
    }
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
  commands_ += "# beside the run: " + command + '\n';
}

void Draft::refuse(const Origin& origin, const std::string& why, Code code) {
  const std::string place = origin.place.empty() ? "" : origin.place + ": ";
  out_.refused.push_back(place + to_text(code) + ' ' + origin.text + ": " + why);
}

void Draft::need(const std::string& path, std::string_view why) {
  if (!has(path) && !paths_missing_.contains(path)) miss(path, std::string(why));
}

void Draft::miss(const std::string& path, const std::string& why) {
  out_.missing.push_back(path + ": " + why);
  paths_missing_.insert(path);
}

void Draft::leave_open(const Origin& origin) {
  open_ = true;
  const std::string line =
      origin.text + " is given from outside the file: --variable NAME=VALUE gives it";
  if (std::find(out_.missing.begin(), out_.missing.end(), line) == out_.missing.end()) {
    out_.missing.push_back(line);
  }
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
    for (size_t depth = kept; depth < parts.size(); ++depth) {
      out.append(2 * depth, ' ').append(parts[depth]).append(":");
      if (depth + 1 < parts.size()) out += '\n';
    }
    out.append(" ").append(line->value).append("  # ").append(line->origin).append("\n");
    open = parts;
  }
  return out;
}

// The recipe is read back as it is written, so that what `check` says is of the file.
void Draft::try_out() {
  std::string said;
  try {
    auto written = std::make_shared<Recipe>();
    const Sources sources = read_config(parse_yaml(out_.recipe, "the recipe"), *written);
    validate(*written, sources);
    out_.checked = std::move(written);
  } catch (const Error& error) {
    said = error.what();
  }
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    // The line names a field that is still to be filled in: it is no fault yet.
    const bool open =
        std::any_of(paths_missing_.begin(), paths_missing_.end(),
                    [&](const std::string& path) { return line.find(path) != std::string::npos; });
    if (open) continue;
    open_ ? out_.missing.push_back("until then `check` says: " + line)
          : out_.faults.push_back(line);
  }
}

Conversion Draft::finish(bool whole) {
  out_.recipe = text();
  out_.whole = whole;
  if (whole && out_.refused.empty()) try_out();
  return std::move(out_);
}

}  // namespace troupe
