#include "troupe/train/going_on.h"

#include <cmath>

namespace troupe {
namespace {

// A part of the way, in all three units.
Position part_of(const Position& whole, int64_t i, int64_t of) {
  return {whole.steps * i / of, whole.samples * i / of, whole.tokens * i / of};
}

double decay_at(const OptimizerBase& base, const Position& at, const Position& run) {
  return ramped(base.weight_decay, base.weight_decay_end.value_or(base.weight_decay),
                base.weight_decay_form, at.steps, run.steps);
}

}  // namespace

std::string other_schedule(const TrainConfig& train, const Position& done, const Position& was,
                           const Position& now) {
  if (was == now || was.steps == 0) return {};
  constexpr int64_t kPlaces = 64;
  const OptimizerBase& base = base_of(train.optimizer);
  for (int64_t i = 1; i <= kPlaces; ++i) {
    const Position at = part_of(done, i, kPlaces);
    const double rate =
        lr_factor(train.schedule, at, at, was) - lr_factor(train.schedule, at, at, now);
    const double decay = decay_at(base, at, was) - decay_at(base, at, now);
    if (std::abs(rate) <= 1e-9 && std::abs(decay) <= 1e-9) continue;
    return "the run was to be " + std::to_string(was.steps) + " steps long and is now " +
           std::to_string(now.steps) + ": of that length, the " + std::to_string(done.steps) +
           " steps so far would have had another " +
           (std::abs(rate) > 1e-9 ? "learning rate" : "weight decay");
  }
  return {};
}

}  // namespace troupe
