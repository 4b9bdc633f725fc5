// troupe generate: text from the newest checkpoint of a run.
#include <unistd.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <variant>

#include "apps/verbs.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/log.h"
#include "troupe/data/text/build_info.h"
#include "troupe/data/tokenizer/chat_template.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/train/loop/startup_lines.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/run/sample.h"
#include "troupe/train/run/trained_model.h"

namespace troupe {
namespace {

struct GenerateOptions {
  std::string run;
  std::vector<std::string> prompts, sets;
  SampleOptions sample{.tokens = 128};
  bool chat = false, speed = false;
  std::string system;
  std::optional<std::string> open, close;
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Texts are in the order of their prompts; a single one is written as it comes.
void complete(const GenerateOptions& options, Generator& generator, const Tokenizer& tokenizer) {
  const bool alone = options.prompts.size() == 1;
  const auto write = [&](int64_t, const std::string& piece) {
    if (alone) std::cout << piece << std::flush;
  };
  const std::vector<std::string> texts =
      sample(generator, tokenizer, options.prompts, options.sample, write);
  if (alone) std::cout << '\n';
  if (alone) return;
  for (const std::string& text : texts) std::cout << text << '\n';
}

// How the run's data say that chats are written, or else the folder of its tokenizer.
using ChatForm = std::variant<ChatTemplate, ModelTemplate>;

ChatForm form_of(const GenerateOptions& options, const ResolvedRun& recipe) {
  ChatTemplate out;
  std::string from = "data build's own";
  std::optional<ModelTemplate> own = find_model_template(recipe.data.tokenizer);
  for (const SourceConfig& source : recipe.data.train) {
    const auto* const files = std::get_if<MegatronFiles>(&source);
    if (files == nullptr) continue;
    const std::string prefix = token_prefix(files->path);
    const std::optional<BuildInfo> info = read_build_info(prefix);
    if (!info || (!info->chat && !info->model_template)) continue;
    if (info->chat) out = *info->chat;
    own = info->model_template;
    from = "those of " + prefix + ".json";
    break;
  }
  if (own && !options.open && !options.close) {
    std::cerr << "chat: template of " << own->file << '\n';
    return *own;
  }
  if (options.open) out.open = *options.open;
  if (options.close) out.close = *options.close;
  std::cerr << "chat: marks " << to_text(out.open) << " and " << to_text(out.close) << " ("
            << (options.open || options.close ? "as asked for" : from) << ")\n";
  return out;
}

// What the user says, line by line, to the end of the standard input. A sign shows whose turn it is
// where a person types.
void read_turns(const std::function<void(const std::string&)>& turn) {
  const bool typed = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0;
  const auto show_sign = [typed] {
    if (typed) std::cerr << "> " << std::flush;
  };
  show_sign();
  for (std::string line; std::getline(std::cin, line); show_sign()) turn(line);
  if (typed) std::cerr << '\n';  // Ctrl-D leaves the cursor behind the sign
}

// Each prompt, or without prompts each line of the standard input, is what the user says next.
void converse(const GenerateOptions& options, Chat& talk) {
  if (!options.system.empty()) talk.say("system", options.system);
  const auto turn = [&](const std::string& text) {
    talk.say("user", text);
    talk.answer([](const std::string& piece) { std::cout << piece << std::flush; });
    std::cout << '\n';
  };
  for (const std::string& prompt : options.prompts) turn(prompt);
  if (options.prompts.empty()) read_turns(turn);
}

void generate(const GenerateOptions& options) {
  if (options.prompts.empty() && !options.chat) {
    fail(Code::kBadValue, "generate", "needs a prompt: -p 'ROMEO:', or --chat");
  }
  const TrainedModel trained = open_trained_model(options.run, options.sets);
  const ResolvedRun& recipe = trained.recipe;
  const std::string warning = causality_line(recipe.model);
  if (!warning.empty()) Log({stderr_sink()}, Level::kWarning).warning(warning);
  if (recipe.data.tokenizer.empty()) {
    fail(Code::kBadValue, options.run + "/recipe.yaml",
         "data.tokenizer is not set: it is required to "
         "decode ids");
  }
  const auto tokenizer = open_tokenizer(recipe.data.tokenizer);
  Generator generator = generator_of(*trained.learner);
  const Stopwatch watch;
  if (options.chat) {
    std::visit(
        [&](const auto& form) {
          Chat talk(generator, *tokenizer, form, options.sample);
          converse(options, talk);
        },
        form_of(options, recipe));
  } else {
    complete(options, generator, *tokenizer);
  }
  if (!options.speed) return;
  const double seconds = watch.seconds();
  const auto made = static_cast<double>(generator.tokens_made());
  std::cerr << generator.tokens_made() << " tokens made in " << fixed(seconds, 3)
            << " s: " << fixed(made / seconds, 1) << " tokens/s; " << generator.tokens_read()
            << " read, " << generator.tokens_reused() << " not read again\n";
}

}  // namespace

void add_generate(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("generate", "generates text with a trained model");
  const auto options = std::make_shared<GenerateOptions>();
  SampleConfig& draw = options->sample.draw;
  verb->add_option("run", options->run, "run folder")->required();
  verb->add_option("-p,--prompt", options->prompts,
                   "prompt; repeatable: several are generated in one batch");
  verb->add_option("-n,--tokens", options->sample.tokens, "maximum number of tokens");
  verb->add_option("--temperature", draw.temperature, "sampling temperature; 0: greedy");
  verb->add_option("--top-k", draw.top_k, "top-k sampling; 0: off");
  verb->add_option("--top-p", draw.top_p, "nucleus sampling; 1: off");
  verb->add_option("--min-p", draw.min_p, "least part of the largest probability; 0: off");
  verb->add_option("--repetition-penalty", draw.repetition_penalty,
                   "penalty of seen tokens; 1: off");
  verb->add_option("--seed", draw.seed, "seed; the same seed gives the same text");
  verb->add_flag("--special", options->sample.special, "keep special tokens in the text");
  verb->add_flag("--chat", options->chat,
                 "each prompt, or each line of stdin, is a message of the user");
  verb->add_option("--system", options->system, "chat: first message, of the role system");
  verb->add_option("--open", options->open, "chat: mark before a message, with {role}");
  verb->add_option("--close", options->close, "chat: mark after a message");
  verb->add_flag("--speed", options->speed, "print tokens/s to stderr");
  verb->add_option("--set", options->sets, "path=value: overrides the run's recipe; repeatable")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->take_all();
  verb->footer(
      "Example: troupe generate runs/quickstart -p 'ROMEO:'\n"
      "         echo 'Who are you?' | troupe generate runs/chat --chat");
  verb->callback([options] { generate(*options); });
}

}  // namespace troupe
