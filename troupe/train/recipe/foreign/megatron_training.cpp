#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/megatron_parts.h"
#include "troupe/train/recipe/fp8.h"

namespace troupe {
namespace {

// The batch, how long the run is, and the learning rate over it.
class MegatronSchedule : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    batch();
    length();
    schedule();
  }

 private:
  void batch() {
    if (!flags_.given("micro-batch-size"))
      draft_.set("train.micro_batch", "1", {"--micro-batch-size 1, its default", ""});
    stages();
    // Only where some targets do not count are the two means two numbers.
    if (flags_.given("eod-mask-loss") && !flags_.given("calculate-per-token-loss")) {
      draft_.set("train.loss_mean", "microbatches",
                 {"without --calculate-per-token-loss, its default", ""});
    }
    const auto ramp = flags_.list("rampup-batch-size");
    if (!flags_.given("rampup-batch-size")) return;
    const Origin from = flags_.origin("rampup-batch-size");
    if (ramp.size() != 3) return draft_.refuse(from, "takes start, increment and samples");
    draft_.set("train.batch_ramp.start", ramp[0], from);
    draft_.set("train.batch_ramp.increment", ramp[1], from);
    draft_.set("train.batch_ramp.samples", ramp[2], from);
  }

  // "0:16 2.4B:320 4.8B:624": from so many tokens on, a batch of so many sequences.
  void stages() {
    constexpr const char* kFlag = "step-batch-size-schedule";
    if (!flags_.given(kFlag)) return;
    const Origin from = flags_.origin(kFlag);
    const int64_t sequence = flags_.whole("seq-length", 0);
    std::string text;
    for (const std::string& part : flags_.list(kFlag)) text += part + ' ';
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream in(text);
    std::string ramp, batch;
    int64_t until = 0;
    for (std::string part; in >> part;) {
      const size_t colon = part.find(':');
      const auto tokens = with_suffix(part.substr(0, colon));
      const auto next = with_suffix(colon == std::string::npos ? "" : part.substr(colon + 1));
      const int64_t samples = tokens && sequence > 0 ? *tokens / sequence : -1;
      const bool first = batch.empty();
      if (!next || samples < 0 || (first ? samples != 0 : samples <= until)) {
        return draft_.refuse(from, "TOKENS:BATCH pairs that begin at 0 and grow are expected");
      }
      until = samples;
      if (!first) {
        ramp += (ramp.empty() ? "{batch: " : ", {batch: ") + batch;
        ramp += ", until: " + to_text(samples) + '}';
      }
      batch = to_text(*next);
    }
    if (batch.empty()) return draft_.refuse(from, "needs a value");
    if (!flags_.given("global-batch-size")) draft_.set("train.global_batch", batch, from);
    if (!ramp.empty()) draft_.set("train.batch_ramp.stages", '[' + ramp + ']', from);
  }

  // "2.4B": a number with K, M, B or T, as Megatron-LM reads it.
  static std::optional<int64_t> with_suffix(std::string text) {
    constexpr std::string_view kSuffixes = "KMBT";
    const char last = text.empty() ? ' ' : static_cast<char>(std::toupper(text.back()));
    const size_t at = kSuffixes.find(last);
    if (at != std::string_view::npos) text.pop_back();
    double value = 0;
    if (!from_text(text, value) || value < 0) return {};
    double unit = 1;
    for (size_t i = 0; at != std::string_view::npos && i <= at; ++i) unit *= 1000;
    value *= unit;
    return value < 9e15 ? std::optional(std::llround(std::floor(value))) : std::nullopt;
  }

  void length() {
    if (flags_.given("train-tokens")) {
      script_.field("train.tokens", "train-tokens", "");
      if (flags_.given("train-iters")) {
        draft_.ignore(flags_.origin("train-iters"), "--train-tokens end the run");
      }
    } else if (flags_.given("train-samples")) {
      const int64_t samples = flags_.whole("train-samples", 0);
      const int64_t sequence = flags_.whole("seq-length", 0);
      draft_.set("train.tokens", to_text(samples * sequence), flags_.origin("train-samples"));
    } else if (flags_.given("train-iters")) {
      script_.field("train.steps", "train-iters", "");
    } else {
      draft_.need("train.tokens",
                  "neither --train-iters nor --train-samples is given: this, or train.steps");
    }
  }

