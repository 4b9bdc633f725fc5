#include "troupe/train/recipe/foreign/megatron.h"

#include <algorithm>

#include "troupe/train/recipe/foreign/flag_rules.h"
#include "troupe/train/recipe/foreign/foreign_format.h"
#include "troupe/train/recipe/foreign/megatron_parts.h"
#include "troupe/train/recipe/foreign/megatron_yaml.h"
#include "troupe/train/recipe/foreign/shell_letters.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {
namespace {

constexpr std::string_view kNothing = "means nothing beside the other flags";

class Megatron {
 public:
  Megatron(const ShellArguments& arguments, const std::string& file, Draft& draft)
      : draft_(draft),
        flags_(known_words(arguments, file, draft), file, draft),
        arguments_(arguments),
        file_(file) {}

  void convert() {
    table(/*sizes_first=*/true);
    const MegatronScript script{draft_, flags_, arguments_.program};
    refuse_other_models(script);
    convert_megatron_model(script);
    convert_megatron_attention(script);
    if (script.experts() > 0) {
      convert_megatron_experts(script);
    } else if (script.deepspeed()) {
      script.ignore_given({"num-experts"}, "one expert is a dense layer there");
    }
    convert_megatron_training(script);
    convert_megatron_parallel(script);
    convert_megatron_run(script);
    convert_deepspeed_json(script, arguments_.json, file_);
    table(/*sizes_first=*/false);
    for (const Flags::Flag& flag : flags_.used()) {  // a part asked, and had no use for it
      if (!draft_.tells("--" + flag.name)) draft_.ignore(flags_.origin_of(flag), kNothing);
    }
    if (!arguments_.open.empty() && !flags_.stands("num-experts")) {
      draft_.need("model.moe.experts", "--num-experts is in none of the flags that are known");
    }
    draft_.need("model.vocab", "--vocab-size is not given: the tokenizer's size");
    draft_.need("train.global_batch", "--global-batch-size is not given, in sequences");
    draft_.need("train.optimizer.lr", "--lr is not given");
    draft_.need("data.train", "neither --data-path nor --mock-data is given");
    draft_.need("checkpoint.dir", "--save is not given: the run's folder");
  }

 private:
  // Without variables that would hold flags: which ones is not known.
  static std::vector<ShellWord> known_words(const ShellArguments& arguments,
                                            const std::string& file, Draft& draft) {
    std::vector<ShellWord> out;
    for (const ShellWord& word : arguments.words) {
      std::string name = word.text;
      std::erase_if(name, [](char c) { return c == '$' || c == '{' || c == '}'; });
      if (is_shell_variable(word.text) && arguments.open.contains(name)) {
        draft.leave_defaults_open({word.text, file + ':' + std::to_string(word.line)});
      } else if (is_shell_list(word.text) && !may_be_value(out)) {
        draft.note(file + ':' + std::to_string(word.line) + ": " + word.text +
                   " is set nowhere: no word, as in a shell (--variable NAME=VALUE gives it)");
      } else {
        out.push_back(word);
      }
    }
    return out;
  }

  // Whether the next word is the first value of a flag.
  static bool may_be_value(const std::vector<ShellWord>& words) {
    return !words.empty() && words.back().text.starts_with("--") &&
           words.back().text.find('=') == std::string::npos;
  }

  // What the table alone decides: fields and switches first, all that is left at the end.
  void table(bool sizes_first) {
    for (const Flags::Flag& flag : flags_.unused()) {
      const FlagRule* const rule = find_flag(flag.name);
      const Origin origin = flags_.origin_of(flag);
      if (sizes_first) {
        if (rule == nullptr || (rule->what != FlagRule::kField && rule->what != FlagRule::kSwitch))
          continue;
        const std::string value =
            rule->what == FlagRule::kSwitch ? std::string(rule->value) : flags_.text(flag.name);
        flags_.given(flag.name);
        if (!value.empty()) draft_.set(std::string(rule->text), value, origin);
      } else if (rule == nullptr) {
        unknown(flag, origin);
      } else if (rule->what == FlagRule::kIgnored) {
        draft_.ignore(origin, rule->text);
      } else if (rule->what == FlagRule::kRefused) {
        draft_.refuse(origin, std::string(rule->text));
      } else {
        draft_.ignore(origin, kNothing);
      }
    }
  }

  void unknown(const Flags::Flag& flag, const Origin& origin) {
    std::vector<std::string_view> names;
    for (const FlagRule& rule : flag_rules()) names.push_back(rule.name);
    draft_.refuse_unknown(origin, "flag", flag.name, names, "--");
  }

  Draft& draft_;
  Flags flags_;
  const ShellArguments& arguments_;
  const std::string& file_;
};

}  // namespace

void convert_megatron(const std::string& text, const std::string& file,
                      const std::map<std::string, std::string>& variables, Draft& draft) {
  const std::optional<Yaml> map = yaml_map(text, file);
  const ShellArguments arguments = map && yaml_at(*map, "MODEL_ARGS") != nullptr
                                       ? megatron_yaml_arguments(*map, variables, file, draft)
                                       : shell_arguments(text, variables, file);
  for (const std::string& note : arguments.notes) draft.note(note);
  const auto is_flag = [](const ShellWord& word) { return word.text.starts_with("--"); };
  if (!arguments.script.empty()) {
    fail(
        Code::kBadValue, file + ':' + std::to_string(arguments.line), "starts another script,",
        arguments.script + ": convert that one, with --variable NAME=VALUE for what this one sets");
  }
  if (std::none_of(arguments.words.begin(), arguments.words.end(), is_flag)) {
    fail(Code::kBadValue, file,
         "holds no arguments: neither a command that runs a .py file nor "
         "a list of --flags");
  }
  Megatron(arguments, file, draft).convert();
}

}  // namespace troupe
