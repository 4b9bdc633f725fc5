#include "troupe/train/recipe.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/config.h"
#include "troupe/nn/moe_pattern.h"
#include "troupe/train/problems.h"

namespace troupe {
namespace {

constexpr int64_t kMicroTokens = 8192;  // what `micro_batch` is chosen for

int64_t batch_of(const Recipe& r) {
  if (r.train.global_batch > 0) return r.train.global_batch;
  return r.data.sequence > 0 ? r.train.global_batch_tokens.value / r.data.sequence : 0;
}

// "Near: 491520, 524288": the multiples around a number.
std::string near(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return "Near: " + (below > 0 ? std::to_string(below) + ", " : "") + std::to_string(below + unit);
}

void check_batch(const Recipe& r, Problems& problems) {
  const TrainConfig& t = r.train;
  const int64_t given = t.global_batch_tokens.value;
  if ((given > 0) == (t.global_batch > 0)) {
    problems.add("train.global_batch_tokens",
                 "give either global_batch_tokens or global_batch (sequences)");
    return;
  }
  if (t.global_batch < 0) problems.add("train.global_batch", "must be positive");
  if (r.data.sequence <= 0) return;
  if (given > 0 && given % r.data.sequence != 0) {
    problems.add("train.global_batch_tokens",
                 std::to_string(given) + " is not a multiple of data.sequence " +
                     std::to_string(r.data.sequence) + ". " + near(given, r.data.sequence));
    return;
  }
  const int64_t batch = batch_of(r);
  if (t.micro_batch && (*t.micro_batch <= 0 || batch % *t.micro_batch != 0)) {
    problems.add("train.micro_batch", std::to_string(*t.micro_batch) +
                                          " does not divide the global batch of " +
                                          std::to_string(batch) + " sequences");
  }
  if (!t.batch_ramp) return;
  const BatchRamp& ramp = *t.batch_ramp;
  if (ramp.start <= 0 || ramp.increment <= 0 || ramp.samples <= 0 || ramp.start >= batch ||
      (batch - ramp.start) % ramp.increment != 0) {
    problems.add("train.batch_ramp", "goes from start " + std::to_string(ramp.start) +
                                         " in whole increments of " +
                                         std::to_string(ramp.increment) + " to the global batch " +
                                         std::to_string(batch) + ": it cannot");
  } else if (t.micro_batch &&
             (ramp.start % *t.micro_batch != 0 || ramp.increment % *t.micro_batch != 0)) {
    problems.add("train.batch_ramp", "start and increment must be multiples of micro_batch " +
                                         std::to_string(*t.micro_batch));
  }
}

void check_train(const Recipe& r, Problems& problems) {
  const TrainConfig& t = r.train;
  if ((t.tokens.value > 0) == (t.steps > 0)) {
    problems.add("train.tokens", "give either tokens or steps: how long the run is");
  }
  if (t.clip < 0) problems.add("train.clip", "must not be negative; 0 means none");
  if (t.max_skips < 0) problems.add("train.max_skips", "must not be negative");
  if (t.spike.sigmas < 0 || t.spike.window < 2) {
    problems.add("train.spike", "needs sigmas of at least 0 and a window of at least 2 steps");
  }
  problems.add_all("train.optimizer", optimizer_faults(t.optimizer));
  problems.gather("train.recompute", [&] { recomputed_blocks(r); });
  if (problems.empty()) problems.add_all("train.schedule", lr_faults(t.schedule, plan_of(r).run));
}

// What is wrong in any world; the rest is known when the ranks have met.
void check_parallel(const Recipe& r, Problems& problems) {
  for (const std::string& fault : unbuilt_axes(r.parallel)) problems.add("parallel", fault);
  const ShardKind shard = r.parallel.shard;
  if ((shard == ShardKind::kFull || shard == ShardKind::kZero1) && needs_whole_matrices(r)) {
    problems.add("parallel.shard", to_text(shard) + " cuts matrices, which muon needs whole: none");
  }
  if (r.parallel.prefetch < 0) problems.add("parallel.prefetch", "must not be negative");
  if (r.run.hang_timeout.ns <= 0) problems.add("run.hang_timeout", "must be positive");
  if (r.run.start_timeout.ns <= 0) problems.add("run.start_timeout", "must be positive");
}

void check_rest(const Recipe& r, Problems& problems) {
  if (r.eval.batches < 0) problems.add("eval.batches", "must not be negative");
  if (r.eval.batch < 0) problems.add("eval.batch", "must not be negative");
  if (r.eval.temperature < 0) problems.add("eval.temperature", "must not be negative");
  if (!r.eval.prompts.empty() && r.data.tokenizer.empty()) {
    problems.add("eval.prompts", "need data.tokenizer");
  }
  if (r.log.records.unit == Span::Unit::kPercent || r.log.every.unit == Span::Unit::kPercent ||
      r.log.experts.unit == Span::Unit::kPercent || r.eval.every.unit == Span::Unit::kPercent) {
    problems.add("log", "intervals are in steps, samples, tokens or time, not in percent");
  }
  problems.add_all("profile", profile_faults(r.profile));
  if (r.run.threads < 0) problems.add("run.threads", "must not be negative");
  if (r.data.sequence > r.model.max_positions) {
    problems.add("data.sequence", std::to_string(r.data.sequence) + " is longer than the model's " +
                                      std::to_string(r.model.max_positions) +
                                      " positions (model.max_positions)");
  }
}

}  // namespace

Recipe load_recipe(const std::string& path, const std::vector<std::string>& sets,
                   Sources& sources) {
  Recipe out;
  Problems problems(sources);
  problems.gather(path, [&] { sources = read_config(load_yaml(path), out); });
  for (const std::string& set : sets) {
    problems.gather("--set", [&] {
      for (auto& [name, where] : read_config(override_yaml(set), out)) sources[name] = where;
    });
  }
  problems.throw_if_any();
  return out;
}

void validate(const Recipe& r, const Sources& sources) {
  Problems problems(sources);
  problems.gather("model", [&] { validate(r.model); });
  problems.gather("data", [&] { validate(r.data); });
  problems.gather("checkpoint", [&] { validate(r.checkpoint); });
  check_batch(r, problems);
  check_train(r, problems);
  check_parallel(r, problems);
  check_rest(r, problems);
  problems.throw_if_any();
}

bool needs_whole_matrices(const Recipe& r) {
  return std::holds_alternative<MuonConfig>(r.train.optimizer);
}

std::vector<bool> recomputed_blocks(const Recipe& r) {
  if (r.train.recompute == "none") return std::vector<bool>(static_cast<size_t>(r.model.layers));
  return moe_layers(r.train.recompute, r.model.layers);
}

RunPlan plan_of(const Recipe& r) {
  RunPlan out;
  out.batch = batch_of(r);
  const int64_t sequence = r.data.sequence;
  TROUPE_CHECK(out.batch > 0 && sequence > 0, "batch", out.batch, "sequence", sequence);
  const std::optional<BatchRamp>& ramp = r.train.batch_ramp;
  if (r.train.micro_batch) {
    out.micro_batch = *r.train.micro_batch;
    out.micro_reason = "given";
  } else {
    // It must divide every batch of a ramp too.
    const auto fits = [&](int64_t n) {
      return out.batch % n == 0 && (!ramp || (ramp->start % n == 0 && ramp->increment % n == 0));
    };
    out.micro_batch = std::clamp<int64_t>(kMicroTokens / sequence, 1, out.batch);
    while (!fits(out.micro_batch)) --out.micro_batch;
    out.micro_reason =
        "chosen: divides the batch, at most " + std::to_string(kMicroTokens) + " tokens";
  }
  if (r.train.steps > 0) {
    Position& run = out.run;
    for (; run.steps < r.train.steps && ramp && run.samples < ramp->samples; ++run.steps) {
      run.samples += batch_at(ramp, out.batch, run.samples);
    }
    run.samples += (r.train.steps - run.steps) * out.batch;
    run.steps = r.train.steps;
    run.tokens = run.samples * sequence;
  } else {
    out.run = run_of(ramp, out.batch, sequence, r.train.tokens.value);
  }
  return out;
}

}  // namespace troupe