  void schedule() {
    const std::string style = flags_.text("lr-decay-style", "linear");
    const Origin from = flags_.origin("lr-decay-style", "linear");
    const bool wsd = style == "WSD";
    const std::string kind = style == "inverse-square-root" ? "inverse_sqrt" : wsd ? "wsd" : style;
    draft_.set("train.schedule.kind", kind, from);
    draft_.set("train.schedule.megatron", "true", from);
    warmup();
    if (kind == "constant") return;
    if (const std::string end = same_unit(span("lr-decay")); !end.empty()) {
      draft_.set("train.schedule.end", end, span_origin("lr-decay"));
    }
    const double lr = flags_.number("lr", 0), least = flags_.number("min-lr", 0);
    if (lr > 0) {
      draft_.set("train.schedule.min", number_text(least / lr), flags_.origin("min-lr", "0"));
    }
    if (!wsd) return;
    if (const std::string decay = same_unit(span("lr-wsd-decay")); !decay.empty()) {
      draft_.set("train.schedule.decay", decay, span_origin("lr-wsd-decay"));
    } else {
      draft_.need("train.schedule.decay", "--lr-wsd-decay-iters is not given");
    }
    const std::string tail = flags_.text("lr-wsd-decay-style", "exponential");
    draft_.set("train.schedule.tail", tail == "minus_sqrt" ? "sqrt" : tail,
               flags_.origin("lr-wsd-decay-style", "exponential"));
  }

  void warmup() {
    const double first = flags_.number("lr-warmup-init", 0), largest = flags_.number("lr", 0);
    if (first != 0 && largest > 0) {
      draft_.set("train.schedule.warmup_from", number_text(first / largest),
                 flags_.origin("lr-warmup-init"));
    } else if (first != 0) {
      draft_.need("train.schedule.warmup_from", "--lr-warmup-init is a share of --lr: this");
    }
    std::string value = span("lr-warmup");
    Origin from = span_origin("lr-warmup");
    if (flags_.given("lr-warmup-fraction")) {
      const double fraction = flags_.number("lr-warmup-fraction", 0);
      const bool samples = flags_.given("lr-decay-samples") || flags_.given("train-samples");
      const std::string unit = samples ? "-samples" : "-iters";
      const int64_t of = flags_.whole("lr-decay" + unit, flags_.whole("train" + unit, 0));
      value = warmup_part(fraction * static_cast<double>(of), samples);
      from = flags_.origin("lr-warmup-fraction");
    }
    if (!value.empty()) draft_.set("train.schedule.warmup", value, from);
  }

  // There it is counted in samples, and may end within a step: then all spans are in samples here.
  std::string warmup_part(double length, bool samples) {
    const int64_t batch = flags_.whole("global-batch-size", 0);
    const bool whole = std::abs(length - std::round(length)) < 1e-6;
    if (!samples && (whole || batch <= 0)) return to_text(std::llround(length));
    batch_ = samples ? 0 : batch;
    if (!samples) length *= static_cast<double>(batch);
    // The first step has the first rate there, however short it is.
    return to_text(std::max<int64_t>(std::llround(length), length > 0)) + " samples";
  }

  // A number of steps in samples, where the warmup is.
  std::string same_unit(const std::string& span) const {
    int64_t steps = 0;
    if (batch_ == 0 || !from_text(span, steps)) return span;
    return to_text(steps * batch_) + " samples";
  }

  // "2000 steps", "100000 samples" or "5000 tokens" of the flags --X-iters, --X-samples and
  // --X-tokens; "": none.
  std::string span(const std::string& name) {
    if (flags_.given(name + "-tokens")) return flags_.text(name + "-tokens") + " tokens";
    if (flags_.given(name + "-samples")) return flags_.text(name + "-samples") + " samples";
    return flags_.text(name + "-iters");
  }

  int64_t batch_ = 0;  // of a step, where spans of steps become samples

  Origin span_origin(const std::string& name) {
    for (const char* unit : {"-tokens", "-samples"}) {
      if (flags_.given(name + unit)) return flags_.origin(name + unit);
    }
    return flags_.origin(name + "-iters");
  }
};

