// A recipe: everything that a run is, as one config. The mathematics is in model, data and train;
// how it maps onto machines in parallel alone.
//
//   model: {layers: 4, width: 192, heads: 6, vocab: 2048, moe: {experts: 8, top_k: 2, hidden: 192}}
//   data: {train: [{path: corpus/train}], valid: [{path: corpus/valid}], sequence: 256}
//   train: {global_batch_tokens: 16K, tokens: 4M, optimizer: {lr: 1e-3}}
//   checkpoint: {dir: runs/quickstart}
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "troupe/checkpoint/folder/config.h"
#include "troupe/core/config/config_traits.h"
#include "troupe/core/config/facts.h"
#include "troupe/core/text/units.h"
#include "troupe/data/tokens/data_config.h"
#include "troupe/nn/config/config.h"
#include "troupe/train/observe/health.h"
#include "troupe/train/observe/profile.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/optim/guard.h"
#include "troupe/train/optim/loss_mean.h"
#include "troupe/train/optim/lr_schedule.h"
#include "troupe/train/optim/optimizer.h"
#include "troupe/train/optim/update_place.h"
#include "troupe/train/recipe/fp8.h"
#include "troupe/train/recipe/parallel.h"
#include "troupe/train/recipe/precision.h"
#include "troupe/train/recipe/preference.h"
#include "troupe/train/recipe/run_config.h"
#include "troupe/train/recipe/teacher.h"

namespace troupe {

struct TrainConfig {
  Count global_batch_tokens = {};           // or global_batch
  int64_t global_batch = 0;                 // sequences of a step
  std::optional<int64_t> micro_batch = {};  // sequences at a time; absent: chosen, and printed
  Count tokens = {};                        // how long the run is; or steps
  int64_t steps = 0;
  Precision precision = Precision::kAuto;
  std::optional<Fp8Config> fp8 = {};          // absent: off
  std::optional<TeacherConfig> teacher = {};  // absent: none
  LossKind loss = LossKind::kCrossEntropy;
  PreferenceOptions dpo;  // of loss dpo
  OptimizerConfig optimizer;
  LrConfig schedule = CosineLr{};
  LossMean loss_mean = LossMean::kTokens;
  double clip = 1;  // of the global gradient norm; 0: none
  ClipBy clip_by = ClipBy::kThisStep;
  UpdatePlace update = UpdatePlace::kAfterBackward;
  uint64_t seed = 1;
  std::optional<BatchRamp> batch_ramp = {};
  std::string recompute = "none";  // blocks to recompute, as of model.moe.layers; "1": all
  int64_t offload_layers = 0;      // the first ones; train/step/activation_offload.h
  bool offload_state = false;      // train/optim/state_stream.h
  LossScaleConfig loss_scale;      // fp16 alone
  SpikeConfig spike;
  int64_t max_skips = 5;    // steps in a row without a finite gradient before the run stops
  bool cuda_graph = false;  // train/step/step_graph.h

  static void visit(auto& c, auto&& f) {
    f("global_batch_tokens", c.global_batch_tokens,
      "Tokens per step, a multiple of data.sequence; or set global_batch.", AtMost{kMostTokens});
    f("global_batch", c.global_batch, "Sequences per step; or set global_batch_tokens.",
      AtMost{kMostBatch});
    f("micro_batch", c.micro_batch,
      "Sequences per microbatch; null: chosen. The loss does not depend on it.",
      AtMost{kMostBatch});
    f("tokens", c.tokens, "Length of the run in tokens; or set steps.", AtMost{kMostTokens});
    f("steps", c.steps, "Length of the run in steps; or set tokens.");
    f("precision", c.precision,
      "Type of weights and matrix products; auto: bf16 on a GPU, fp32 on a CPU. fp64: on a CPU "
      "only and slow, to tell rounding from a fault; moments and sums are fp64 then.");
    f("fp8", c.fp8, "Expert products with 8-bit operands (e4m3); null: off.");
    f("teacher", c.teacher, "A model whose probabilities are learned beside targets; null: none.");
    visit_loss(c, f);
    f("optimizer", c.optimizer, "Optimizer.");
    f("schedule", c.schedule, "Learning rate schedule.");
    f("loss_mean", c.loss_mean,
      "Mean over all target tokens of a step (tokens), or over its microbatches' means.");
    f("clip", c.clip, "Maximum global gradient norm; 0: off.");
    f("clip_by", c.clip_by,
      "Whose norm clips: this_step's own, or last_step's, which is known before backward; the "
      "first step is then not clipped.");
    f("update", c.update,
      "When weights are updated: after_backward, or in_backward, each layer's as soon as its "
      "gradient is whole, which then goes. Not with clipping by this_step.");
    f("seed", c.seed, "Seed of weights, sample order and noise.");
    f("batch_ramp", c.batch_ramp, "Batch size ramp-up at the start; null: off.");
    f("recompute", c.recompute,
      "Layers with activation recomputation: none, \"1\" all, or a list.");
    f("offload_layers", c.offload_layers,
      "Number of layers, the first ones, whose activations are in host memory between forward and "
      "backward; 0: none.",
      kNotNegative);
    f("offload_state", c.offload_state, "Keeps masters and moments in pinned host memory.");
    f("loss_scale", c.loss_scale, "Dynamic loss scale, fp16 only.");
    f("spike", c.spike, "Detection of loss and gradient norm spikes.");
    f("max_skips", c.max_skips, "Consecutive steps without a finite gradient before the run stops.",
      kNotNegative);
    f("cuda_graph", c.cuda_graph,
      "One GPU: forward, backward and AdamW's update of a step replayed as CUDA graphs, the same "
      "bits; other optimizers and evaluations stay eager.");
  }
};

struct EvalConfig {
  Span every = {};  // 0: never
  bool at_start = false;
  int64_t batches = 0;                    // of each set; 0: all of it
  int64_t batch = 0;                      // sequences at a time; 0: train's micro batch
  std::vector<std::string> prompts = {};  // continued at each evaluation
  int64_t sample_tokens = 64;
  double temperature = 0.8;  // 0: the most probable token
  int64_t sample_top_k = 0;  // 0: all

