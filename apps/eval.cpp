// troupe eval: what a trained model scores.
#include <cstdio>
#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/train/loop/startup_lines.h"
#include "troupe/train/observe/record.h"
#include "troupe/train/run/evaluate.h"
#include "troupe/train/run/everyday_questions.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/run/trained_model.h"

namespace troupe {
namespace {

struct EvalOptions {
  std::string path;
  std::vector<std::string> sets, tasks;
  bool json = false, show_everyday = false;
};

void tell(const EvalOptions& options, const LogRecord& record, const std::string& line) {
  if (options.json) {
    std::cout << record.json() << '\n';
  } else {
    std::cout << line << '\n';
  }
}

// `causal`: false where later tokens had a part in it, which the figure then says.
void tell_set(const EvalOptions& options, int64_t step, const std::string& name,
              const SetScore& score, bool causal) {
  LogRecord r;
  r.add("step", step);
  r.add("set", name);
  r.add("loss", score.loss());
  if (score.pairs) {
    r.add("rewards/accuracies", score.rewards().accuracy);
    r.add("rewards/margins", score.rewards().margin());
  } else {
    r.add("ppl", score.perplexity());
  }
  if (score.bytes > 0) r.add("bits_per_byte", score.bits_per_byte());
  r.add("targets", static_cast<int64_t>(score.weight));
  if (!causal) r.add("causal", "no");
  char line[160];
  if (score.pairs) {
    std::snprintf(line, sizeof(line), "  loss %.4f  acc %.2f  margin %.3f", score.loss(),
                  score.rewards().accuracy, score.rewards().margin());
  } else {
    std::snprintf(line, sizeof(line), "  loss %.4f  ppl %.2f", score.loss(), score.perplexity());
  }
  std::string text = name + line;
  if (score.bytes > 0) {
    std::snprintf(line, sizeof(line), "  bits/byte %.4f", score.bits_per_byte());
    text += line;
  }
  tell(options, r,
       text + "  (" + std::to_string(static_cast<int64_t>(score.weight)) +
           (score.pairs ? " pairs)" : " targets)") + (causal ? "" : "  not causal"));
}

void tell_task(const EvalOptions& options, int64_t step, const std::string& name,
               const ChoiceScore& score, bool causal) {
  LogRecord r;
  r.add("step", step);
  r.add("task", name);
  r.add("accuracy", score.accuracy());
  r.add("accuracy_normed", score.accuracy_normed());
  r.add("questions", score.questions);
  if (!causal) r.add("causal", "no");
  char line[160];
  std::snprintf(line, sizeof(line), "  accuracy %.4f  per byte %.4f  (%lld questions)",
                score.accuracy(), score.accuracy_normed(), static_cast<long long>(score.questions));
  tell(options, r, name + line + (causal ? "" : "  not causal"));
}

void eval(const EvalOptions& options) {
  if (options.show_everyday) {
    std::cout << everyday_questions();
    return;
  }
  if (options.path.empty()) fail(Code::kBadValue, "eval", "needs a run's folder: troupe eval RUN");
  const Log log({stderr_sink()}, Level::kWarning);
  TrainedModel trained = open_trained_model(options.path, options.sets);
  const ResolvedRun& recipe = trained.recipe;
  const OpenedData opened = open_valid(recipe, log);
  if (opened.data.valid.empty() && options.tasks.empty()) {
    fail(Code::kBadValue, "data.valid",
         "names no validation set: --set 'data.valid=[{path: corpus/valid}]', or --tasks FILE");
  }
  if (!options.tasks.empty() && opened.tokenizer == nullptr) {
    fail(Code::kBadValue, "data.tokenizer", "is not set, but questions are text");
  }
  const std::string warning = causality_line(recipe.model);
  if (!warning.empty()) log.warning(warning);
  if (!options.json) std::cout << trained.folder << ", step " << trained.step << '\n';
  const int64_t rows = recipe.eval.batch > 0 ? recipe.eval.batch : recipe.plan.micro_batch;
  for (const auto& [name, set] : opened.data.valid) {
    tell_set(
        options, trained.step, name,
        score_set(
            *trained.learner, *set,
            {.rows = rows, .batches = recipe.eval.batches, .tokenizer = opened.tokenizer.get()}),
        warning.empty());
  }
  for (const std::string& task : options.tasks) {
    tell_task(options, trained.step, task,
              score_questions(*trained.learner, *opened.tokenizer, read_questions(task),
                              recipe.data.sequence),
              warning.empty());
  }
}

}  // namespace

void add_eval(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("eval", "evaluates a trained model on text and questions");
  const auto options = std::make_shared<EvalOptions>();
  verb->add_option("run", options->path, "run folder or one of its step-N");
  verb->add_option("--set", options->sets, "path=value: overrides the run's recipe; repeatable")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->take_all();
  verb->add_option("--tasks", options->tasks,
                   "JSONL files of {query, choices, gold}: multiple choice by likelihood; or\n"
                   "everyday, forty questions that come with the program")
      ->expected(1)
      ->take_all();
  verb->add_flag("--show-everyday", options->show_everyday, "print these forty as JSONL and exit");
  verb->add_flag("--json", options->json, "print one JSON line per result");
  verb->footer(
      "Example: troupe eval runs/quickstart --set 'data.valid=[{kind: text, path: book.txt}]'\n"
      "Losses are means over all targets; bits per byte need data.tokenizer.");
  verb->callback([options] { eval(*options); });
}

}  // namespace troupe
