#include <cmath>
#include <vector>

#include "troupe/train/recipe/foreign/megatron_parts.h"

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
    // Only where some targets do not count are the two means two numbers.
    if (flags_.given("eod-mask-loss") && !flags_.given("calculate-per-token-loss")) {
      draft_.set("train.loss_mean", "microbatches",
                 {"without --calculate-per-token-loss, its default", ""});
    }
    const auto ramp = flags_.list("rampup-batch-size");
    if (ramp.empty()) return;
    const Origin from = flags_.origin("rampup-batch-size");
    if (ramp.size() != 3) return draft_.refuse(from, "takes start, increment and samples");
    draft_.set("train.batch_ramp.start", ramp[0], from);
    draft_.set("train.batch_ramp.increment", ramp[1], from);
    draft_.set("train.batch_ramp.samples", ramp[2], from);
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
    if (const std::string end = span("lr-decay"); !end.empty()) {
      draft_.set("train.schedule.end", end, span_origin("lr-decay"));
    }
    const double lr = flags_.number("lr", 0), least = flags_.number("min-lr", 0);
    if (lr > 0) {
      draft_.set("train.schedule.min", number_text(least / lr), flags_.origin("min-lr", "0"));
    }
    if (!wsd) return;
    if (const std::string decay = span("lr-wsd-decay"); !decay.empty()) {
      draft_.set("train.schedule.decay", decay, span_origin("lr-wsd-decay"));
    } else {
      draft_.need("train.schedule.decay", "--lr-wsd-decay-iters is not given");
    }
    const std::string tail = flags_.text("lr-wsd-decay-style", "exponential");
    draft_.set("train.schedule.tail", tail == "minus_sqrt" ? "sqrt" : tail,
               flags_.origin("lr-wsd-decay-style", "exponential"));
  }

  void warmup() {
    if (flags_.number("lr-warmup-init", 0) != 0) {
      draft_.refuse(flags_.origin("lr-warmup-init"), "the warm-up begins at 0");
    }
    std::string value = span("lr-warmup");
    Origin from = span_origin("lr-warmup");
    if (flags_.given("lr-warmup-fraction")) {
      const double fraction = flags_.number("lr-warmup-fraction", 0);
      const bool samples = flags_.given("lr-decay-samples") || flags_.given("train-samples");
      const std::string unit = samples ? "-samples" : "-iters";
      const int64_t of = flags_.whole("lr-decay" + unit, flags_.whole("train" + unit, 0));
      value =
          to_text(std::llround(fraction * static_cast<double>(of))) + (samples ? " samples" : "");
      from = flags_.origin("lr-warmup-fraction");
    }
    if (!value.empty()) draft_.set("train.schedule.warmup", value, from);
  }

  // "2000 steps", "100000 samples" or "5000 tokens" of the flags --X-iters, --X-samples and
  // --X-tokens; "": none.
  std::string span(const std::string& name) {
    if (flags_.given(name + "-tokens")) return flags_.text(name + "-tokens") + " tokens";
    if (flags_.given(name + "-samples")) return flags_.text(name + "-samples") + " samples";
    return flags_.text(name + "-iters");
  }

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
    const std::string kind = flags_.text("optimizer", "adam");
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
      const std::string betas =
          '[' + flags_.text("adam-beta1", "0.9") + ", " + flags_.text("adam-beta2", "0.999") + ']';
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
      draft_.refuse(flags_.origin("exp-avg-dtype"), "both moments are fp32, or both bf16");
    }
    script_.field("train.clip", "clip-grad", "1.0");
  }

  void precision() {
    const char* const flag = flags_.given("bf16") ? "bf16" : "fp16";
    const bool low = flags_.given("bf16") || flags_.given("fp16");
    draft_.set("train.precision", low ? flag : "fp32",
               low ? flags_.origin(flag) : flags_.origin("bf16"));
  }
};

}  // namespace

void convert_megatron_training(const MegatronScript& script) {
  MegatronSchedule(script).convert();
  MegatronOptimizer(script).convert();
}

}  // namespace troupe
