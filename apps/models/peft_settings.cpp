#include "apps/models/peft_settings.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

using PeftJson = nlohmann::json;

constexpr int64_t kLongestPeftConfig = int64_t{1} << 24;  // bytes

// Keys that are read below, and keys that do not change what a trained adapter computes.
constexpr std::array<std::string_view, 28> kPeftKeys = {"peft_type",
                                                        "task_type",
                                                        "auto_mapping",
                                                        "peft_version",
                                                        "revision",
                                                        "inference_mode",
                                                        "r",
                                                        "target_modules",
                                                        "lora_alpha",
                                                        "lora_dropout",
                                                        "use_rslora",
                                                        "use_dora",
                                                        "init_lora_weights",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "megatron_core",
                                                        "qalora_group_size",
                                                        "target_parameters",
                                                        "base_model_name_or_path",
                                                        "runtime_config",
                                                        "loftq_config",
                                                        "corda_config",
                                                        "lora_ga_config",
                                                        "bias",
                                                        "fan_in_fan_out",
                                                        "ensure_weight_tying"};

[[noreturn]] void refuse_peft_key(const std::string& file, const std::string& key,
                                  const PeftJson& value, const std::string& why) {
  fail(Code::kBadModelConfig, file, key, "is", value.dump() + why);
}

bool is_setting_off(const PeftJson& value) {
  return value.is_null() || value == false || value == "none" ||
         (value.is_structured() && value.empty());
}

void require_peft_keys(const std::string& file, const PeftJson& config) {
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kPeftKeys, key) != kPeftKeys.end() || is_setting_off(value)) continue;
    refuse_peft_key(file, key, value,
                    ", which the adapters of this program do not have; merge it with PEFT "
                    "(merge_and_unload) and import the whole model");
  }
  for (const char* key : {"bias", "fan_in_fan_out"}) {
    const PeftJson value = config.value(key, PeftJson());
    if (!is_setting_off(value)) {
      refuse_peft_key(file, key, value, ", which is not supported: it must be off");
    }
  }
}

// Some beginnings of A and B take a part of the weight, which the base then lacks.
void require_whole_base(const std::string& file, const PeftJson& config) {
  const PeftJson begin = config.value("init_lora_weights", PeftJson(true));
  if (begin.is_boolean() || begin == "gaussian" || begin == "eva" || begin == "orthogonal") return;
  refuse_peft_key(file, "init_lora_weights", begin,
                  ", which changes the base's weights: convert the adapter with PEFT "
                  "(path_initial_model_for_weight_conversion)");
}

// "0.19.1" and on, false; a version that is not said is an old one.
bool is_before_0_19(const std::string& version) {
  const size_t dot = version.find('.');
  int64_t major = 0, minor = 0;
  if (dot == std::string::npos || !from_text(version.substr(0, dot), major)) return true;
  const std::string rest = version.substr(dot + 1);
  if (!from_text(rest.substr(0, rest.find('.')), minor)) return true;
  return std::pair(major, minor) < std::pair(int64_t{0}, int64_t{19});
}

PeftJson read_peft_json(const std::string& file) {
  const std::string text = read_file(file, Code::kBadModelConfig, kLongestPeftConfig);
  PeftJson out = PeftJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!out.is_object()) fail(Code::kBadModelConfig, file, "is no JSON object");
  return out;
}

PeftSettings peft_settings_of(const std::string& file, const PeftJson& config) {
  if (config.value("peft_type", PeftJson()) != "LORA") {
    refuse_peft_key(file, "peft_type", config.value("peft_type", PeftJson()),
                    "; LORA alone is read");
  }
  require_peft_keys(file, config);
  require_whole_base(file, config);
  PeftSettings out;
  out.factors = {.rank = config.at("r").get<int64_t>(),
                 .alpha = config.at("lora_alpha").get<double>(),
                 .rslora = config.value("use_rslora", false),
                 .dropout = config.value("lora_dropout", 0.0),
                 .dora = config.value("use_dora", false)};
  if (!(out.factors.dropout >= 0 && out.factors.dropout < 1)) {
    refuse_peft_key(file, "lora_dropout", config.at("lora_dropout"), "; it must be in [0, 1)");
  }
  if (out.factors.rank < 1) refuse_peft_key(file, "r", config.at("r"), "; it must be 1 or more");
  const PeftJson version = config.value("peft_version", PeftJson());
  out.turned = is_before_0_19(version.is_string() ? version.get<std::string>() : "");
  const PeftJson parameters = config.value("target_parameters", PeftJson());
  if (parameters.is_array()) out.parameters = parameters.get<std::vector<std::string>>();
  return out;
}

}  // namespace

PeftSettings read_peft_settings(const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  const PeftJson config = read_peft_json(file);
  try {
    return peft_settings_of(file, config);
  } catch (const PeftJson::exception& e) {
    fail(Code::kBadModelConfig, file, "is no adapter's:", e.what());
  }
}

}  // namespace troupe
