#include "troupe/train/recipe/recipe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/counts.h"
#include "troupe/core/text/near.h"
#include "troupe/distributed/group/group_options.h"
#include "troupe/nn/config/moe_pattern.h"
#include "troupe/train/recipe/graph_faults.h"
#include "troupe/train/recipe/offload_faults.h"
#include "troupe/train/recipe/problems.h"
#include "troupe/train/recipe/update_faults.h"

namespace troupe {

int64_t batch_of(const Recipe& r) {
  if (r.train.global_batch > 0) return r.train.global_batch;
  return r.data.sequence > 0 ? r.train.global_batch_tokens.value / r.data.sequence : 0;
}

namespace {

// "Near: 491520, 524288": the multiples around a number.
std::string near(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return "Near: " + (below > 0 ? std::to_string(below) + ", " : "") + std::to_string(below + unit);
}

constexpr int64_t kMostSamples = int64_t{1}
                                 << 40;  // of a run; data/tokens/dataset.h counts no further
// Before anything is computed with them.
void check_counts(const Recipe& r, Problems& problems) {
  for (const CountFault& fault : counts_out_of_bounds(r.model, kModelBounds, "model")) {
    problems.add(fault.path, fault.what);
  }
  for (const CountFault& fault : counts_out_of_bounds(r)) {
    if (!fault.path.starts_with("model.")) problems.add(fault.path, fault.what);
  }
}

// In doubles, which nothing overflows.
void check_length(const Recipe& r, int64_t batch, Problems& problems) {
  const TrainConfig& t = r.train;
  const auto sequence = static_cast<double>(r.data.sequence);
  const double samples = t.steps > 0 ? static_cast<double>(t.steps) * static_cast<double>(batch)
                                     : static_cast<double>(t.tokens.value) / sequence;
  if (samples <= static_cast<double>(kMostSamples) &&
      samples * sequence <= static_cast<double>(kMostTokens)) {
    return;
  }
  problems.add(t.steps > 0 ? "train.steps" : "train.tokens",
               "the run would have " + to_text(samples) + " samples of " +
                   std::to_string(r.data.sequence) + " tokens; at most " +
                   std::to_string(kMostSamples) + " samples and " + std::to_string(kMostTokens) +
                   " tokens are counted");
}

void check_batch(const Recipe& r, Problems& problems) {
  const TrainConfig& t = r.train;
  const int64_t given = t.global_batch_tokens.value;
  if (t.global_batch < 0) {
    problems.add("train.global_batch", to_text(t.global_batch) + " is below 1");
    return;
  }
  if ((given > 0) == (t.global_batch > 0)) {
    problems.add("train.global_batch_tokens",
                 "give either global_batch_tokens or global_batch (sequences)");
    return;
  }
  if (r.data.sequence <= 0) return;
  if (given > 0 && given % r.data.sequence != 0) {
    problems.add("train.global_batch_tokens",
                 std::to_string(given) + " is not a multiple of data.sequence " +
                     std::to_string(r.data.sequence) + ". " + near(given, r.data.sequence));
    return;
  }
  const int64_t batch = batch_of(r);
  check_length(r, batch, problems);
  if (t.micro_batch && (*t.micro_batch <= 0 || batch % *t.micro_batch != 0)) {
    problems.add("train.micro_batch",
                 std::to_string(*t.micro_batch) + " does not divide the global batch of " +
                     std::to_string(batch) + " sequences" + near_divisors(batch, *t.micro_batch));
  }
  if (!t.batch_ramp) return;
  problems.add_all(
      "train.batch_ramp",
      ramp_faults(*t.batch_ramp, batch, std::max<int64_t>(t.micro_batch.value_or(0), 0)));
}

// A model that is refused itself has no layers to speak of.
void check_fp8(const Recipe& r, Problems& problems) {
  if (!r.train.fp8 || !problems.empty()) return;
  const Precision precision = r.train.precision;
  if (precision != Precision::kAuto && precision != Precision::kBf16) {
    problems.add("train.fp8",
                 "goes with train.precision bf16 or auto, not with " + to_text(precision));
  }
  if (r.model.lora.frozen) {
    const std::string format = to_text(r.model.lora.frozen->format);
    problems.add(
        "train.fp8",
        "rounds weights to 8 bits for each product, and model.lora.frozen keeps weights in " +
            format + " already: leave one of the two out");
  }
  const Fp8Recipe recipe = r.train.fp8->recipe;
  if (has_one_scale(recipe) && r.parallel.dispatch == DispatchMode::kExact) {
    problems.add("train.fp8.recipe", to_text(recipe) +
                                         " makes a row's bits depend on other rows, and "
                                         "parallel.dispatch exact gives the bits of "
                                         "one rank: take row or block, or dispatch fast");
  }
  const int64_t ranks = std::max<int64_t>(1, r.parallel.tensor);
  const bool cuts_shared = r.parallel.split_shared == CutKind::kOn;
  problems.add_all("train.fp8", fp8_faults(*r.train.fp8, r.model,
                                           {.tensor = ranks, .shared = cuts_shared ? ranks : 1}));
}

void check_teacher(const Recipe& r, Problems& problems) {
  if (!r.train.teacher) return;
  const TeacherConfig& t = *r.train.teacher;
  if (t.path.empty()) {
    problems.add("train.teacher.path",
                 "is empty: name a run's folder, one of its steps, or a Hugging Face folder");
  }
  if (!(t.weight >= 0 && t.weight <= 1)) {
    problems.add("train.teacher.weight", to_text(t.weight) + " is not between 0 and 1");
  }
  if (!(t.temperature > 0)) {
    problems.add("train.teacher.temperature",
                 to_text(t.temperature) + " must be positive; 1 leaves the logits as they are");
  }
}

// Everything is f64 there: what would round it is refused.
void check_fp64(const Recipe& r, Problems& problems) {
  if (r.train.precision != Precision::kFp64) return;
  if (r.run.device != DeviceKind::kCpu) {
    problems.add("train.precision", "fp64 computes on the CPU alone: set run.device to cpu");
  }
  const std::string optimizer(r.train.optimizer.kind());
  if (needs_whole_matrices(r.train.optimizer)) {
    problems.add("train.optimizer", optimizer + " computes in f32, which train.precision fp64 " +
                                        "would hide; use adamw, sgd or lion");
  }
  const MomentType moments = base_of(r.train.optimizer).moments;
  if (moments != MomentType::kF32) {
    problems.add("train.optimizer.moments",
                 to_text(moments) + " rounds what train.precision fp64 keeps; leave it out");
  }
}

void check_train(const Recipe& r, Problems& problems) {
  const TrainConfig& t = r.train;
  if (t.steps < 0) {
    problems.add("train.steps", to_text(t.steps) + " is below 1");
  } else if ((t.tokens.value > 0) == (t.steps > 0)) {
    problems.add("train.tokens", "give either tokens or steps: how long the run is");
  }
  if (t.clip < 0) problems.add("train.clip", "must not be negative; 0 means none");
  if (t.spike.sigmas < 0 || t.spike.window < 2) {
    problems.add("train.spike", "needs sigmas of at least 0 and a window of at least 2 steps");
  }
  problems.add_all("train.optimizer", optimizer_faults(t.optimizer));
  problems.gather("train.recompute", [&] { recomputed_blocks(r); });
  check_fp8(r, problems);
  check_fp64(r, problems);
  check_teacher(r, problems);
  for (const auto& [path, why] : preference_faults(r)) problems.add(path, why);
  for (const auto& [path, why] : bits_faults(r)) problems.add(path, why);
  problems.add_all("train.cuda_graph", graph_faults(r));
  for (const auto& [path, why] : update_faults(r)) problems.add(path, why);
  if (problems.empty()) problems.add_all("train.offload_layers", offload_faults(r));
  if (problems.empty()) problems.add_all("train.schedule", lr_faults(t.schedule, plan_of(r).run));
}

// What is asked for and would be left out, because of something else that is asked for.
void check_exclusive(const Recipe& r, Problems& problems) {
  const bool scored = r.eval.every.value > 0 && (!r.data.valid.empty() || !r.data.split.empty());
  const ShardKind shard = r.parallel.shard;
  const bool shards =
      shard == ShardKind::kAuto ? !needs_whole_state(r.train.optimizer) : shard != ShardKind::kNone;
  const struct {
    bool both;
    const char *path, *why;
  } pairs[] = {
      {r.train.spike.skip && r.train.spike.sigmas == 0, "train.spike.skip",
       "skips nothing: with train.spike.sigmas 0 no step is a spike"},
      {r.checkpoint.when_busy == WhenBusy::kSkip && !r.checkpoint.background,
       "checkpoint.when_busy",
       "is used with checkpoint.background only: without it saves never overlap"},
      {r.model.lora.frozen && r.checkpoint.base == SavedBase::kSaved, "checkpoint.base",
       "saved would hold the frozen weights, and those in few bits (model.lora.frozen) are saved "
       "nowhere: leave it out, checkpoints then name the base that has them"},
      {r.checkpoint.keep_best > 0 && !scored, "checkpoint.keep_best",
       "needs scores: eval.every, and data.valid or data.split"},
      {r.model.preset.empty() && r.model.mtp.depth == 0 && r.model.mtp.weight != MtpConfig{}.weight,
       "model.mtp.weight", "has no module to weigh: model.mtp.depth is 0"},
      {r.model.moe.shared.hidden > 0 && r.model.moe.shared.experts == 0, "model.moe.shared.hidden",
       "is the width of shared experts, of which there are none: set model.moe.shared.experts"},
      {r.parallel.shard_ranks > 0 && !shards, "parallel.shard_ranks",
       "is the number of ranks that share state, and parallel.shard shards none"},
  };
  for (const auto& pair : pairs) {
    if (pair.both) problems.add(pair.path, pair.why);
  }
}

// What is wrong in any world; the rest is known when the ranks have met.
void check_wire(const Recipe& r, Problems& problems) {
  const WireType wire = r.parallel.wire;
  if (wire != WireType::kNative && r.parallel.dispatch == DispatchMode::kExact) {
    problems.add("parallel.wire",
                 to_text(wire) +
                     " rounds the rows that go to experts, and parallel.dispatch exact gives the "
                     "bits of one rank: take wire native, or dispatch fast");
  }
  if (wire == WireType::kFp8 && r.train.precision == Precision::kFp16) {
    problems.add("parallel.wire",
                 "fp8 may round a row's largest value to one that train.precision fp16 does not "
                 "hold: take wire int8 or native, or precision bf16");
  }
}

void check_parallel(const Recipe& r, Problems& problems) {
  for (const auto& [field, why] : pipeline_faults(r.parallel, r.model.layers, r.model.mtp.depth)) {
    problems.add(field, why);
  }
  const ShardKind shard = r.parallel.shard;
  if ((shard == ShardKind::kFull || shard == ShardKind::kZero1) &&
      needs_whole_state(r.train.optimizer)) {
    problems.add("parallel.shard", to_text(shard) + " shards optimizer state, which " +
                                       std::string(r.train.optimizer.kind()) +
                                       " needs whole: use none");
  }
  if (r.parallel.comm_blocks > kMostBlocks) {
    problems.add("parallel.comm_blocks", std::to_string(r.parallel.comm_blocks) +
                                             " SMs for one collective; NCCL takes at most " +
                                             std::to_string(kMostBlocks) + "; 0 leaves it to NCCL");
  }
  if (r.parallel.backend == CommBackend::kNccl && r.run.device == DeviceKind::kCpu) {
    problems.add("parallel.backend",
                 "nccl moves tensors between GPUs, and run.device is cpu: take auto or gloo");
  }
  if (r.parallel.backend == CommBackend::kGloo && r.run.device != DeviceKind::kCpu &&
      needs_one_host(r.parallel.dispatcher)) {
    problems.add("parallel.dispatcher",
                 std::string(r.parallel.dispatcher.kind()) +
                     " reads the memory of other GPUs, and parallel.backend gloo goes through host "
                     "memory, where ranks may share one GPU: take auto, all_to_all or two_level");
  }
  for (const auto& [field, ranks] :
       {std::pair{"tensor", r.parallel.tensor}, std::pair{"context", r.parallel.context},
        std::pair{"pipeline", r.parallel.pipeline},
        std::pair{"expert_tensor", r.parallel.expert_tensor}}) {
    if (ranks < 0) {
      problems.add("parallel." + std::string(field),
                   std::to_string(ranks) + " ranks; use 1 or more, or 0 to let it be chosen");
    }
  }
  check_wire(r, problems);
  if (r.parallel.rebalance.every < 0 || r.parallel.rebalance.gain < 0) {
    problems.add("parallel.rebalance", "every and gain must not be negative");
  }
  if (r.parallel.rebalance.every > 0 && !has_state_by_element(r.train.optimizer)) {
    problems.add(
        "parallel.rebalance",
        "needs optimizer state with one value per element, to move with its expert; that of "
        "optimizer " +
            std::string(r.train.optimizer.kind()) +
            " with these moments is "
            "shared by a matrix or a block. Take adamw with moments f32 or bf16");
  }
  if (r.run.hang_timeout.ns <= 0) problems.add("run.hang_timeout", "must be positive");
  if (r.run.start_timeout.ns <= 0) problems.add("run.start_timeout", "must be positive");
}

void check_rest(const Recipe& r, Problems& problems) {
  if (!r.eval.prompts.empty() && r.data.tokenizer.empty()) {
    problems.add("eval.prompts", "need data.tokenizer");
  }
  if (r.log.records.unit == Span::Unit::kPercent || r.log.every.unit == Span::Unit::kPercent ||
      r.log.experts.value_or(Span()).unit == Span::Unit::kPercent ||
      r.eval.every.unit == Span::Unit::kPercent) {
    problems.add("log", "intervals are in steps, samples, tokens or time, not in percent");
  }
  if (r.run.check_replicas.value_or(Span()).unit == Span::Unit::kPercent) {
    problems.add("run.check_replicas", "is in steps, samples, tokens or time, not in percent");
  }
  if (r.log.routing_logits && r.log.routing == 0) {
    problems.add("log.routing_logits", "needs log.routing, the steps to keep");
  }
  for (const auto& [axis, ranks] :
       {std::pair{"tensor", r.parallel.tensor}, std::pair{"context", r.parallel.context}}) {
    if (r.log.routing == 0 || ranks <= 1) continue;
    problems.add("log.routing", "needs parallel." + std::string(axis) + " 1: " + axis +
                                    " ranks route parts of a microbatch");
  }
  problems.add_all("profile", profile_faults(r.profile));
  if (r.data.sequence > r.model.max_positions) {
    problems.add("data.sequence", std::to_string(r.data.sequence) + " is longer than the model's " +
                                      std::to_string(r.model.max_positions) +
                                      " positions (model.max_positions)");
  }
}

// Call it for a model without faults: that of a faulty one has no layers to count.
void check_routing(const Recipe& r, Problems& problems) {
  if (num_moe_layers(r.model) > 0) return;
  if (r.log.routing > 0) problems.add("log.routing", "the model has no experts to choose");
  if (!r.run.replay.empty()) problems.add("run.replay", "the model has no experts to choose");
}

}  // namespace

void validate(const Recipe& r, const Sources& sources) {
  Problems problems(sources);
  check_counts(r, problems);
  problems.throw_if_any();
  problems.gather("model", [&] {
    validate(r.model);
    check_routing(r, problems);
  });
  problems.gather("data", [&] { validate(r.data); });
  problems.gather("checkpoint", [&] { validate(r.checkpoint); });
  check_batch(r, problems);
  check_train(r, problems);
  check_exclusive(r, problems);
  for (const std::string& path : negative_fields(r)) problems.add(path, "must not be negative");
  check_parallel(r, problems);
  check_rest(r, problems);
  problems.throw_if_any();
}

Span record_interval(const LogConfig& log, const Position& run) {
  constexpr int64_t kLines = 100'000;
  if (log.records.value > 0) return log.records;
  return steps((run.steps + kLines - 1) / kLines);
}

Span expert_interval(const LogConfig& log, const Position& run) {
  constexpr int64_t kColumns = 50, kMostApart = 100;
  return log.experts.value_or(steps(std::clamp<int64_t>(run.steps / kColumns, 1, kMostApart)));
}

std::vector<bool> recomputed_blocks(const Recipe& r) {
  if (r.train.recompute == "none") return std::vector<bool>(static_cast<size_t>(r.model.layers));
  return moe_layers(r.train.recompute, r.model.layers);
}

std::set<int> offloaded_units(const Recipe& r) {
  std::set<int> out;
  for (int64_t layer = 0; layer < r.train.offload_layers; ++layer) {
    out.insert(static_cast<int>(layer) + 1);
  }
  return out;
}

std::vector<int64_t> micro_batches(const Recipe& r, int64_t most_tokens) {
  const int64_t batch = batch_of(r), unit = std::min(batch, rows_together(r));
  std::vector<int64_t> out;
  for (int64_t n = std::clamp<int64_t>(most_tokens / r.data.sequence, unit, batch); n > 0; --n) {
    const bool whole = batch % n == 0 && n % unit == 0;
    if (whole && divides_ramp(r.train.batch_ramp, n)) out.push_back(n);
  }
  return out;
}

RunPlan plan_of(const Recipe& r) {
  RunPlan out;
  out.batch = batch_of(r);
  const int64_t sequence = r.data.sequence;
  TROUPE_CHECK(out.batch > 0 && sequence > 0, "batch", out.batch, "sequence", sequence);
  const std::optional<BatchRamp>& ramp = r.train.batch_ramp;
  out.micro_batch = r.train.micro_batch ? *r.train.micro_batch : micro_batches(r).front();
  if (r.train.steps > 0) {
    Position& run = out.run;
    for (; run.steps < r.train.steps && ramp && run.samples < ramp_end(*ramp); ++run.steps) {
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
