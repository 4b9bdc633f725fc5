#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "troupe/train/recipe/foreign/foundry_parts.h"

namespace troupe {
namespace {

// Length and batch, optimizer, learning rate; precision, clip and seed.
class FoundryTraining : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  void convert() {
    length();
    optimizer();
    scheduler();
    numbers();
  }

 private:
  void length() {
    draft_.set("data.sequence", to_text(settings_.sequence()), tree_.origin("max_seq_len", "2048"));
    if (tree_.given("global_train_batch_size")) {
      settings_.field("train.global_batch", "global_train_batch_size", "");
    }
    const std::string micro = tree_.text("device_train_microbatch_size", "auto");
    if (micro == "auto") {
      draft_.ignore(tree_.origin("device_train_microbatch_size", "auto"),
                    "train.micro_batch is chosen, and printed");
    } else {
      settings_.field("train.micro_batch", "device_train_microbatch_size", "");
    }
    if (!tree_.given("max_duration")) {
      return draft_.need("train.tokens", "max_duration is not given: this, or train.steps");
    }
    if (settings_.in_epochs("max_duration")) {
      const Origin epochs = tree_.origin("max_duration");
      return draft_.need("train.tokens", epochs.text +
                                             ": so many times the tokens that `troupe "
                                             "inspect` counts in the files");
    }
    const std::string all = settings_.span("max_duration");
    const Origin from = tree_.origin("max_duration");
    int64_t samples = 0;
    if (all.ends_with(" tokens")) {
      draft_.set("train.tokens", all.substr(0, all.find(' ')), from);
    } else if (all.ends_with(" samples") && from_text(all.substr(0, all.find(' ')), samples)) {
      draft_.set("train.tokens", to_text(samples * settings_.sequence()), from);
    } else if (!all.empty() && all.find_first_not_of("0123456789") == std::string::npos) {
      draft_.set("train.steps", all, from);
    } else if (!all.empty()) {
      draft_.refuse(from, "give the length in ba, tok or sp");
    }
  }

  void optimizer() {
    const std::string name = tree_.text("optimizer.name", "decoupled_adamw");
    const Origin from = tree_.origin("optimizer.name", "decoupled_adamw");
    const bool lion = name == "decoupled_lionw", decoupled = name.starts_with("decoupled_");
    const std::string root = "train.optimizer.";
    if (!lion && name != "decoupled_adamw" && name != "adamw" && name != "adam") {
      return draft_.refuse(from, "decoupled_adamw, adamw and decoupled_lionw are supported");
    }
    draft_.set(root + "kind", lion ? "lion" : "adamw", from);
    const double lr = tree_.number("optimizer.lr", 0);
    if (tree_.given("optimizer.lr")) settings_.field(root + "lr", "optimizer.lr", "");
    const auto betas = tree_.list("optimizer.betas");
    draft_.set(root + "betas",
               betas.size() == 2 ? quoted_list({betas[0], betas[1]})
                                 : std::string(lion ? "[0.9, 0.99]" : "[0.9, 0.95]"),
               tree_.origin("optimizer.betas", lion ? "0.9, 0.99" : "0.9, 0.95"));
    if (!lion) settings_.field(root + "eps", "optimizer.eps", "1e-8");
    const std::string by_default = lion ? "0" : decoupled ? "1e-5" : "0.01";
    double decay = 0;
    from_text(by_default, decay);
    decay = tree_.number("optimizer.weight_decay", decay);
    Origin decay_from = tree_.origin("optimizer.weight_decay", by_default);
    if (decoupled && lr > 0) {
      // Theirs takes w lr / lr0 off a weight at each step, ours w lr.
      decay /= lr;
      decay_from.text += ", over lr";
    }
    draft_.set(root + "weight_decay", number_text(decay), decay_from);
  }

  void scheduler() {
    const std::string name = tree_.text("scheduler.name", "cosine_with_warmup");
    const Origin from = tree_.origin("scheduler.name", "cosine_with_warmup");
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKinds = {
        {{"cosine_with_warmup", "cosine"},
         {"linear_decay_with_warmup", "linear"},
         {"inv_sqrt_with_warmup", "inverse_sqrt"},
         {"constant_with_warmup", "constant"}}};
    const auto* const found = std::find_if(kKinds.begin(), kKinds.end(),
                                           [&](const auto& kind) { return kind.first == name; });
    if (found == kKinds.end()) {
      return draft_.refuse(from,
                           "cosine_with_warmup, linear_decay_with_warmup, "
                           "inv_sqrt_with_warmup and constant_with_warmup are supported");
    }
    const std::string root = "train.schedule.";
    draft_.set(root + "kind", std::string(found->second), from);
    draft_.set(root + "megatron", "true", from);
    if (tree_.given("scheduler.t_warmup")) {
      const std::string warmup = settings_.span("scheduler.t_warmup");
      if (!warmup.empty()) draft_.set(root + "warmup", warmup, tree_.origin("scheduler.t_warmup"));
    }
    if (found->second == "constant") return;
    if (tree_.text("scheduler.t_max", "1dur") != "1dur") {
      const std::string end = settings_.span("scheduler.t_max");
      if (!end.empty()) draft_.set(root + "end", end, tree_.origin("scheduler.t_max"));
    }
    settings_.field(root + "min", "scheduler.alpha_f", "0");
    for (const char* key : {"scheduler.t_scale", "scheduler.t_cooldown", "scheduler.alpha_f_decay",
                            "scheduler.alpha_f_cooldown"}) {
      if (tree_.given(key)) draft_.refuse(tree_.origin(key), "has no counterpart: kind wsd has");
    }
  }

  void numbers() {
    const std::string precision = tree_.text("precision", "amp_bf16");
    const Origin from = tree_.origin("precision", "amp_bf16");
    if (precision == "amp_bf16" || precision == "amp_fp16" || precision == "fp32") {
      draft_.set("train.precision", precision.substr(precision.find('_') + 1), from);
    } else {
      draft_.refuse(from, "amp_bf16, amp_fp16 and fp32 are supported");
    }
    const std::string clip = "algorithms.gradient_clipping.clipping_threshold";
    const std::string clip_type = tree_.text("algorithms.gradient_clipping.clipping_type", "norm");
    if (clip_type != "norm") {
      draft_.refuse(tree_.origin("algorithms.gradient_clipping.clipping_type"),
                    "only the global norm is clipped here");
    }
    draft_.set("train.clip", tree_.text(clip, "0"), tree_.origin(clip, "0"));
    const std::string seed = tree_.given("seed") ? "seed" : "global_seed";
    settings_.field("train.seed", seed, "17");
  }
};

}  // namespace

void convert_foundry_training(FoundrySettings& settings) {
  FoundryTraining(settings).convert();
}

void convert_foundry_loss_mean(FoundrySettings& settings) {
  if (settings.tree.given("accumulate_train_batch_on_tokens")) {
    const bool tokens = settings.tree.yes("accumulate_train_batch_on_tokens", true);
    settings.draft.set("train.loss_mean", tokens ? "tokens" : "microbatches",
                       settings.tree.origin("accumulate_train_batch_on_tokens"));
  }
}

}  // namespace troupe
