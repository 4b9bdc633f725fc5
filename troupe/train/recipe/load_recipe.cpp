#include "troupe/train/recipe/load_recipe.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/train/recipe/problems.h"

namespace troupe {
namespace {

// Where `base: text` in a file leads. It stays in the file's folder: a recipe from elsewhere reads
// no file of yours.
std::string base_path(const std::string& from, const Yaml::Field& base) {
  const std::filesystem::path name = base.value.text;
  const bool up = std::ranges::find(name, "..") != name.end();
  if (base.value.kind != Yaml::Kind::kScalar || name.empty() || name.is_absolute() || up) {
    fail(Code::kBadValue, to_text(base.where) + ": base",
         "names a file in the recipe's folder or below it, without ..");
  }
  const std::filesystem::path folder = std::filesystem::path(from).parent_path(),
                              path = folder / name;
  std::error_code no_home;
  std::error_code no_file;  // what is not there, who opens it says
  const auto home = std::filesystem::canonical(folder.empty() ? "." : folder, no_home);
  const auto real = std::filesystem::canonical(path, no_file);
  if (!no_home && !no_file && std::ranges::mismatch(home, real).in1 != home.end()) {
    fail(Code::kBadValue, to_text(base.where) + ": base", to_text(base.value.text),
         "is a link that leads out of the recipe's folder, to", to_text(real.string()));
  }
  return path.string();
}

// The file and what it is based on, the deepest base first, without their fields `base`.
std::vector<Yaml> with_bases(const std::string& path) {
  constexpr size_t kMost = 8;
  std::vector<Yaml> out;
  for (std::string next = path; !next.empty();) {
    if (out.size() == kMost) {
      fail(Code::kBadValue, path, "is based on more than", kMost - 1, "files, or on itself");
    }
    Yaml file = load_yaml(next);
    const std::string from = std::exchange(next, "");
    const auto base = std::ranges::find(file.fields, "base", &Yaml::Field::name);
    if (base != file.fields.end()) {
      next = base_path(from, *base);
      file.fields.erase(base);
    }
    if (file.where.file.empty()) file.where.file = from;
    out.insert(out.begin(), std::move(file));
  }
  return out;
}

// A file of nothing, of comments, or of `base` alone.
bool holds_nothing(const Yaml& file) {
  return file.kind == Yaml::Kind::kNull || (file.kind == Yaml::Kind::kMap && file.fields.empty());
}

struct ReadRecipe {
  Recipe recipe;
  Recipe as_meant;                  // with the values of unknown names (read_config)
  std::vector<std::string> unread;  // Unread::paths of all files and --set
  bool has_gaps = false;            // a whole file or --set could not be read
};

// The file with its bases, then each --set; what is wrong goes to `problems`.
ReadRecipe read_all(const std::string& path, const std::vector<std::string>& sets, Sources& sources,
                    Problems& problems) {
  ReadRecipe out;
  const auto read = [&](const Yaml& document) {
    Unread unread, same;
    read_config(document, out.as_meant, same, /*as_meant=*/true);
    for (auto& [name, where] : read_config(document, out.recipe, unread)) sources[name] = where;
    out.unread.insert(out.unread.end(), unread.paths.begin(), unread.paths.end());
    if (unread.faults) throw *unread.faults;
  };
  std::vector<Yaml> documents;
  const auto load = [&](const std::string& what, const auto& load_it) {
    const size_t before = problems.lines().size();
    problems.gather(what, load_it);
    out.has_gaps |= problems.lines().size() > before;
  };
  load(path, [&] {
    documents = with_bases(path);
    if (sets.empty() && std::ranges::all_of(documents, holds_nothing)) {
      fail(Code::kBadValue, path,
           "is empty. A recipe has the sections model, data, train and checkpoint; "
           "recipes/quickstart.yaml is a whole one, and `base: quickstart.yaml` builds on it");
    }
  });
  for (const Yaml& file : documents) problems.gather(file.where.file, [&] { read(file); });
  for (const std::string& set : sets) {
    std::optional<Yaml> document;
    load("--set", [&] { document = override_yaml(set); });
    if (document) problems.gather("--set", [&] { read(*document); });
  }
  return out;
}

// Whether a fault's line speaks of a field that was not read, or of one beside an unknown name.
bool is_of_unread(const std::string& line, const std::vector<std::string>& unread) {
  return std::ranges::any_of(unread, [&](const std::string& path) {
    const size_t at = path.empty() ? 0 : line.find(path);
    if (at == std::string::npos) return false;
    const size_t end = at + path.size();
    return path.empty() || end == line.size() ||
           std::string_view(".: [").find(line[end]) != std::string_view::npos;
  });
}

struct ValueFaults {
  std::vector<std::string> lines;
  Code code = Code::kBadValue;
};

// What is wrong with the values, but for what the gaps of what was read explain.
ValueFaults faults_of(const Recipe& recipe, const std::vector<std::string>& unread,
                      const Sources& sources) {
  ValueFaults out;
  try {
    validate(recipe, sources);
  } catch (const Error& error) {
    out.code = error.code();
    std::istringstream lines(error.what());
    for (std::string line; std::getline(lines, line);) {
      if (!is_of_unread(line, unread)) out.lines.push_back(line);
    }
  }
  return out;
}

// Throws the faults of values that are there whatever the unknown names were to be: with their
// values read as meant, and without them. Of "model.widht=3" neither width 3 is a fault of its own,
// nor the width that was not given.
void judge_what_was_read(const ReadRecipe& read, const Sources& sources) {
  const ValueFaults meant = faults_of(read.as_meant, read.unread, sources);
  if (meant.lines.empty()) return;
  const ValueFaults without = faults_of(read.recipe, read.unread, sources);
  std::string both;
  for (const std::string& line : meant.lines) {
    if (std::ranges::find(without.lines, line) == without.lines.end()) continue;
    both += (both.empty() ? "" : "\n") + line;
  }
  if (!both.empty()) throw Error(both, meant.code);
}

}  // namespace

Recipe load_recipe(const std::string& path, const std::vector<std::string>& sets,
                   Sources& sources) {
  Problems problems(sources);
  ReadRecipe read = read_all(path, sets, sources, problems);
  problems.throw_if_any();
  return std::move(read.recipe);
}

Recipe load_valid_recipe(const std::string& path, const std::vector<std::string>& sets,
                         Sources& sources) {
  Problems problems(sources);
  ReadRecipe read = read_all(path, sets, sources, problems);
  if (!read.has_gaps) {
    problems.gather("", [&] { judge_what_was_read(read, sources); });
  }
  problems.throw_if_any();
  return std::move(read.recipe);
}

}  // namespace troupe
