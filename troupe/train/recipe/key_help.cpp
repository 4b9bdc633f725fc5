#include "troupe/train/recipe/key_help.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

bool ends_in(std::string_view path, std::string_view end) {
  return path == end || (path.ends_with(end) && path[path.size() - end.size() - 1] == '.');
}

std::string section_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string details(const FieldInfo& field, const std::vector<FieldInfo>& fields) {
  std::string out = field.path + "\n  " + field.help + "\n  type     " + field.type + '\n';
  if (!field.value.empty()) out += "  default  " + field.value + '\n';
  if (!field.only_of.empty() && !field.path.ends_with(".kind")) {
    out += "  kinds    " + field.only_of + '\n';
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

// Path and help of each field that has `part` in its name, then of those that have it in their
// path, at most kMost; empty: there is none. "aux loss" finds aux_loss.
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
  if (std::ssize(found) == 1) return details(*found[0], fields);
  std::string out;
  for (int64_t i = 0; i < std::min(kMost, std::ssize(found)); ++i) {
    const FieldInfo& field = *found[static_cast<size_t>(i)];
    out += field.path + "\n  " + field.help + '\n';
  }
  if (std::ssize(found) > kMost) {
    out += "and " + std::to_string(std::ssize(found) - kMost) + " more\n";
  }
  return out;
}

// The keys of a recipe file: a recipe's and `base`.
struct RecipeFile : Recipe {
  std::string base;
  static void visit(auto& r, auto&& f) {
    f("base", r.base, "A recipe beside this one that is read first.");
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
    if (field.path == wanted) return details(field, fields);
  }
  for (const FieldInfo& field : fields) {
    if (ends_in(field.path, wanted)) out += details(field, fields);
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
  fail(Code::kNoSuchField, key, "is not a key of a recipe",
       guess.empty() ? "" : "; did you mean \"" + std::string(guess) + "\"?");
}

void write_recipe_schema(std::ostream& os) {
  write_schema(os, RecipeFile());
  os << '\n';
}

void write_recipe_keys(std::ostream& os) {
  const auto cell = [](const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
    return out;
  };
  std::string section;
  for (const FieldInfo& field : recipe_fields()) {
    const std::string top = field.path.substr(0, field.path.find('.'));
    if (top != section) {
      os << (section.empty() ? "" : "\n") << "## " << top
         << "\n| key | type | default | meaning |\n|---|---|---|---|\n";
      section = top;
    }
    const bool of_kind = !field.only_of.empty() && !field.path.ends_with(".kind");
    os << "| `" << field.path << "` | " << cell(field.type) << " | "
       << (field.value.empty() ? "" : '`' + cell(field.value) + '`') << " | " << cell(field.help)
       << (of_kind ? " Only with kind " + field.only_of + '.' : "") << " |\n";
  }
}

}  // namespace troupe
