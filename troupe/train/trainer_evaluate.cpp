// What a run evaluates and samples while it goes.
#include <cmath>

#include "troupe/core/text/readable.h"
#include "troupe/train/evaluate.h"
#include "troupe/train/sample.h"
#include "troupe/train/trainer.h"

namespace troupe {

void Trainer::evaluate_all() {
  const PulseScope scope(pulse_, Phase::kEval);
  tools_.faults.at("eval", state_.done.steps);
  for (size_t i = 0; i < data_.valid.size(); ++i) {
    if (stop_.signalled()) return;  // the stop comes first
    const auto& [name, set] = data_.valid[i];
    const double loss = evaluate_set(name, *set);
    if (i == 0) score_ = loss;
  }
  sample_all();
  scored_step_ = state_.done.steps;
  if (data_.valid.empty()) return;
  if (*score_ >= state_.best.value_or(INFINITY)) return;
  state_.best = score_;
  if (recipe_.checkpoint.keep_best > 0 && state_.done.steps > 0) {
    save("best validation loss", recipe_.checkpoint.when_busy);
  }
}

double Trainer::evaluate_set(const std::string& name, const Dataset& set) {
  const auto begin = Clock::now();
  const SetScore score =
      score_set(*learner_, set,
                {.rows = recipe_.eval.batch > 0 ? recipe_.eval.batch : plan_.micro_batch,
                 .batches = recipe_.eval.batches,
                 .tokenizer = tokenizer_.get(),
                 .stop = [this] { return stop_.signalled(); }});
  const double loss = score.loss();
  LogRecord r;
  r.add("event", std::string_view("eval"));
  r.add("set", name);
  r.add("val/loss", loss);
  r.add("val/ppl", score.perplexity());
  if (score.bytes > 0) r.add("val/bits_per_byte", score.bits_per_byte());
  const double seconds = RunContext::since(begin);
  r.add("seconds", seconds);
  tools_.log.info(
      "eval step " + std::to_string(state_.done.steps) + "  " + name + "  loss " + fixed(loss, 4) +
      "  ppl " + fixed(r.scalar("val/ppl"), 2) +
      (score.bytes > 0 ? "  bits/byte " + fixed(r.scalar("val/bits_per_byte"), 4) : "") + "  " +
      fixed(seconds, 1) + " s");
  logger_->scalar("val/" + name + "/loss", loss);
  logger_->event(std::move(r));
  return loss;
}

void Trainer::sample_all() {
  const SampleOptions options = {.tokens = recipe_.eval.sample_tokens,
                                 .draw = {.temperature = recipe_.eval.temperature,
                                          .top_k = recipe_.eval.sample_top_k,
                                          .seed = recipe_.train.seed},
                                 .window = recipe_.data.sequence};
  for (const std::string& prompt : recipe_.eval.prompts) {
    if (stop_.signalled()) return;
    Generator generator = generator_of(*learner_);
    const std::string text = sample(generator, *tokenizer_, {prompt}, options)[0];
    tools_.log.info("sample step " + std::to_string(state_.done.steps) + ": " + text);
    logger_->text("sample", text);
    LogRecord r;
    r.add("event", std::string_view("sample"));
    r.add("prompt", prompt);
    r.add("text", text);
    logger_->event(std::move(r));
  }
}

}  // namespace troupe
