#include <algorithm>
#include <vector>

#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {
namespace {

// Megatron-LM's router: scores, order, what balances the experts.
class MegatronRouter : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    const std::string score = flags_.text("moe-router-score-function", "softmax");
    const Origin score_from = flags_.origin("moe-router-score-function", "softmax");
    const bool bias = flags_.given("moe-router-enable-expert-bias");
    const auto losses = flags_.list("moe-router-load-balancing-type");
    const bool sinkhorn = losses.size() == 1 && losses[0] == "sinkhorn";
    const std::string root = "model.moe.router.";
    if (bias && score == "softmax") {
      return draft_.refuse(flags_.origin("moe-router-enable-expert-bias"),
                           "needs --moe-router-score-function sigmoid or sqrtsoftplus");
    }
    if (sinkhorn) {
      draft_.set(root + "kind", "sinkhorn", flags_.origin("moe-router-load-balancing-type"));
      z_loss(root + "z_loss");
      return gate();
    }
    if (score == "softmax") {
      const bool before = flags_.given("moe-router-pre-softmax");
      draft_.set(root + "kind", "topk_softmax", score_from);
      draft_.set(root + "order", before ? "before" : "after",
                 flags_.origin("moe-router-pre-softmax"));
      if (!before && flags_.whole("moe-router-topk", 2) == 1) {
        draft_.refuse(flags_.origin("moe-router-topk"),
                      "one expert a token needs --moe-router-pre-softmax: its weight would be 1");
      }
    } else if (score == "sigmoid" || score == "sqrtsoftplus") {
      draft_.set(root + "kind", "sigmoid_bias", score_from);
      draft_.set(root + "score", score, score_from);
      const std::string rate = bias ? flags_.text("moe-router-bias-update-rate", "1e-3") : "0";
      draft_.set(
          root + "bias_rate", rate,
          flags_.origin(bias ? "moe-router-bias-update-rate" : "moe-router-enable-expert-bias",
                        bias ? "1e-3" : ""));
    } else {
      draft_.refuse(score_from, "softmax, sigmoid and sqrtsoftplus are supported");
    }
    if (flags_.given("moe-router-topk-scaling-factor")) {
      script_.field(root + "scale", "moe-router-topk-scaling-factor", "1");
    }
    if (flags_.given("moe-router-num-groups")) {
      script_.field(root + "limit.groups", "moe-router-num-groups", "1");
      script_.field(root + "limit.keep", "moe-router-group-topk", "1");
    }
    balance(losses);
    z_loss(root + "balance.z_loss");
    gate();
  }

 private:
  void gate() {
    const std::string root = "model.moe.router.";
    if (flags_.given("moe-input-jitter-eps"))
      script_.field(root + "jitter", "moe-input-jitter-eps", "0");
    if (flags_.given("moe-router-force-biased")) {
      draft_.set(root + "force", "biased", flags_.origin("moe-router-force-biased"));
      script_.field(root + "force_std", "moe-router-force-biased", "1");
    }
    const std::string type = flags_.text("moe-router-dtype");
    if (type == "fp64") draft_.set(root + "fp64", "true", flags_.origin("moe-router-dtype"));
    if (type == "fp32") draft_.ignore(flags_.origin("moe-router-dtype"), "always f32 here");
    if (type.empty()) {
      draft_.note(
          "--moe-router-dtype is not given: there routers work in the model's type, here in "
          "f32");
    }
  }

  void z_loss(const std::string& path) {
    if (flags_.given("moe-z-loss-coeff")) script_.field(path, "moe-z-loss-coeff", "0");
  }

  void balance(std::vector<std::string> kinds) {
    const Origin from = flags_.origin("moe-router-load-balancing-type", "aux_loss");
    if (kinds.empty()) kinds = {"aux_loss"};
    std::vector<std::string> values = flags_.list("moe-aux-loss-coeff");
    const Origin value_from = flags_.origin("moe-aux-loss-coeff", "0.0");
    if (values.empty()) values = {"0"};
    if (values.size() == 1) values.resize(kinds.size(), values[0]);
    if (values.size() != kinds.size()) {
      return draft_.refuse(value_from, "needs one value for each load balancing type");
    }
    const std::string root = "model.moe.router.balance.";
    draft_.set(root + "aux_loss", "0", from);
    bool any = false;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const std::string& kind = kinds[i];
      if (kind == "none" || kind == "None") continue;
      const std::string path = kind == "aux_loss"          ? "aux_loss"
                               : kind == "seq_aux_loss"    ? "seq_loss"
                               : kind == "global_aux_loss" ? "global_loss"
                                                           : "";
      if (path.empty()) {
        draft_.refuse(from,
                      "aux_loss, seq_aux_loss, global_aux_loss, sinkhorn and none are supported");
        continue;
      }
      draft_.set(root + path, values[i], value_from);
      double coefficient = 0;
      any |= !from_text(values[i], coefficient) || coefficient != 0;
    }
    if (!any && !flags_.given("moe-router-enable-expert-bias")) {
      draft_.note(
          "nothing balances the experts: --moe-aux-loss-coeff is 0, as it is by default "
          "there. 0.01 is the usual value");
    }
  }
};

