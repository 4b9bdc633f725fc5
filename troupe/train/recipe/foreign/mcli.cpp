#include "troupe/train/recipe/foreign/mcli.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/foreign_format.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

// A path below the checkout that the command runs in; never one that leads out of it.
std::optional<std::string> file_at_hand(const std::string& file, const std::string& launched) {
  const fs::path path(launched);
  const bool leads_out =
      std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (path.is_absolute() || leads_out) return std::nullopt;
  std::error_code fault;
  fs::path folder = fs::absolute(fs::path(file), fault).parent_path();
  constexpr int kAbove = 4;
  for (int i = 0; i <= kAbove; ++i, folder = folder.parent_path()) {
    for (const char* below : {"", "scripts", "scripts/train"}) {
      const fs::path found = folder / below / path;
      if (fs::is_regular_file(found, fault))
        return found.lexically_relative(fs::current_path(fault)).string();
    }
  }
  return std::nullopt;
}

Yaml& made_at(Yaml& map, const std::string& path, const Where& where) {
  Yaml* at = &map;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, dot - begin);
    if (at->kind != Yaml::Kind::kMap) {
      *at = Yaml();
      at->kind = Yaml::Kind::kMap;
      at->where = where;
    }
    auto found = std::find_if(at->fields.begin(), at->fields.end(),
                              [&](const Yaml::Field& field) { return field.name == name; });
    if (found == at->fields.end()) {
      at->fields.push_back({name, where, Yaml()});
      found = at->fields.end() - 1;
    }
    at = &found->value;
    begin = dot + 1;
  }
  return *at;
}

// "train_loader.dataset.split=train_small", of the command.
void lay_over(Yaml& settings, const ShellWord& word, const std::string& file, int line) {
  const size_t sign = word.text.find('=');
  const Where where{file, line + word.line};
  Yaml value = parse_yaml("value: " + word.text.substr(sign + 1), file).fields[0].value;
  value.where = where;
  for (Yaml& item : value.items) item.where = where;
  made_at(settings, word.text.substr(0, sign), where) = std::move(value);
}

}  // namespace

Yaml launched_settings(Yaml map, const std::string& file, Draft& draft) {
  const Yaml* const command = yaml_at(map, "command");
  if (command == nullptr || yaml_at(map, "train_loader") != nullptr) return map;
  const std::string place = to_text(command->where);
  const ShellArguments launched = shell_arguments(command->text, {}, file);
  if (!launched.program.ends_with("train.py")) {
    fail(Code::kBadValue, place, "launches",
         launched.program.empty() ? "no Python file" : launched.program,
         "and not LLM-Foundry's train.py: there is no run to convert");
  }
  const auto is_setting = [](const ShellWord& word) {
    return word.text.find('=') != std::string::npos;
  };
  const auto named = std::find_if_not(launched.words.begin(), launched.words.end(), is_setting);
  if (named == launched.words.end()) fail(Code::kBadValue, place, "names no YAML to train with");
  Yaml settings;
  if (named->text.ends_with("parameters.yaml") && yaml_at(map, "parameters") != nullptr) {
    settings = *yaml_at(map, "parameters");
  } else if (const auto found = file_at_hand(file, named->text)) {
    settings = load_yaml(*found);
    draft.note("the command launches " + named->text + ", which is read from " + *found);
  } else {
    fail(Code::kBadValue, place, "launches", named->text,
         "which is not beside this file nor in the folders above it: put it there, or convert it");
  }
  if (settings.kind != Yaml::Kind::kMap)
    fail(Code::kBadValue, place, named->text, "holds no settings");
  constexpr int64_t kMostSettings = 1000;
  if (std::ranges::count_if(launched.words, is_setting) > kMostSettings) {
    fail(Code::kBadValue, place, "gives more than", kMostSettings,
         "settings: write them into the YAML that it names");
  }
  for (const ShellWord& word : launched.words) {
    if (is_setting(word)) lay_over(settings, word, file, command->where.line);
  }
  for (const Yaml::Field& field : map.fields) {
    if (field.name == "command" || field.name == "parameters") continue;
    draft.ignore({field.name, to_text(field.where)}, "mcli's: where the run is, not what it does");
  }
  return settings;
}

}  // namespace troupe
