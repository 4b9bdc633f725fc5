#include "troupe/train/recipe/foreign/foreign_format.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

bool holds(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

// A line "[name]" or "[name.name]" of lower-case letters alone, as no script has one.
bool has_table(const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.size() < 3 || line.front() != '[' || line.back() != ']') continue;
    const std::string name = line.substr(1, line.size() - 2);
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos)
      return true;
  }
  return false;
}

// MegaBlocks' call, and not TrainingArguments(..).
bool has_arguments_call(const std::string& text) {
  constexpr std::string_view kCall = "Arguments(";
  for (size_t at = text.find(kCall); at != std::string::npos; at = text.find(kCall, at + 1)) {
    const char before = at == 0 ? '\n' : text[at - 1];
    const bool name = (before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z');
    if (!name && before != '_') return true;
  }
  return false;
}

// Whether the first line that says something begins as a Python module does.
bool is_python(const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#!")) return line.find("python") != std::string::npos;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    constexpr std::array<std::string_view, 7> kBegins = {"import ", "from ",   "def ", "class ",
                                                         "\"\"\"",  "r\"\"\"", "@"};
    return std::any_of(kBegins.begin(), kBegins.end(),
                       [&](std::string_view begin) { return line.starts_with(begin); });
  }
  return false;
}

std::string python_format(const std::string& text) {
  constexpr std::string_view kTitan =
      "torchtitan's Python, which is not run: its configs of before 2026, in TOML, are read; else "
      "begin from a preset (`troupe config presets`)";
  constexpr std::string_view kOlmo =
      "OLMo-core's Python, which is not run: olmoe-1b-7b is a preset (model.preset)";
  if (holds(text, "torchtitan")) return std::string(kTitan);
  if (holds(text, "olmo_core")) return std::string(kOlmo);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOthers = {
      {{"nemo_automodel", "NeMo Automodel's"},
       {"megatron.bridge", "Megatron-Bridge's, by `python3 -m troupe_foreign.recipe` as data;"},
       {"nemo", "NeMo's"},
       {"nanotron", "nanotron's"},
       {"transformers", "a script of transformers, in"},
       {"megatron", "Megatron-LM's"},
       {"llmfoundry", "LLM-Foundry's"}}};
  for (const auto& [word, name] : kOthers) {
    if (holds(text, word)) return std::string(name) + " Python, which is not run";
  }
  return "Python, which is not run: of it MegaBlocks' Arguments(...) alone are read";
}

// Megatron-LM's tests name a flag twice, and PyYAML takes the last one: the others become comments.
std::string without_repeated_flags(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::set<std::string> seen;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const size_t first = line->find_first_not_of(' ');
    const size_t colon = line->find(": ");
    if (first == std::string::npos || first == 0 || colon == std::string::npos) continue;
    const std::string key = line->substr(0, colon);
    if (key.compare(first, 2, "--") != 0) continue;
    if (!seen.insert(key).second) *line = "#" + *line;
  }
  std::string out;
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

struct Mark {
  std::string_view path;  // that such a file has
  std::string_view name;
};

// The first that fits names the format.
constexpr Mark kMarks[] = {
    {"model._target_", "NeMo Automodel's YAML"},
    {"step_scheduler", "NeMo Automodel's YAML"},
    {"exp_manager", "NeMo's YAML"},
    {"trainer.devices", "NeMo's YAML"},
    {"model._component_", "torchtune's YAML"},
    {"model.model_config", "nanotron's YAML"},
    {"parallelism.dp", "nanotron's YAML"},
    {"base_model", "Axolotl's YAML, which `python3 -m troupe_foreign.recipe` reads"},
    {"model_name_or_path",
     "the YAML of LLaMA-Factory, which `python3 -m troupe_foreign.recipe` reads, or of TRL"},
    {"modules.pre_trainer", "Primus's YAML, which `python3 -m troupe_foreign.recipe` reads"},
    {"experiment.task", "FlagScale's YAML, which `python3 -m troupe_foreign.recipe` reads"},
    {"pipe_parallel_size", "GPT-NeoX's YAML"},
    {"pipe-parallel-size", "GPT-NeoX's YAML"},
    {"zero_optimization",
     "DeepSpeed's JSON, which holds no model: convert the script that names it"},
    {"train_micro_batch_size_per_gpu", "the settings of GPT-NeoX or DeepSpeed"},
    {"train_iters", "GPT-NeoX's YAML"},
    {"train-iters", "GPT-NeoX's YAML"},
};

std::string yaml_format(const Yaml& map) {
  if (yaml_at(map, "model_type") != nullptr && yaml_at(map, "architectures") != nullptr) {
    return "a model's config.json: `troupe import` reads its folder";
  }
  const bool old_olmo =
      yaml_at(map, "model.mlp_ratio") != nullptr && yaml_at(map, "train_loader") == nullptr;
  if (old_olmo) return "the YAML of OLMo before OLMo-core";
  for (const Mark& mark : kMarks) {
    if (yaml_at(map, std::string(mark.path)) != nullptr) return std::string(mark.name);
  }
  return "";
}

}  // namespace

std::optional<Yaml> yaml_map(const std::string& text, const std::string& file) {
  try {
    Yaml y = parse_yaml(without_repeated_flags(text), file);
    return y.kind == Yaml::Kind::kMap ? std::optional(std::move(y)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

const Yaml* yaml_at(const Yaml& map, const std::string& path) {
  const Yaml* at = &map;
  std::istringstream in(path);
  for (std::string part; std::getline(in, part, '.');) {
    if (at->kind != Yaml::Kind::kMap) return nullptr;
    const auto found = std::find_if(at->fields.begin(), at->fields.end(),
                                    [&](const Yaml::Field& field) { return field.name == part; });
    if (found == at->fields.end()) return nullptr;
    at = &found->value;
  }
  return at;
}

std::string unread_format(const std::string& text, const std::string& file) {
  if (has_arguments_call(text)) return "";
  if (is_python(text)) return python_format(text);
  if (has_table(text)) return "";
  const std::optional<Yaml> map = yaml_map(text, file);
  return map ? yaml_format(*map) : "";
}

ForeignKind foreign_kind(const std::string& text) {
  if (has_arguments_call(text)) return ForeignKind::kMegaBlocks;
  if (has_table(text)) return ForeignKind::kTorchtitan;
  const std::optional<Yaml> map = yaml_map(text, "");
  if (!map || yaml_at(*map, "MODEL_ARGS") != nullptr) return ForeignKind::kMegatron;
  for (const Yaml::Field& field : map->fields) {
    if (field.name.starts_with("moe_") || field.name == "hidden_size") {
      return ForeignKind::kMegaBlocks;
    }
  }
  for (const char* path :
       {"model.name", "model.d_model", "train_loader", "command", "max_duration"}) {
    if (yaml_at(*map, path) != nullptr) return ForeignKind::kFoundry;
  }
  return ForeignKind::kAuto;
}

}  // namespace troupe