  static void visit(auto& c, auto&& f) {
    f("every", c.every, "Interval: 500 steps, 1B tokens, 30min; 0: never.");
    f("at_start", c.at_start, "Evaluates before the first step too.");
    f("batches", c.batches, "Batches per set, over all ranks; 0: the whole set.", kNotNegative);
    f("batch", c.batch, "Sequences per batch and rank; 0: train.micro_batch.", AtMost{kMostBatch},
      kNotNegative);
    f("prompts", c.prompts, "Prompts to continue at each evaluation.");
    f("sample_tokens", c.sample_tokens, "Tokens per continuation.");
    f("temperature", c.temperature, "Sampling temperature; 0: greedy.", kNotNegative);
    f("sample_top_k", c.sample_top_k, "Top-k sampling; 0: off.");
  }
};

struct LogConfig {
  Span every = {};  // step lines; 0: each of the first ten, then a second apart at least
  LineFormat format = LineFormat::kTroupe;
  Span records = {};  // lines of log.jsonl; 0: each step, of a long run 100,000 of them
  int64_t keep = 3;   // older files of log.txt (file_sink), beside the one that is written
  std::optional<Span> experts = {};  // every expert's load, for the heat map; see expert_interval
  int64_t routing = 0;  // every so many steps the routers' choices, RUN/routing; 0: never
  bool routing_logits = false, tensorboard = true;  // logits: what the choices were made of
  HealthConfig health;
  static void visit(auto& c, auto&& f) {
    f("every", c.every, "Interval of step lines; 0: the first ten steps, then one a second.");
    f("format", c.format, "Format of step lines: ours, or Megatron-LM's for its tools.");
    f("records", c.records, "Interval of records in log.jsonl; 0: every step, at most 100,000.");
    f("keep", c.keep, "Older log.txt files to keep, of 64 MiB each.", AtMost{1000}, kNotNegative);
    f("experts", c.experts,
      "Interval of per-expert loads; null: 50 a run, at most 100 steps apart; 0: never.");
    f("routing", c.routing,
      "Interval, in steps, of the routers' choices kept in routing/ of the run folder; 0: never.",
      kNotNegative);
    f("routing_logits", c.routing_logits, "Keeps the routers' logits beside the choices.");
    f("tensorboard", c.tensorboard, "Writes TensorBoard events to tb/ in the run folder.");
    f("health", c.health, "Thresholds of expert health warnings.");
  }
};

struct Recipe {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  LogConfig log;
  ProfileConfig profile;
  RunConfig run;

  static void visit(auto& r, auto&& f) {
    f("model", r.model, "Model to train: a decoder, dense or mixture of experts.");
    f("data", r.data, "Training and validation data and their order.");
    f("train", r.train, "Training.");
    f("eval", r.eval, "Evaluation during training.");
    f("parallel", r.parallel, "Layout of the run on its ranks; results differ by rounding only.");
    f("checkpoint", r.checkpoint, "Checkpoints.");
    f("log", r.log, "Logging.");
    f("profile", r.profile, "Profile of some steps.");
    f("run", r.run, "Process and device.");
  }
  // core/config/config_read.h: what Megatron-LM, LLM-Foundry and Hugging Face call our fields.
  static std::span<const Alias> aliases();
};

// The file, then each --set; faults of both in one Error. `sources` says where each value is from.
// `base: other.yaml` at the top of a file is a file beside it, or further down, that is read first.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& sets, Sources& sources);

// All that is wrong with the values, without opening data or devices; throws one Error with a line
// each. Warnings are what looks unintended.
void validate(const Recipe& recipe, const Sources& sources);

int64_t batch_of(const Recipe& recipe);  // sequences of a full step
struct RunPlan {                         // what follows from the recipe
  int64_t batch = 0;                     // sequences of a full step
  int64_t micro_batch = 0;  // sequences; where the recipe has none, the first of micro_batches()
  Position run;             // how long it is
};
RunPlan plan_of(const Recipe& recipe);

// Values that train.micro_batch may have: each divides every batch, ramp included, is a multiple of
// rows_together(), and is that or has at most kMicroTokens tokens. The largest first.
inline constexpr int64_t kMicroTokens = 8192;
std::vector<int64_t> micro_batches(const Recipe& recipe, int64_t most_tokens = kMicroTokens);

// How often log.jsonl has a line: what log.records says, or at most 100,000 times in `run`.
Span record_interval(const LogConfig& log, const Position& run);
Span expert_interval(const LogConfig& log, const Position& run);  // of per-expert loads

// By block: whether train.recompute names it.
std::vector<bool> recomputed_blocks(const Recipe& recipe);
// The units of the first train.offload_layers blocks; unit 0 is the embedding.
std::set<int> offloaded_units(const Recipe& recipe);

}  // namespace troupe
