#include "troupe/train/recipe/foreign/flag_rules.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <regex>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

// Why a recipe is not read; absent: it is.
std::optional<Code> fault_of(const std::string& recipe) {
  try {
    Recipe out;
    read_config(parse_yaml(recipe, "recipe.yaml"), out);
  } catch (const Error& error) {
    return error.code();
  }
  return {};
}

// Whether recipes have such a key, whatever its value.
bool is_key(const std::string& path) {
  std::string recipe, ends;
  for (size_t at = 0, dot = 0; dot != std::string::npos; at = dot + 1) {
    dot = path.find('.', at);
    recipe += path.substr(at, dot == std::string::npos ? dot : dot - at) +
              (dot == std::string::npos ? ": 1" : ": {");
    if (dot != std::string::npos) ends += '}';
  }
  return fault_of(recipe + ends) != Code::kNoSuchField;
}

std::vector<std::string> found_in(std::string_view text, const char* pattern) {
  const std::string copy(text);
  const std::regex regex(pattern);
  std::vector<std::string> out;
  for (std::sregex_iterator it(copy.begin(), copy.end(), regex), end; it != end; ++it) {
    out.push_back(it->str());
  }
  return out;
}

// Whether it changes anything or not, and beside whatever flags.
TEST(FlagRules, EveryFlagThatIsGivenHasALine) {
  for (const FlagRule& rule : flag_rules()) {
    const std::string flag = "--" + std::string(rule.name);
    for (const char* value : {"", " 1", " none"}) {
      const Conversion out = megatron(arguments(flag + value));
      bool listed = false;
      for (const auto* lines :
           {&out.mapped, &out.ignored, &out.deferred, &out.refused, &out.missing, &out.notes}) {
        listed |= any(*lines, flag);
      }
      EXPECT_TRUE(listed) << flag << value;
    }
  }
}

TEST(FlagRules, EveryReasonNamesKeysAndFlagsThatThereAre) {
  for (const FlagRule& rule : flag_rules()) {
    if (rule.what != FlagRule::kIgnored && rule.what != FlagRule::kRefused) continue;
    EXPECT_FALSE(rule.text.empty()) << rule.name;
    for (const std::string& key :
         found_in(rule.text,
                  R"(\b(model|train|data|parallel|checkpoint|run|log|eval)(\.[a-z_0-9]+)+)")) {
      if (key.starts_with("log.json") || key == "log.txt") continue;  // files of a run
      EXPECT_TRUE(is_key(key)) << rule.name << ": " << rule.text;
    }
    if (rule.text.find("`troupe ") != std::string::npos) continue;  // flags of a verb of ours
    for (const std::string& flag : found_in(rule.text, "--[a-z0-9-]+")) {
      if (flag == "--quiet") continue;  // of `troupe train`
      EXPECT_NE(find_flag(flag.substr(2)), nullptr) << rule.name << ": " << rule.text;
    }
  }
  EXPECT_TRUE(is_key("train.optimizer.groups"));
  EXPECT_FALSE(is_key("model.shape"));
}

// What a reason for a refusal says, tried: recipes that do what it points to, and such as do what
// it says there is not.
struct Trial {
  const char* reads;
  const char* refuses = nullptr;
};

const std::map<std::string_view, Trial>& trials() {
  static const std::map<std::string_view, Trial> all = {
      {"no-rope-freq",
       {"model: {positions: none}", "model: {overrides: [{layers: [0], positions: none}]}"}},
      {"init-method-xavier-uniform", {"model: {init_std: 0.02}", "model: {init: xavier}"}},
      {"spec", {"model: {block: {kind: parallel}}", "model: {block: {kind: mine}}"}},
      {"heterogeneous-layers-config-path", {"model: {overrides: [{layers: [0], heads: 2}]}"}},
      {"heterogeneous-layers-config-encoded-json",
       {"model: {overrides: [{layers: [0], heads: 2}]}"}},
      {"moe-router-topk-limited-devices",
       {"model: {moe: {router: {kind: sigmoid_bias, limit: {groups: 4, keep: 2}}}}"}},
      {"moe-use-upcycling", {"checkpoint: {init_from: run/step-000000}"}},
      {"moe-upcycling-granularity", {"checkpoint: {init_from: run/step-000000}"}},
      {"hierarchical-context-parallel-sizes",
       {"parallel: {context: 8}", "parallel: {context: [2, 4]}"}},
      {"fp16-lm-cross-entropy", {"train: {precision: fp64}", "train: {loss_precision: fp16}"}},
      {"fp4-format", {"train: {precision: bf16}", "train: {fp4: {}}"}},
      {"batch-invariant-mode", {"model: {layers: 2}", "run: {batch_invariant: true}"}},
      {"vocab-extra-ids", {"model: {vocab: 512}"}},
      {"use-checkpoint-args", {"model: {layers: 2}", "checkpoint: {model: true}"}},
      {"skip-train", {"model: {layers: 2}", "train: {skip: true}"}},
  };
  return all;
}

TEST(FlagRules, WhatEveryRefusalSaysIsSo) {
  size_t refused = 0;
  for (const FlagRule& rule : flag_rules()) {
    if (rule.what != FlagRule::kRefused) continue;
    ++refused;
    const auto trial = trials().find(rule.name);
    ASSERT_NE(trial, trials().end()) << rule.name << " is refused, and nothing tries its reason";
    EXPECT_FALSE(fault_of(trial->second.reads)) << rule.name << ": " << trial->second.reads;
    if (trial->second.refuses == nullptr) continue;
    EXPECT_TRUE(fault_of(trial->second.refuses)) << rule.name << ": " << trial->second.refuses;
  }
  EXPECT_EQ(refused, trials().size()) << "a flag that is tried is refused no more";
}

}  // namespace
}  // namespace troupe
