#include "troupe/train/loop/periodic_evaluation.h"

#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include "troupe/core/text/readable.h"
#include "troupe/train/run/evaluate.h"
#include "troupe/train/run/sample.h"

namespace troupe {

bool Evaluation::run() {
  const PulseScope scope(run_.pulse(), Phase::kEval);
  TrainState& state = run_.state;
  run_.tools.faults.at("eval", state.done.steps);
  for (size_t i = 0; i < data_.valid.size(); ++i) {
    if (stop_.signaled()) return false;  // the stop comes first
    const auto& [name, set] = data_.valid[i];
    const double loss = evaluate(name, *set);
    if (i == 0) score_ = loss;
  }
  sample_prompts();
  step_ = state.done.steps;
  if (data_.valid.empty() || *score_ >= state.best.value_or(INFINITY)) return false;
  state.best = score_;
  return true;
}

double Evaluation::evaluate(const std::string& name, const Dataset& set) {
  const auto begin = RunContext::Clock::now();
  const SetScore score = score_set(
      learner_, set,
      {.rows = run_.recipe.eval.batch > 0 ? run_.recipe.eval.batch : run_.recipe.plan.micro_batch,
       .batches = run_.recipe.eval.batches,
       .tokenizer = tokenizer_,
       .stop = [this] { return stop_.signaled(); }});
  const double loss = score.loss();
  LogRecord r;
  r.add("event", std::string_view("eval"));
  r.add("set", name);
  r.add("val/loss", loss);
  if (score.pairs) {
    r.add("val/rewards/accuracies", score.rewards().accuracy);
    r.add("val/rewards/margins", score.rewards().margin());
  } else {
    r.add("val/ppl", score.perplexity());
  }
  if (score.bytes > 0) r.add("val/bits_per_byte", score.bits_per_byte());
  const double seconds = RunContext::since(begin);
  r.add("seconds", seconds);
  run_.log().info(
      "eval step " + std::to_string(run_.state.done.steps) + "  " + name + "  loss " +
      fixed(loss, 4) +
      (score.pairs ? "  acc " + fixed(score.rewards().accuracy, 2) + "  margin " +
                         fixed(score.rewards().margin(), 3)
                   : "  ppl " + fixed(r.scalar("val/ppl"), 2)) +
      (score.bytes > 0 ? "  bits/byte " + fixed(r.scalar("val/bits_per_byte"), 4) : "") + "  " +
      fixed(seconds, 1) + " s");
  logger_.scalar("val/" + name + "/loss", loss);
  logger_.event(std::move(r));
  return loss;
}

void Evaluation::sample_prompts() {
  const SampleOptions options = {.tokens = run_.recipe.eval.sample_tokens,
                                 .draw = {.temperature = run_.recipe.eval.temperature,
                                          .top_k = run_.recipe.eval.sample_top_k,
                                          .seed = run_.recipe.train.seed},
                                 .window = run_.recipe.data.sequence};
  for (const std::string& prompt : run_.recipe.eval.prompts) {
    if (stop_.signaled()) return;
    Generator generator = generator_of(learner_);
    const std::string text = sample(generator, *tokenizer_, {prompt}, options)[0];
    run_.log().info("sample step " + std::to_string(run_.state.done.steps) + ": " + text);
    logger_.text("sample", text);
    LogRecord r;
    r.add("event", std::string_view("sample"));
    r.add("prompt", prompt);
    r.add("text", text);
    logger_.event(std::move(r));
  }
}

}  // namespace troupe
