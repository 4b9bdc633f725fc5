// The learning rate, the weight decay and the global batch as functions of how far the run is.
//
// With n the position before an update, W the warm-up, N the end of the decay (all in one unit),
// and r = (n - W) / (N - W):
//   warm-up, n < W   from + (max - from) n' / W, n' the position after the update, so that the first
//                    one is not 0; from is 0 where it is not given
//   constant         max
//   linear, cosine   min + (max - min) c(r),  c = 1 - r  or  (1 + cos pi r) / 2
//   inverse_sqrt     max(min, max sqrt(W / n))
//   wsd              max until N - D; then min + (max - min) c(q), q = (n - (N - D)) / D, and c
//                    1 - q, (1 + cos pi q) / 2, 2 0.5^q - 1 or 1 - sqrt q
//   n > N            min (not constant)
// `megatron: true` warms up with n in place of n', for n <= W, as Megatron-LM does. `min` and
// `warmup_from` are fractions of the largest rate.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "troupe/core/config/facts.h"
#include "troupe/core/config/one_of.h"
#include "troupe/core/config/span.h"

namespace troupe {

struct ConstantLr {
  static constexpr std::string_view kKind = "constant";
  static constexpr std::string_view kHelp = "no decay";
  Span warmup = {};
  double warmup_from = 0;
  bool megatron = false;
  static void visit(auto& c, auto&& f) {
    f("warmup", c.warmup, "Linear warmup: 2000 steps, 1B tokens or 2%.");
    f("warmup_from", c.warmup_from, "Rate at the start of the warmup as a fraction of the peak.");
    f("megatron", c.megatron,
      "Megatron-LM's step counting: the first update has the warmup's first rate, 0.");
  }
};

// What all that decay have.
struct DecayingLr {
  Span warmup = {};
  double warmup_from = 0;
  std::optional<Span> end = {};  // N; absent: the end of the run
  double min = 0.1;
  bool megatron = false;
  static void visit(auto& c, auto&& f) {
    f("warmup", c.warmup, "Linear warmup: 2000 steps, 1B tokens or 2%.");
    f("warmup_from", c.warmup_from, "Rate at the start of the warmup as a fraction of the peak.");
    f("end", c.end, "End of the decay; null: end of the run.");
    f("min", c.min, "Minimum learning rate as a fraction of the peak.");
    f("megatron", c.megatron,
      "Megatron-LM's step counting: the first update has the warmup's first rate, 0.");
  }
};
struct LinearLr : DecayingLr {
  static constexpr std::string_view kKind = "linear";
  static constexpr std::string_view kHelp = "decay to min along a line";
};
struct CosineLr : DecayingLr {
  static constexpr std::string_view kKind = "cosine";
  static constexpr std::string_view kHelp = "decay to min along half a cosine";
};
struct InverseSqrtLr : DecayingLr {
  static constexpr std::string_view kKind = "inverse_sqrt";
  static constexpr std::string_view kHelp = "decay with the root of the step";
};

enum class Tail { kLinear, kCosine, kExponential, kSqrt };
constexpr auto names_of(Tail) {
  return std::array{Named{"linear", Tail::kLinear}, Named{"cosine", Tail::kCosine},
                    Named{"exponential", Tail::kExponential}, Named{"sqrt", Tail::kSqrt}};
}
// To anneal a running model early, set `end` to where it is plus `decay`.
struct WsdLr : DecayingLr {
  static constexpr std::string_view kKind = "wsd";
  static constexpr std::string_view kHelp =
      "constant, then a decay at the end (warmup, stable, decay)";
  Span decay = {10, Span::Unit::kPercent};  // D
  Tail tail = Tail::kLinear;
  static void visit(auto& c, auto&& f) {
    DecayingLr::visit(c, f);
    f("decay", c.decay, "wsd: length of the decay.");
    f("tail", c.tail, "wsd: shape of the decay.");
  }
};

using LrConfig = OneOf<ConstantLr, LinearLr, CosineLr, InverseSqrtLr, WsdLr>;

// Names what is wrong, or nothing: spans of different units, a warm-up longer than the run.
std::vector<std::string> lr_faults(const LrConfig& config, const Position& run);

// The factor of the largest rate, for the update from `before` to `after` in a run of that length.
double lr_factor(const LrConfig& config, const Position& before, const Position& after,
                 const Position& run);

enum class RampForm { kLinear, kCosine };
constexpr auto names_of(RampForm) {
  return std::array{Named{"linear", RampForm::kLinear}, Named{"cosine", RampForm::kCosine}};
}
// A value that moves from `start` at step 0 to `end` at step `steps` and stays there.
double ramped(double start, double end, RampForm form, int64_t step, int64_t steps);

inline constexpr int64_t kMostBatch = int64_t{1} << 32;  // sequences of a step

// `batch` sequences per step until the run has seen `until` samples.
struct BatchStage {
  int64_t batch = 0;
  int64_t until = 0;
  static void visit(auto& c, auto&& f) {
    f("batch", c.batch, "Sequences per step.", AtMost{kMostBatch});
    f("until", c.until, "End of the stage in samples of the run.", AtMost{int64_t{1} << 53});
  }
};
// The batch grows from `start` by `increment` (sequences) in equal stretches of `samples` in all;
// or goes through `stages`. After that it is the full one.
struct BatchRamp {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;
  std::vector<BatchStage> stages = {};
  static void visit(auto& c, auto&& f) {
    f("start", c.start, "Initial batch size in sequences.", AtMost{kMostBatch});
    f("increment", c.increment, "Increment in sequences.", AtMost{kMostBatch});
    f("samples", c.samples, "Length of the ramp in sequences.");
    f("stages", c.stages,
      "Explicit batch sizes before the full one, instead of start and increment.");
  }
};
// Names what is wrong for a full batch of `full` in parts of `micro` (0: not chosen yet).
std::vector<std::string> ramp_faults(const BatchRamp& ramp, int64_t full, int64_t micro);
int64_t ramp_end(const BatchRamp& ramp);                             // samples
bool divides_ramp(const std::optional<BatchRamp>& ramp, int64_t n);  // each of its batches
// Sequences of the step that begins after `samples`; `full` where there is no ramp or it is over.
int64_t batch_at(const std::optional<BatchRamp>& ramp, int64_t full, int64_t samples);
// How long a run of `tokens` is: steps are whole, so it may end up to a batch later.
Position run_of(const std::optional<BatchRamp>& ramp, int64_t full, int64_t sequence,
                int64_t tokens);

}  // namespace troupe
