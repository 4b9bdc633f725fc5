// Values that would leave their line, their quotes or their list: a conversion has the keys that
// the program was given settings for, and no others.
#include <gtest/gtest.h>

#include <set>

#include "troupe/core/text/one_line.h"
#include "troupe/train/recipe/foreign/convert_test.h"
#include "troupe/train/recipe/foreign/flag_rules.h"
#include "troupe/train/recipe/foreign/foundry_parts.h"

namespace troupe {
namespace {

const std::vector<std::string> kHostile = {
    "x\nprofile: {from: 1}\n#",
    "x\r\nprofile: {from: 1}\r\n#",
    "x\rprofile: {from: 1}\r#",
    "x\xC2\x85profile: {from: 1}\xC2\x85#",
    "x\xE2\x80\xA8profile: {from: 1}\xE2\x80\xA8#",
    "x\xE2\x80\xA9profile: {from: 1}\xE2\x80\xA9#",
    "1\nprofile: {from: 1}\n#",
    "1}\nprofile: {from: 1}\n#",
    "1, sequence: 7, kind: mock",
    "1}, {path: evil",
    "1], [2",
    "\"\nprofile: {from: 1}\n\"",
    "'\nprofile: {from: 1}\n'",
    "1 # x",
    "|",
    ">-\n  x\nprofile: {from: 1}",
    "--- 1\n...\nprofile: {from: 1}",
    "%YAML 1.2",
    "{from: 1}",
    "profile: {from: 1}",
    "&a 1",
    "*a",
    "!!map 1",
    "? 1",
    "- 1",
    "\\",
    "\x1B]0;t\x07",
    "\t1",
    "\xFF\xFE",
};

void collect_keys(const Yaml& y, const std::string& path, std::set<std::string>& out) {
  out.insert(path);
  for (const Yaml::Field& field : y.fields) collect_keys(field.value, path + '.' + field.name, out);
  for (size_t i = 0; i < y.items.size(); ++i) {
    collect_keys(y.items[i], path + '[' + std::to_string(i) + ']', out);
  }
}

std::set<std::string> keys_of(const Conversion& conversion) {
  std::set<std::string> out;
  collect_keys(parse_yaml(recipe_file(conversion), "converted.yaml"), "", out);
  return out;
}

void expect_single_lines(const Conversion& conversion) {
  std::istringstream in(recipe_file(conversion));
  for (std::string line; std::getline(in, line);) {
    EXPECT_EQ(one_line(line), line);
    const bool key = line.find(':') < line.find_first_of("\"'#{[ ", line.find_first_not_of(' '));
    EXPECT_TRUE(line.starts_with("# ") || key) << line;
  }
  for (const auto* lines :
       {&conversion.mapped, &conversion.ignored, &conversion.deferred, &conversion.refused,
        &conversion.missing, &conversion.notes, &conversion.faults}) {
    for (const std::string& line : *lines) EXPECT_EQ(one_line(line), line);
  }
}

// A word of a script, whatever its bytes.
std::string script_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
  return out + '\'';
}

// With values that are a name, a number and no value at all the keys of `with` are all that there may be.
template <class F>
void expect_no_other_keys(const std::string& name, const std::vector<std::string>& hostile,
                          const F& with) {
  std::set<std::string> allowed;
  for (const char* harmless : {"x", "1", "0.5", "--x"}) allowed.merge(keys_of(with(harmless)));
  for (const std::string& value : hostile) {
    const Conversion out = with(value);
    expect_single_lines(out);
    for (const std::string& key : keys_of(out)) {
      EXPECT_TRUE(allowed.contains(key))
          << name << " with " << to_text(value) << " writes " << key << '\n'
          << out.recipe;
    }
  }
}

Conversion with_flag(const std::string& flag, const std::string& value) {
  return megatron("pretrain_gpt.py " + arguments("--" + flag + ' ' + script_word(value)));
}

TEST(HostileValues, OfEachWayToACommentStayInIt) {
  const std::vector<std::string> kWays = {
      "wandb-project",       // a command beside the run
      "save",                // a value in quotes, and the comment behind it
      "hidden-dropout",      // a number
      "no-such-flag",        // a refusal, at the recipe's top
      "use-flash-attn",      // ignored
      "data-cache-path",     //
      "fp8-format",          // deferred
      "tokenizer-model",     //
      "dataset",             // to be filled in
      "load",                //
      "lr-warmup-fraction",  //
      "moe-router-topk",     //
      "lr-decay-style",      //
      "step-batch-size-schedule",
  };
  for (const std::string& flag : kWays) {
    expect_no_other_keys(flag, kHostile, [&](const std::string& v) { return with_flag(flag, v); });
  }
}

// Each flag that is known, with some of the values each.
TEST(HostileValues, OfNoFlagWriteAnotherKey) {
  size_t at = 0;
  for (const FlagRule& rule : flag_rules()) {
    if (rule.what == FlagRule::kIgnored || rule.what == FlagRule::kRefused) continue;
    const std::vector<std::string> some = {kHostile[at++ % kHostile.size()],
                                           kHostile[at++ % kHostile.size()]};
    const std::string flag(rule.name);
    expect_no_other_keys(flag, some, [&](const std::string& v) { return with_flag(flag, v); });
  }
}

TEST(HostileValues, OfAListAreEachOneEntry) {
  const std::string words = "--data-path 1 a " + script_word("2}, {path: evil") + " b";
  const Conversion out =
      megatron("--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8 " + words);
  EXPECT_TRUE(any(out.refused, "evil")) << out.recipe;
  EXPECT_EQ(out.recipe.find("{path: evil}"), std::string::npos) << out.recipe;
  const Conversion betas = megatron(arguments("--adam-beta1 " + script_word("0.5, 0.6] # ")));
  EXPECT_TRUE(any(betas.refused, "adam-beta1")) << betas.recipe;
}

TEST(HostileValues, OfFoundrysKeysWriteNoOtherKey) {
  size_t at = 0;
  for (const TreeRule& rule : foundry_rules()) {
    if (rule.path.ends_with('*')) continue;
    std::string open, close;
    for (const char c : rule.path) {
      c == '.' ? open += ": {", close += '}' : open += c;
    }
    const std::vector<std::string> some = {kHostile[at++ % kHostile.size()]};
    expect_no_other_keys(std::string(rule.path), some, [&](const std::string& v) {
      const std::string text =
          "max_seq_len: 64\n" + open + ": " + to_text(repaired_utf8(v)) + close;
      return convert_recipe(text, "f.yaml", ForeignKind::kFoundry);
    });
  }
}

TEST(HostileValues, OfTomlWriteNoOtherKey) {
  for (const std::string key :
       {"job.dump_folder", "job.description", "model.name", "model.flavor", "optimizer.name",
        "optimizer.beta1", "optimizer.lr", "lr_scheduler.warmup_steps", "training.dataset",
        "training.steps", "checkpoint.folder", "checkpoint.initial_load_path", "made.up"}) {
    const size_t dot = key.find('.');
    expect_no_other_keys(key, kHostile, [&](const std::string& v) {
      std::string text = '[' + key.substr(0, dot) + "]\n" + key.substr(dot + 1) + " = \"\"\"";
      for (const char c : v)
        text += c == '\\' || c == '"' ? std::string("\\") + c : std::string(1, c);
      return convert_recipe(text + "\"\"\"\n", "run.toml", ForeignKind::kTorchtitan);
    });
  }
}

}  // namespace
}  // namespace troupe
