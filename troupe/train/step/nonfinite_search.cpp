#include "troupe/train/step/nonfinite_search.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstddef>

#include "troupe/train/params/bad_values.h"

namespace troupe {
namespace {

std::string described(const BadValue& bad) {
  return bad.name + ", " + std::to_string(bad.bad) + " of " + std::to_string(bad.of) + " values";
}

}  // namespace

// In the order in which a step computes: weights, forward, gradients from the head down. Every rank
// searches, even if another one has found a value: the passes contain collectives.
std::string NonfiniteSearch::first(const Feed& feed, const StepInput& input) const {
  const auto weights = bad_values(store_, &Bucket::own);
  const auto gradients = bad_gradients(store_);
  Finding found = bad_forward(feed, input);
  // Looked at by all where there are several: a step between ranks takes all of them.
  const bool gone = std::ranges::any_of(training_, [](const Action& a) {
    return a.kind == Kind::kUpdate && a.chunk >= 0;  // gradients, with the update of their unit
  });
  if (gone || !gradients.empty() || !parallel_.alone()) {
    found.first_of(bad_gradient(input));
    // The previous step's gradient, summed over ranks: the rank that owns this part of it sees it.
    if (!gradients.empty()) {
      found.first_of({.stage = Stage::kSum,
                      .what = "gradient of " + described(gradients.back()) +
                              "; replayed, it is finite: a passing fault"});
    }
  }
  if (!weights.empty()) {
    found.first_of({.stage = Stage::kWeights, .what = "weight " + described(weights.front())});
  }
  if (!found.what.empty() && parallel_.stage_ranks() > 1) {
    found.what = "stage " + std::to_string(parallel_.stage_rank() + 1) + '/' +
                 std::to_string(parallel_.stage_ranks()) + ", " + found.what;
  }
  const std::vector<std::string> all =
      parallel_.all_gather_texts("bad values", found.key() + found.what);
  const auto first = std::min_element(all.begin(), all.end());
  const std::string what = first->substr(found.key().size());
  if (what.empty() && gone) return "not found: replayed, behind the step's updates, all is finite";
  if (what.empty()) return "the loss; replayed, its forward is finite: a passing fault";
  return parallel_.alone() ? what : "rank " + std::to_string(first - all.begin()) + ", " + what;
}

std::string NonfiniteSearch::Finding::key() const {
  std::string place = std::to_string(order);
  return std::to_string(static_cast<int>(stage)) + std::string(20 - place.size(), '0') + place;
}

void NonfiniteSearch::Finding::first_of(const Finding& other) {
  if (other.key() < key()) *this = other;
}

// A rank's own gradients tell whose it is; that of their sum alone, that each was finite.
NonfiniteSearch::Finding NonfiniteSearch::bad_gradient(StepInput input) const {
  input.context.budgeted = false;  // as the step that is replayed: it had room for all
  Finding found;
  const auto look = [&](const Action& action, int64_t slot, const at::Tensor& gradient) {
    const NamedParam& named = store_.slots()[static_cast<size_t>(slot)].named;
    const auto bad = bad_values_of(named, gradient);
    if (bad.empty()) return;
    const int64_t units = model_.num_units();
    const auto slots = static_cast<int64_t>(store_.slots().size());
    const int64_t unit = action.microbatch * units + units - 1 - action.chunk;
    found.first_of({.stage = Stage::kBackward,
                    .order = (unit + 1) * slots - 1 - slot,
                    .what = "gradient of " + described(bad.front()) + ", microbatch " +
                            std::to_string(action.microbatch) +
                            " (replayed: the same; its forward is finite)"});
  };
  executor_.run(training_, input, {.update = [](const StepOutput&) {}, .gradient = look});
  const auto sums = bad_gradients(store_);
  if (!sums.empty()) {
    found.first_of({.stage = Stage::kSum,
                    .what = "gradient of " + described(sums.back()) +
                            " (replayed: the same; each rank's own is finite)"});
  }
  return found;
}

NonfiniteSearch::Finding NonfiniteSearch::bad_forward(const Feed& feed,
                                                      const StepInput& input) const {
  const at::NoGradGuard no_grad;
  Context context = input.context;
  context.owns_backward = false;  // counts nothing a second time
  context.budgeted = false;       // there was room for all
  Finding found;
  const int64_t units = model_.num_units();
  std::vector<int64_t> tokens;
  for (const Batch& batch : feed.microbatches) tokens.push_back(batch.ids_BS.numel());
  const auto look = [&](int64_t unit, int64_t m, const at::Tensor& h) {
    const Batch batch =
        unit + 1 == units ? head_batch(input, m) : feed.microbatches[static_cast<size_t>(m)];
    context.first_token = feed.first_token + m * whole_tokens(batch);
    const UnitResult r = model_.forward(unit, h, batch, context);
    const at::Tensor& value = r.h.defined() ? r.h : r.loss_sum;
    if (!at::isfinite(value).all().item<bool>()) {
      found.first_of({.stage = Stage::kForward,
                      .order = m * units + unit,
                      .what = "forward of " + unit_name(model_.config(), unit) + ", microbatch " +
                              std::to_string(m) + " (replayed: the same)"});
    }
    return r.h;
  };
  executor_.pass(forward_, tokens, look, PassKind::kOther, context.training);
  return found;
}

}  // namespace troupe
