#include "troupe/train/recipe/key_help.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

bool ends_in(std::string_view path, std::string_view end) {
  return path == end || (path.ends_with(end) && path[path.size() - end.size() - 1] == '.');
}

// The table's line of that path: a whole path first, then the end of one.
std::string text_of(std::string_view path) {
  for (const KeyHelp& line : key_help()) {
    if (line.path == path) return std::string(line.text);
  }
  for (const KeyHelp& line : key_help()) {
    if (line.path.starts_with('*') && path.ends_with(line.path.substr(1))) {
      return std::string(line.text);
    }
  }
  return {};
}

std::string section_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string told(const FieldInfo& field, const std::vector<FieldInfo>& fields) {
  std::string out = field.path + "\n  " + text_of(field.path) + "\n  type     " + field.type + '\n';
  if (!field.value.empty()) out += "  default  " + field.value + '\n';
  if (!field.only_of.empty() && !field.path.ends_with(".kind")) {
    out += "  of kind  " + field.only_of + '\n';
  }
  std::string names, beside;
  for (const Alias& alias : Recipe::aliases()) {
    if (alias.path == field.path) names += (names.empty() ? "" : ", ") + std::string(alias.name);
  }
  if (!names.empty()) out += "  known as " + names + '\n';
  const bool is_section = field.type.find("section") != std::string::npos;
  const std::string inside = is_section
                                 ? field.path + (field.type.starts_with("a list") ? "[]" : "")
                                 : section_of(field.path);
  for (const FieldInfo& other : fields) {
    if (section_of(other.path) != inside || other.path == field.path) continue;
    beside += (beside.empty() ? "" : ", ") + other.path.substr(other.path.rfind('.') + 1);
  }
  if (!beside.empty()) out += (is_section ? "  holds    " : "  beside   ") + beside + '\n';
  return out;
}

// A line for each field with `part` in its name, or of a section that has it in its, at most
// kMost; empty: there is none. Words may be apart: "aux loss" finds aux_loss.
std::string fields_with(const std::string& part, const std::vector<FieldInfo>& fields) {
  constexpr int64_t kMost = 30;
  std::vector<const FieldInfo*> found;
  for (const bool own_name : {true, false}) {
    for (const FieldInfo& field : fields) {
      const bool in_name =
          field.path.substr(field.path.rfind('.') + 1).find(part) != std::string::npos;
      const bool in_path = field.path.find(part) != std::string::npos;
      if (own_name ? in_name : in_path && !in_name) found.push_back(&field);
    }
  }
  if (std::ssize(found) == 1) return told(*found[0], fields);
  std::string out;
  for (int64_t i = 0; i < std::min(kMost, std::ssize(found)); ++i) {
    const std::string& path = found[static_cast<size_t>(i)]->path;
    out += path + "\n  " + text_of(path) + '\n';
  }
  if (std::ssize(found) > kMost) {
    out += "and " + std::to_string(std::ssize(found) - kMost) + " more\n";
  }
  return out;
}

// A recipe as a file has it.
struct RecipeFile : Recipe {
  std::string base;
  static void visit(auto& r, auto&& f) {
    f("base", r.base);
    Recipe::visit(r, f);
  }
};

}  // namespace

std::vector<FieldInfo> recipe_fields() {
  return describe(Recipe());
}

std::string explain_key(const std::string& key) {
  const std::vector<FieldInfo> fields = recipe_fields();
  const std::string wanted = normalized(key);
  std::string out;
  for (const FieldInfo& field : fields) {
    if (field.path == wanted) return told(field, fields);
  }
  for (const FieldInfo& field : fields) {
    if (ends_in(field.path, wanted)) out += told(field, fields);
  }
  if (!out.empty()) return out;
  for (const Alias& alias : Recipe::aliases()) {
    if (alias.name == wanted) return explain_key(std::string(alias.path));
  }
  out = fields_with(wanted, fields);
  if (!out.empty()) return out;
  std::vector<std::string_view> names;
  for (const FieldInfo& field : fields) {
    names.push_back(field.path);
    names.push_back(std::string_view(field.path).substr(field.path.rfind('.') + 1));
  }
  const std::string_view guess = nearest(wanted, names);
  fail(Code::kNoSuchField, key, "no field of a recipe is called so",
       guess.empty() ? "" : "; did you mean \"" + std::string(guess) + "\"?");
}

void write_recipe_schema(std::ostream& os) {
  write_schema(os, RecipeFile(), [](const std::string& path) {
    return path == "base" ? "A recipe beside this one that is read first." : text_of(path);
  });
  os << '\n';
}

}  // namespace troupe