// The router and the capacity of MegaBlocks' fork, by its own names.
class MegablocksRouter : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    script_.field("model.moe.top_k", "moe-top-k", "1");
    const Origin from = flags_.origin("moe-num-experts");
    draft_.set("model.moe.router.kind", "topk_softmax", from);
    draft_.set("model.moe.router.order", "before", from);
    draft_.set("model.moe.router.balance.aux_loss", "0", from);
    // Theirs is the mean over the layers: ours of the same form.
    script_.field("model.moe.router.balance.batched_loss", "moe-loss-weight", "0.1");
    if (flags_.given("moe-zloss-weight")) {
      script_.field("model.moe.router.balance.z_loss", "moe-zloss-weight", "0");
    }
    if (flags_.given("moe-jitter-eps"))
      script_.field("model.moe.router.jitter", "moe-jitter-eps", "0");
    if (flags_.given("moe-normalize-expert-weights")) {
      script_.field("model.moe.router.p_norm", "moe-normalize-expert-weights", "0");
    }
    capacity();
  }

 private:
  // A capacity selects MegaBlocks' dropping layer, which its scripts for MoE (not dMoE) run; by
  // default the dropless layer runs.
  void capacity() {
    const bool dropping = script_.program.ends_with("pretrain_moe.py");
    if (!dropping && !flags_.given("moe-capacity-factor")) {
      return draft_.note(
          "--moe-capacity-factor is not given: no expert drops rows, as in MegaBlocks' dMoE");
    }
    const double factor = flags_.number("moe-capacity-factor", 1);
    const Origin from = flags_.origin("moe-capacity-factor", "1");
    if (factor == 0) return draft_.set("model.moe.capacity.factor", "0", from);
    if (factor >= static_cast<double>(script_.experts())) {
      draft_.set("model.moe.capacity.factor", "0", from);
      return draft_.note(from.text + ": each expert could hold every row, so none is dropped");
    }
    draft_.set("model.moe.capacity.factor", flags_.text("moe-capacity-factor", "1"), from);
    draft_.set("model.moe.capacity.policy", "position", from);
    draft_.set("model.moe.capacity.pad", "true", from);
  }
};