// The optimizer, its moments and the clip; the precision of products.
class MegatronOptimizer : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    optimizer();
    precision();
  }

 private:
  void optimizer() {
    const std::string given = flags_.text("optimizer", "adam");
    const std::string kind = given == "dist_muon"  ? "muon"
                             : given == "cpu-adam" ? "adam"
                                                   : given;  // as DeepSpeed's moments on the host
    const Origin from = flags_.origin("optimizer", "adam");
    const std::string root = "train.optimizer.";
    if (kind != "adam" && kind != "sgd" && kind != "muon" && kind != "lion" &&
        kind != "adafactor") {
      return draft_.refuse(from, "adam, sgd, lion, muon and adafactor are supported");
    }
    draft_.set(root + "kind", kind == "adam" ? "adamw" : kind, from);
    if (flags_.given("lr")) script_.field(root + "lr", "lr", "");
    const bool grows = flags_.text("weight-decay-incr-style", "constant") != "constant";
    const std::string decay = grows ? "start-weight-decay" : "weight-decay";
    script_.field(root + "weight_decay", decay, "0.01");
    if (grows) {
      script_.field(root + "weight_decay_end", "end-weight-decay", "0.01");
      script_.field(root + "weight_decay_form", "weight-decay-incr-style", "linear");
    }
    if (kind == "adafactor") {
      draft_.note(from.text +
                  ": as torch.optim.Adafactor has it; the script does not say its own "
                  "decay, eps and clip");
    } else if (kind == "sgd") {
      script_.field(root + "momentum", "sgd-momentum", "0.9");
    } else {
      if (kind == "muon") muon(root);
      const std::string betas =
          quoted_list({flags_.text("adam-beta1", "0.9"), flags_.text("adam-beta2", "0.999")});
      Origin betas_from = flags_.origin("adam-beta1", "0.9");
      betas_from.text += ", " + flags_.origin("adam-beta2", "0.999").text;
      draft_.set(root + "betas", betas, betas_from);
      if (kind != "lion") script_.field(root + "eps", "adam-eps", "1e-8");
    }
    const std::string moments = flags_.text("exp-avg-dtype", "fp32");
    const std::string squares = flags_.text("exp-avg-sq-dtype", "fp32");
    if (moments == "bf16" && squares == "bf16") {
      draft_.set(root + "moments", "bf16", flags_.origin("exp-avg-dtype"));
    } else if (moments != "fp32" || squares != "fp32") {
      const bool first = flags_.given("exp-avg-dtype");
      draft_.refuse(flags_.origin(first ? "exp-avg-dtype" : "exp-avg-sq-dtype"),
                    "both moments are fp32, or both bf16");
    }
    script_.field("train.clip", "clip-grad", "1.0");
    decoupled();
  }

  // Ours is Moonshot's: Nesterov's momentum, the orthogonal matrix times 0.2 sqrt(max(rows, columns)).
  void muon(const std::string& root) {
    script_.field(root + "momentum", "muon-momentum", "0.9");
    if (flags_.given("muon-nesterov")) {
      draft_.ignore(flags_.origin("muon-nesterov"), "always so here");
    } else {
      draft_.refuse(flags_.origin("optimizer"),
                    "plain momentum is not supported: Muon's is Nesterov's here, as with "
                    "--muon-nesterov there");
    }
    const std::string mode = flags_.text("muon-scale-mode", "spectral");
    if (mode != "spectral" || flags_.number("muon-extra-scale-factor", 1) != 0.2) {
      draft_.refuse(flags_.origin("muon-scale-mode", "spectral"),
                    "only spectral with --muon-extra-scale-factor 0.2 has the size of the updates "
                    "here");
    }
    if (flags_.whole("muon-num-ns-steps", 5) != 5) {
      draft_.refuse(flags_.origin("muon-num-ns-steps"), "5 are supported");
    }
    if (flags_.given("muon-no-split-qkv")) {
      draft_.refuse(flags_.origin("muon-no-split-qkv"),
                    "queries, keys and values are matrices of their own here");
    }
    if (flags_.text("muon-tp-mode", "duplicated") == "blockwise") {
      draft_.refuse(flags_.origin("muon-tp-mode"), "matrices are always whole here");
    } else if (flags_.given("muon-tp-mode")) {
      draft_.ignore(flags_.origin("muon-tp-mode"), "speed only: matrices are always whole here");
    }
    if (flags_.text("muon-scalar-optimizer", "adam") != "adam") {
      draft_.refuse(flags_.origin("muon-scalar-optimizer"), "adam is supported");
    } else if (flags_.given("muon-scalar-optimizer")) {
      draft_.ignore(flags_.origin("muon-scalar-optimizer"), "always so here");
    }
    if (flags_.text("muon-coefficient-type", "quintic") != "simple") {
      draft_.note(flags_.origin("muon-coefficient-type", "quintic").text +
                  ": here those of `simple`, in each of the five steps; both approach the same "
                  "orthogonal matrix");
    }
  }

  // A rate of its own for the table of tokens and the head's matrix.
  void decoupled() {
    constexpr const char *kFlag = "decoupled-lr", *kLeast = "decoupled-min-lr";
    if (!flags_.given(kFlag)) {
      return script_.ignore_given({kLeast}, "without --decoupled-lr it has no effect there");
    }
    const Origin from = flags_.origin(kFlag);
    const double lr = flags_.number("lr", 0), own = flags_.number(kFlag, 0);
    const double least = flags_.number("min-lr", 0), own_least = flags_.number(kLeast, least);
    if (lr <= 0 || own <= 0) return draft_.refuse(from, "needs --lr, and both above 0");
    const bool decays = flags_.text("lr-decay-style", "linear") != "constant";
    if (decays && std::abs(own_least / own - least / lr) > 1e-3 * least / lr) {
      draft_.refuse(flags_.origin(kLeast, number_text(own_least)),
                    "a group's rate is a multiple of the others', its least one too: " +
                        number_text(least / lr * own) + " here");
    }
    const std::string scale = ", lr_scale: " + number_text(own / lr) + '}';
    const bool tied = !flags_.given("untie-embeddings-and-output-weights");
    draft_.set(
        "train.optimizer.groups",
        "[{names: embed.tokens" + scale + (tied ? "" : ", {names: head.weight" + scale) + ']',
        from);
  }

  void precision() {
    const char* const flag = flags_.given("bf16") ? "bf16" : "fp16";
    const bool low = flags_.given("bf16") || flags_.given("fp16");
    draft_.set("train.precision", low ? flag : "fp32",
               low ? flags_.origin(flag) : flags_.origin("bf16"));
    loss_scale();
    for (const char* name : {"fp8-format", "fp8-hybrid", "fp8-e4m3"}) {
      if (flags_.given(name)) return eight_bits(flags_.origin(name));
    }
    script_.ignore_given(
        {"fp8-recipe", "fp8-param-gather", "fp8-amax-compute-algo", "fp8-amax-history-len",
         "fp8-margin", "fp8-interval", "no-fp8-wgrad", "first-last-layers-bf16",
         "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"},
        "without --fp8-format it has no effect there");
  }

  // A fixed one is a scale that never grows and whose least value is its first.
  void loss_scale() {
    const double scale = flags_.number("loss-scale", 0);
    if (!flags_.given("loss-scale")) return;
    const Origin from = flags_.origin("loss-scale");
    if (scale == 0) return draft_.ignore(from, "0 is no fixed scale: it adapts itself");
    if (!flags_.given("fp16")) {
      return draft_.ignore(from, "without fp16 a power of two changes no rounding");
    }
    script_.ignore_given({"initial-loss-scale", "min-loss-scale", "loss-scale-window"},
                         "--loss-scale fixes the scale");
    draft_.set("train.loss_scale.initial", number_text(scale), from);
    draft_.set("train.loss_scale.least", number_text(scale), from);
    draft_.set("train.loss_scale.window", "1000000000", from);
  }

  // Why train.fp8 cannot be `config`; empty: it can.
  std::string fp8_fault(const Fp8Config& config, int64_t ranks) {
    const ModelConfig& model = draft_.recipe().model;
    try {
      validate(model);
    } catch (const Error&) {
      return "the model itself is refused";
    }
    const std::vector<std::string> faults =
        fp8_faults(config, model, {.tensor = ranks, .shared = ranks});
    return faults.empty() ? std::string() : faults.front();
  }

  // Of all layers where the flags name none.
  Fp8Config fp8_layers_of_flags() {
    if (!flags_.given(kSkipFlag)) return {};
    return {.skip_first = flags_.whole(kFirstFlag, 1), .skip_last = flags_.whole(kLastFlag, 1)};
  }

  void no_eight_bits(const Origin& from, const std::string& why) {
    draft_.defer(from, "products are bf16's here, which round less; train.fp8: " + why);
    script_.ignore_given(
        {"fp8-recipe", "fp8-param-gather", "fp8-amax-compute-algo", "fp8-amax-history-len",
         "fp8-margin", "fp8-interval", "no-fp8-wgrad", kSkipFlag, kFirstFlag, kLastFlag},
        "no product has 8-bit operands here");
  }

  // There all products of blocks have 8-bit operands; here those of experts, and by keys of their
  // own those of attention and of feed-forwards, where their sides allow it.
  void eight_bits(const Origin& from) {
    const Fp8Config layers = fp8_layers_of_flags();
    Fp8Config attention = layers, ffn = layers;
    attention.attention = ffn.ffn = true;
    const int64_t ranks = std::max<int64_t>(1, flags_.whole("tensor-model-parallel-size", 1));
    const bool experts = script_.experts() > 0;
    const std::string why_experts = experts ? fp8_fault(layers, ranks) : std::string();
    if (!why_experts.empty()) return no_eight_bits(from, why_experts);
    const std::string why_attention = fp8_fault(attention, ranks);
    const std::string why_ffn = fp8_fault(ffn, ranks);
    if (!experts && !why_attention.empty() && !why_ffn.empty()) {
      return no_eight_bits(from, why_attention + "; " + why_ffn);
    }
    eight_bit_scales(from);
    const std::vector<bool> ffns = fp8_ffn_layers(ffn, draft_.recipe().model);
    const bool has_ffn = std::ranges::find(ffns, true) != ffns.end();
    std::string stays;
    for (const auto& [key, why] :
         {std::pair{"attention", why_attention}, std::pair{"ffn", why_ffn}}) {
      if (why.empty()) {
        draft_.set(std::string("train.fp8.") + key, "true", from);
      } else if (key != std::string_view("ffn") || has_ffn) {
        stays += (stays.empty() ? "; in bf16 stay those of train.fp8." : ", ") + why;
      }
    }
    draft_.note(
        from.text +
        ": products have 8-bit operands, gradients among them, of e4m3 with scales that are "
        "powers of two" +
        stays);
    eight_bit_details(layers);
  }

  // Which values share a scale. Who asks for none gets the recipe that is fastest here.
  void eight_bit_scales(const Origin& from) {
    const bool given = flags_.given("fp8-recipe");
    const std::string recipe = given ? flags_.text("fp8-recipe", "") : "delayed (its default)";
    const char* const ours = recipe == "tensorwise"  ? "tensor"
                             : recipe == "delayed"   ? "delayed"
                             : recipe == "blockwise" ? "block"
                                                     : "row";
    draft_.set("train.fp8.recipe", ours, given ? flags_.origin("fp8-recipe") : from);
    const std::string flag = "--fp8-recipe " + recipe + ": ";
    if (recipe == "delayed") {
      eight_bit_history(flags_.origin("fp8-recipe"));
      draft_.note(flag +
                  "of weights, too, there; train.fp8 makes their scales of their own values, of "
                  "which none is cut off");
    } else if (!given) {
      draft_.note(flag +
                  "one scale a tensor there; train.fp8.recipe row has one a row of tokens and one "
                  "for 128 x 128 of weights, of each step's own values, which is finer");
    } else if (recipe != "tensorwise" && recipe != "blockwise") {
      draft_.note(flag +
                  "smaller groups there, for later GPUs; train.fp8.recipe row is the nearest");
    }
  }

  // There `most_recent`, the default, reads the last step of the history alone.
  void eight_bit_history(const Origin& recipe) {
    const bool of_all = flags_.text("fp8-amax-compute-algo", "most_recent") == "max";
    const int64_t steps = of_all ? flags_.whole("fp8-amax-history-len", 1) : 1;
    const bool given = of_all && flags_.given("fp8-amax-history-len");
    draft_.set("train.fp8.history", to_text(steps),
               given ? flags_.origin("fp8-amax-history-len") : recipe);
    script_.ignore_given({"fp8-amax-compute-algo"},
                         "train.fp8 takes the largest value of so many steps");
    if (!of_all) script_.ignore_given({"fp8-amax-history-len"}, "most_recent reads the last step");
  }

  void eight_bit_details(const Fp8Config& layers) {
    constexpr std::string_view kPart = "train.fp8 makes a scale of the values that it is for";
    if (flags_.given("no-fp8-wgrad")) {
      draft_.set("train.fp8.weight_grad", "bf16", flags_.origin("no-fp8-wgrad"));
    }
    if (flags_.given(kSkipFlag)) {
      draft_.set("train.fp8.skip_first", to_text(layers.skip_first), flags_.origin(kSkipFlag));
      draft_.set("train.fp8.skip_last", to_text(layers.skip_last), flags_.origin(kSkipFlag));
    } else {
      script_.ignore_given({kFirstFlag, kLastFlag},
                           "without --first-last-layers-bf16 it has no effect there");
    }
    if (flags_.text("fp8-recipe", "") != "delayed") {
      script_.ignore_given({"fp8-amax-compute-algo", "fp8-amax-history-len"}, kPart);
    }
    script_.ignore_given({"fp8-margin", "fp8-interval"},
                         "train.fp8 takes the smallest scale that "
                         "holds the largest value, in each step");
    script_.ignore_given({"fp8-param-gather"}, "speed only: weights travel in bf16");
  }

  static constexpr const char *kSkipFlag = "first-last-layers-bf16",
                              *kFirstFlag = "num-layers-at-start-in-bf16",
                              *kLastFlag = "num-layers-at-end-in-bf16";
};

}  // namespace

void convert_megatron_training(const MegatronScript& script) {
  MegatronSchedule(script).convert();
  MegatronOptimizer(script).convert();
}

}  // namespace troupe
