// troupe generate: text from the newest checkpoint of a run.
#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/config/config.h"
#include "troupe/core/file/log.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/train/sample.h"
#include "troupe/train/start_lines.h"
#include "troupe/train/trained.h"

namespace troupe {
namespace {

struct GenerateOptions {
  std::string run;
  std::vector<std::string> prompts;
  SampleOptions sample{.tokens = 128};
};

void generate(const GenerateOptions& options) {
  const Trained trained = open_trained(options.run, {});
  const Recipe& recipe = trained.recipe;
  const std::string warning = causality_line(recipe.model);
  if (!warning.empty()) Log({stderr_sink()}, Level::kWarning).warning(warning);
  if (recipe.data.tokenizer.empty()) {
    fail(Code::kBadValue, options.run + "/recipe.yaml",
         "data.tokenizer is not set: without it no "
         "text can be made of ids");
  }
  const auto tokenizer = open_tokenizer(recipe.data.tokenizer);
  SampleOptions sample_options = options.sample;
  sample_options.window = recipe.model.max_positions;
  for (const std::string& prompt : options.prompts) {
    std::cout << sample(*trained.learner, *tokenizer, prompt, sample_options) << '\n';
  }
}

}  // namespace

void add_generate(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("generate", "writes text with a trained model");
  const auto options = std::make_shared<GenerateOptions>();
  verb->add_option("run", options->run, "the run's folder")->required();
  verb->add_option("-p,--prompt", options->prompts, "what the text begins with")->required();
  verb->add_option("-n,--tokens", options->sample.tokens, "how many tokens at most");
  verb->add_option("--temperature", options->sample.temperature, "0: always the most probable");
  verb->add_option("--top-k", options->sample.top_k, "out of so many; 0: all");
  verb->add_option("--seed", options->sample.seed, "the same seed writes the same text");
  verb->footer("Example: troupe generate runs/quickstart -p 'ROMEO:'");
  verb->callback([options] { generate(*options); });
}

}  // namespace troupe