// The gate and the capacity of DeepSpeed, for one expert a token.
class DeepspeedRouter : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    const Origin from = flags_.origin("num-experts");
    draft_.set_text("model.moe.layers", script_.moe_layers(),
                    flags_.origin("expert-interval", "2"));
    script_.field("model.moe.top_k", "topk", "1");
    if (flags_.whole("topk", 1) != 1) {
      draft_.refuse(flags_.origin("topk"),
                    "one expert a token is supported: DeepSpeed draws the second one by chance");
    }
    if (flags_.text("mlp-type", "standard") != "standard") {
      draft_.refuse(flags_.origin("mlp-type"),
                    "a dense layer beside the experts, with weights that are learned, is not "
                    "supported: model.moe.shared adds one as it is");
    }
    const std::vector<std::string> counts = flags_.list("num-experts");
    if (std::ranges::any_of(counts, [&](const auto& c) { return c != counts[0]; })) {
      draft_.refuse(from,
                    "one count for all layers is supported; name the others in "
                    "model.overrides");
    }
    draft_.set("model.moe.router.kind", "topk_softmax", from);
    draft_.set("model.moe.router.order", "before", from);
    script_.field("model.moe.router.balance.aux_loss", "moe-loss-coeff", "0.1");
    draft_.note(
        "DeepSpeed's gate: there its weights begin uniform, here normal as model.init_std says");
    capacity();
  }

 private:
  void capacity() {
    constexpr const char *kTrain = "moe-train-capacity-factor", *kEval = "moe-eval-capacity-factor",
                         *kLeast = "moe-min-capacity", *kNone = "disable-moe-token-dropping";
    if (flags_.given(kNone)) {
      draft_.set("model.moe.capacity.factor", "0", flags_.origin(kNone));
      return script_.ignore_given({kTrain, kEval, kLeast}, "no expert drops rows");
    }
    const std::string root = "model.moe.capacity.";
    script_.field(root + "factor", kTrain, "1.0");
    script_.field(root + "min", kLeast, "4");
    draft_.set(root + "policy", "position", flags_.origin(kTrain, "1.0"));
    draft_.note(
        "--moe-train-capacity-factor: which rows above it an expert drops is drawn by chance "
        "there; here it keeps the first ones, or those with the largest weights (policy: probs)");
    if (flags_.number(kEval, 1) == flags_.number(kTrain, 1)) {
      draft_.set(root + "in_evaluation", "true", flags_.origin(kEval, "1.0"));
    } else {
      draft_.refuse(flags_.origin(kEval, "1.0"),
                    "one factor holds in training and evaluation, or none in evaluation: "
                    "model.moe.capacity.in_evaluation");
    }
  }
};

// How many experts, in which layers, with which router; how many rows one may hold; the shared one.
class MegatronExperts : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    const std::string count = script_.megablocks() ? "moe-num-experts" : "num-experts";
    draft_.set("model.moe.experts", to_text(script_.experts()), flags_.origin(count));
    if (script_.deepspeed()) return DeepspeedRouter(script_).convert();
    if (flags_.given("moe-layer-freq")) {
      draft_.set_text("model.moe.layers", script_.moe_layers(), flags_.origin("moe-layer-freq"));
    }
    if (script_.megablocks()) return MegablocksRouter(script_).convert();
    script_.field("model.moe.top_k", "moe-router-topk", "2");
    MegatronRouter(script_).convert();
    capacity();
    if (flags_.given("moe-shared-expert-intermediate-size")) {
      const Origin from = flags_.origin("moe-shared-expert-intermediate-size");
      draft_.set("model.moe.shared.experts", "1", from);
      draft_.set("model.moe.shared.hidden", flags_.text("moe-shared-expert-intermediate-size"),
                 from);
      if (flags_.given("moe-shared-expert-gate")) {
        draft_.set("model.moe.shared.form", "gate", flags_.origin("moe-shared-expert-gate"));
      } else if (script_.program.ends_with("pretrain_qwen2_moe.py")) {  // in its layers' specs
        draft_.set("model.moe.shared.form", "gate",
                   {script_.program + ", whose shared expert has a gate", script_.program});
      }
    }
  }

 private:
  void capacity() {
    const std::string root = "model.moe.capacity.";
    if (flags_.given("moe-expert-rank-capacity-factor")) {
      script_.field(root + "budget", "moe-expert-rank-capacity-factor", "0");
    }
    const bool asked = flags_.given("moe-token-dropping");
    if (!asked && !flags_.given("moe-expert-capacity-factor")) return;
    if (flags_.given("moe-expert-capacity-factor")) {
      script_.field(root + "factor", "moe-expert-capacity-factor", "0");
      if (asked) draft_.ignore(flags_.origin("moe-token-dropping"), "the factor says it");
    } else {
      draft_.set(root + "factor", "1", flags_.origin("moe-token-dropping"));
      draft_.note(
          "--moe-token-dropping: experts drop here what is above their share. Megatron-LM "
          "reads the flag nowhere and drops nothing; take it out to do the same");
    }
    script_.field(root + "policy", "moe-token-drop-policy", "probs");
    if (flags_.given("moe-pad-expert-input-to-capacity")) {
      draft_.set(root + "pad", "true", flags_.origin("moe-pad-expert-input-to-capacity"));
    }
  }
};

}  // namespace

void convert_megatron_experts(const MegatronScript& script) {
  MegatronExperts(script).convert();
}

}  // namespace troupe
