#include "troupe/train/recipe/foreign/megatron_yaml.h"

#include <vector>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/foreign_format.h"
#include "troupe/train/recipe/foreign/shell_expand.h"

namespace troupe {
namespace {

// At blanks that stand outside quotes and brackets.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> out(1);
  char quote = '\0';
  int depth = 0;
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '"' || c == '\'') {
      quote = c;
    }
    depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    const bool blank = c == ' ' || c == '\t' || c == '\n';
    if (blank && quote == '\0' && depth <= 0) {
      if (!out.back().empty()) out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

void add_value(const Yaml& value, ShellExpand& expand, ShellArguments& out) {
  const int line = value.where.line;
  for (const std::string& part : parts_of(expand.here({value.text, false, line}))) {
    out.words.push_back({part, line});
  }
}

}  // namespace

ShellArguments megatron_yaml_arguments(const Yaml& map,
                                       const std::map<std::string, std::string>& variables,
                                       const std::string& file, Draft& draft) {
  ShellScope scope(variables, file);
  ShellExpand expand(scope);
  ShellArguments out;
  out.program = "pretrain_gpt.py";
  for (const Yaml::Field& section : map.fields) {
    const Origin origin{section.name, to_text(section.where)};
    if (section.name == "ENV_VARS") draft.ignore(origin, "the environment of its program");
    if (section.name != "MODEL_ARGS") {
      if (section.name != "ENV_VARS") draft.ignore(origin, "how its tests run it");
      continue;
    }
    if (section.value.kind != Yaml::Kind::kMap) {
      fail(Code::kBadValue, to_text(section.where), "MODEL_ARGS holds flags: \"--num-layers: 2\"");
    }
    for (const Yaml::Field& flag : section.value.fields) {
      const Yaml& value = flag.value;
      if (value.text == "false" || value.text == "False") continue;
      out.words.push_back({flag.name, flag.where.line});
      if (value.text == "true" || value.text == "True") continue;
      if (value.kind == Yaml::Kind::kScalar) add_value(value, expand, out);
      for (const Yaml& item : value.items) add_value(item, expand, out);
    }
  }
  return out;
}

}  // namespace troupe
