// What a run evaluates and samples while it goes: each validation set in order, then the prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/run_logger.h"
#include "troupe/train/loop/stop_control.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/step/learner.h"

namespace troupe {

class Evaluation {
 public:
  // All outlive it. `tokenizer`: null where there is none.
  Evaluation(const RunContext& run, Learner& learner, const Data& data, const Tokenizer* tokenizer,
             RunLogger& logger, const StopControl& stop)
      : run_(run),
        learner_(learner),
        data_(data),
        tokenizer_(tokenizer),
        logger_(logger),
        stop_(stop) {}

  // True where the first set's loss is the best so far (TrainState::best). Ends early where a rank
  // is asked to stop. Every rank calls.
  bool run();
  // The first set's loss after this step, if it was evaluated then.
  bool done_at(int64_t step) const { return step_ == step; }
  std::optional<double> score_at(int64_t step) const {
    return done_at(step) ? score_ : std::nullopt;
  }

 private:
  double evaluate(const std::string& name, const Dataset& set);
  void sample_prompts();

  const RunContext& run_;
  Learner& learner_;
  const Data& data_;
  const Tokenizer* tokenizer_;
  RunLogger& logger_;
  const StopControl& stop_;
  int64_t step_ = -1;
  std::optional<double> score_ = {};
};

}  // namespace troupe
