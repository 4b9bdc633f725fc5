#include "troupe/train/recipe/foreign/megatron.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "troupe/core/text/suggest.h"
#include "troupe/train/recipe/foreign/flag_rules.h"
#include "troupe/train/recipe/foreign/flags.h"
#include "troupe/train/recipe/foreign/foreign_format.h"
#include "troupe/train/recipe/foreign/megatron_run.h"
#include "troupe/train/recipe/foreign/megatron_yaml.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {
namespace {

class Megatron {
 public:
  Megatron(const ShellArguments& arguments, const std::string& file, Draft& draft)
      : draft_(draft), flags_(arguments.words, file, draft), program_(arguments.program) {}

  void convert() {
    table(/*sizes_first=*/true);
    model();
    activation();
    attention();
    rope();
    if (experts() > 0) moe();
    batch();
    schedule();
    optimizer();
    precision();
    convert_megatron_run(flags_, draft_);
    table(/*sizes_first=*/false);
    draft_.need("model.vocab", "--vocab-size is not given: the tokenizer's size");
    draft_.need("train.global_batch", "--global-batch-size is not given, in sequences");
    draft_.need("train.optimizer.lr", "--lr is not given");
    draft_.need("data.train", "neither --data-path nor --mock-data is given");
    draft_.need("checkpoint.dir", "--save is not given: the run's folder");
  }

 private:
  // What the table alone decides: fields and switches first, all that is left at the end.
  void table(bool sizes_first) {
    for (const Flags::Flag& flag : flags_.unused()) {
      const FlagRule* const rule = find_flag(flag.name);
      const Origin origin = flags_.origin_of(flag);
      if (sizes_first) {
        if (rule == nullptr || (rule->what != FlagRule::kField && rule->what != FlagRule::kSwitch))
          continue;
        const std::string value =
            rule->what == FlagRule::kSwitch ? std::string(rule->value) : flags_.text(flag.name);
        flags_.given(flag.name);
        if (!value.empty()) draft_.set(std::string(rule->text), value, origin);
      } else if (rule == nullptr) {
        unknown(flag, origin);
      } else if (rule->what == FlagRule::kIgnored) {
        draft_.ignore(origin, rule->text);
      } else if (rule->what == FlagRule::kRefused) {
        draft_.refuse(origin, std::string(rule->text));
      } else {
        draft_.ignore(origin, "means nothing beside the other flags");
      }
    }
  }

  void unknown(const Flags::Flag& flag, const Origin& origin) {
    std::vector<std::string_view> names;
    for (const FlagRule& rule : flag_rules()) names.push_back(rule.name);
    const std::string_view guess = nearest(flag.name, names);
    draft_.refuse(
        origin,
        "not a flag that is known here" +
            (guess.empty() ? std::string() : "; did you mean --" + std::string(guess) + "?"),
        Code::kNoSuchField);
  }

  // One field out of one flag with a default there.
  void field(const std::string& path, const std::string& flag, const std::string& otherwise) {
    draft_.set(path, flags_.text(flag, otherwise), flags_.origin(flag, otherwise));
  }

  bool megablocks() { return flags_.given("moe-num-experts"); }
  int64_t experts() { return flags_.whole(megablocks() ? "moe-num-experts" : "num-experts", 0); }
  bool gated() {
    return flags_.given("swiglu") || flags_.given("quick-geglu") || flags_.given("glu") ||
           flags_.text("mlp-type", "mlp") == "glu";
  }

  void model() {
    const int64_t width = flags_.whole("hidden-size", 0);
    const int64_t default_ffn = flags_.given("swiglu") ? width * 8 / 3 / 64 * 64 : 4 * width;
    const int64_t ffn = flags_.whole("ffn-hidden-size", default_ffn);
    const Origin from = flags_.origin("ffn-hidden-size", to_text(default_ffn));
    const std::string frequency = pattern();
    if (experts() == 0 || frequency != "1") draft_.set("model.ffn", to_text(ffn), from);
    if (experts() > 0) {
      const bool own = flags_.given("moe-ffn-hidden-size");
      draft_.set("model.moe.hidden", to_text(flags_.whole("moe-ffn-hidden-size", ffn)),
                 own ? flags_.origin("moe-ffn-hidden-size") : from);
    }
    const std::string norm = flags_.text("normalization", "LayerNorm");
    const Origin norm_from = flags_.origin("normalization", "LayerNorm");
    if (norm == "LayerNorm" || norm == "RMSNorm") {
      draft_.set("model.norm.kind", norm == "RMSNorm" ? "rms" : "layer", norm_from);
      if (norm == "LayerNorm") draft_.set("model.norm.bias", "true", norm_from);
    } else {
      draft_.refuse(norm_from, "LayerNorm and RMSNorm are supported");
    }
    const bool tied = !flags_.given("untie-embeddings-and-output-weights");
    draft_.set("model.tie_embeddings", tied ? "true" : "false",
               flags_.origin("untie-embeddings-and-output-weights"));
    vocabulary();
    field("model.init_std", "init-method-std", "0.02");
    field("model.dropout", "hidden-dropout", "0.1");
    field("model.attn_dropout", "attention-dropout", "0.1");
  }

  // A size that is padded already counts whole: there the padding is in the loss.
  void vocabulary() {
    const std::string divisible = "make-vocab-size-divisible-by";
    if (flags_.given("padded-vocab-size")) {
      const Origin from = flags_.origin("padded-vocab-size");
      draft_.set("model.vocab", flags_.text("padded-vocab-size"), from);
      draft_.set("model.vocab_pad", "1", from);
      if (flags_.given(divisible)) draft_.ignore(flags_.origin(divisible), "the size is padded");
      return;
    }
    const int64_t divisor =
        flags_.whole(divisible, 128) * flags_.whole("tensor-model-parallel-size", 1);
    draft_.set("model.vocab_pad", to_text(divisor), flags_.origin(divisible, "128"));
  }

  bool biases() { return !flags_.given("disable-bias-linear"); }

  void activation() {
    const Origin bias_from = flags_.origin("disable-bias-linear");
    draft_.set("model.bias", biases() ? "true" : "false", bias_from);
    const bool fused = !flags_.given("no-bias-gelu-fusion") && biases();
    std::string dense, routed, flag = "swiglu";
    if (flags_.given("swiglu")) {
      dense = "swiglu", routed = "silu";
    } else if (flags_.given("squared-relu")) {
      flag = "squared-relu", dense = routed = "relu2";
    } else if (flags_.given("glu")) {
      flag = "glu", dense = "geglu_tanh", routed = "gelu_tanh";
    } else if (flags_.given("quick-geglu")) {
      flag = "quick-geglu", routed = "quick_gelu";
      if (experts() == 0 || pattern() != "1") {
        draft_.refuse(flags_.origin(flag), "dense layers do not have it; experts do");
      }
    } else {
      // With biases Megatron-LM fuses them with the tanh form, unless told not to.
      flag = flags_.given("openai-gelu") ? "openai-gelu" : "no-bias-gelu-fusion";
      dense = fused || flags_.given("openai-gelu") ? "gelu_tanh" : "gelu";
      routed = megablocks() || flags_.given("openai-gelu") ? "gelu_tanh" : "gelu";
    }
    const Origin from = flags_.origin(flag);
    if (!dense.empty()) draft_.set("model.act", dense, from);
    if (experts() == 0) return;
    draft_.set("model.moe.activation", routed, from);
    draft_.set("model.moe.gated", gated() ? "true" : "false", from);
    // MegaBlocks' experts have one bias behind their sum, Megatron-LM's have their own.
    draft_.set(megablocks() ? "model.moe.output_bias" : "model.moe.bias",
               biases() ? "true" : "false", bias_from);
  }

  void attention() {
    if (flags_.given("num-key-value-heads")) {
      field("model.kv_heads", "num-key-value-heads", "1");
    } else if (flags_.given("group-query-attention")) {
      field("model.kv_heads", "num-query-groups", "1");
    } else if (flags_.given("num-query-groups")) {
      draft_.ignore(flags_.origin("num-query-groups"),
                    "without --group-query-attention it has no effect there");
    }
    windows();
    const std::string softmax = flags_.text("softmax-type", "vanilla");
    if (softmax == "learnable") {
      draft_.set("model.sinks", "true", flags_.origin("softmax-type"));
    } else if (softmax != "vanilla") {
      draft_.refuse(flags_.origin("softmax-type"), "vanilla and learnable are supported");
    }
    const bool latent = flags_.given("multi-latent-attention");
    if (flags_.given("kv-channels") && latent) {
      draft_.ignore(flags_.origin("kv-channels"),
                    "with --multi-latent-attention a head has sizes of its own");
    } else if (flags_.given("kv-channels")) {
      draft_.set("model.head_dim", flags_.text("kv-channels"), flags_.origin("kv-channels"));
    }
    if (flags_.given("qk-layernorm") && latent) {
      draft_.ignore(flags_.origin("qk-layernorm"), "latents always have norms here");
    } else if (flags_.given("qk-layernorm")) {
      draft_.set("model.qk_norm", "head", flags_.origin("qk-layernorm"));
    } else if (latent) {
      draft_.refuse(flags_.origin("multi-latent-attention"),
                    "latents always have norms here: add --qk-layernorm");
    }
    if (!latent) return;
    const Origin from = flags_.origin("multi-latent-attention");
    if (flags_.given("q-lora-rank")) field("model.mla.q_rank", "q-lora-rank", "0");
    field("model.mla.kv_rank", "kv-lora-rank", "32");
    field("model.mla.nope_dim", named("qk-head-dim", "qk-nope-head-dim"), "128");
    field("model.mla.rope_dim", named("qk-pos-emb-head-dim", "qk-rope-head-dim"), "64");
    field("model.mla.value_dim", "v-head-dim", "128");
    draft_.set("model.rope.interleaved", "true", from);  // of latents always so there
  }

  // A flag by its name, or by the one that it had before.
  std::string named(const std::string& now, const std::string& before) {
    return flags_.given(before) && !flags_.given(now) ? before : now;
  }

  // "(128,0)": keys to the left and to the right of a query.
  void windows() {
    if (!flags_.given("window-size")) {
      if (flags_.given("window-attn-skip-freq")) {
        draft_.ignore(flags_.origin("window-attn-skip-freq"),
                      "without --window-size it has no effect there");
      }
      return;
    }
    const Origin from = flags_.origin("window-size");
    std::string text;
    for (const std::string& part : flags_.list("window-size")) text += part + ' ';
    for (char& c : text) {
      if (c == '(' || c == ')' || c == '[' || c == ']' || c == ',') c = ' ';
    }
    std::istringstream in(text);
    int64_t left = 0, right = 0;
    if (!(in >> left >> right) || right > 0) {
      return draft_.refuse(from, "two sizes are expected, the right one 0: (128,0)");
    }
    if (left < 0) return draft_.ignore(from, "a size below 0 is no window");
    draft_.set("model.window", to_text(left + 1), from);
    if (!flags_.given("window-attn-skip-freq")) return;
    const Origin skip = flags_.origin("window-attn-skip-freq");
    const std::string layers = layer_list("window-attn-skip-freq", "");
    int64_t every = 0;
    if (!from_text(layers, every)) {
      return draft_.set_text("model.window_layers", layers, skip);
    }
    std::string list;
    for (int64_t i = 1; i <= flags_.whole("num-layers", 0) && every > 0; ++i) {
      list += (list.empty() ? "" : ",") + std::string(i % every == 0 ? "0" : "1");
    }
    if (list.empty()) return draft_.refuse(skip, "a number above 0, or a list, is expected");
    draft_.set_text("model.window_layers", '[' + list + ']', skip);
  }

  void rope() {
    const bool old = flags_.given("use-rotary-position-embeddings");
    const std::string kind =
        flags_.text("position-embedding-type", old ? "rope" : "learned_absolute");
    const Origin from = old ? flags_.origin("use-rotary-position-embeddings")
                            : flags_.origin("position-embedding-type", "learned_absolute");
    const bool bare = flags_.given("no-position-embedding");
    const Origin bare_from = flags_.origin("no-position-embedding");
    if (bare && kind == "learned_absolute") {
      draft_.set("model.positions", "none", bare_from);
    } else if (bare) {
      draft_.ignore(bare_from, kind + " has no table of positions to leave out");
    }
    if (kind == "rope" || kind == "none") {
      draft_.set("model.positions", kind, from);
    } else if (kind == "learned_absolute") {
      if (!bare) draft_.set("model.positions", "learned", from);
    } else {
      draft_.refuse(from, "rope, learned_absolute and none are supported");
    }
    if (!flags_.given("max-position-embeddings")) {
      draft_.set("model.max_positions", flags_.text("seq-length", "1024"),
                 flags_.origin("seq-length", "1024"));
    }
    if (flags_.given("rotary-seq-len-interpolation-factor")) {
      const Origin factor = flags_.origin("rotary-seq-len-interpolation-factor");
      draft_.set("model.rope.scaling", "linear", factor);
      draft_.set("model.rope.factor", flags_.text("rotary-seq-len-interpolation-factor"), factor);
    }
    latent_rope();
    if (flags_.given("use-rope-scaling")) {
      const Origin scaling = flags_.origin("use-rope-scaling");
      draft_.set("model.rope.scaling", "llama3", scaling);
      field("model.rope.factor", "rope-scaling-factor", "8");
      draft_.set("model.rope.original_positions", "8192", scaling);
    }
  }

  // What latent attention alone has there; at a factor of 1 none of it has an effect.
  void latent_rope() {
    constexpr const char* kOthers[] = {"original-max-position-embeddings", "beta-fast", "beta-slow",
                                       "mscale", "mscale-all-dim"};
    const bool latent = flags_.given("multi-latent-attention");
    const std::string type = flags_.text("rope-type", latent ? "yarn" : "rope");
    const bool yarn = latent && type == "yarn" && flags_.number("rotary-scaling-factor", 1) != 1;
    if (type != "yarn" && type != "rope") {
      draft_.refuse(flags_.origin("rope-type"), "rope and yarn are supported");
    }
    if (!yarn) {
      constexpr std::string_view kWhy =
          "without --multi-latent-attention, its yarn and a factor it has no effect there";
      if (flags_.given("rotary-scaling-factor")) {
        draft_.ignore(flags_.origin("rotary-scaling-factor"), kWhy);
      }
      for (const char* flag : kOthers) {
        if (flags_.given(flag)) draft_.ignore(flags_.origin(flag), kWhy);
      }
      return;
    }
    draft_.set("model.rope.scaling", "yarn", flags_.origin("rotary-scaling-factor"));
    field("model.rope.factor", "rotary-scaling-factor", "1");
    field("model.rope.original_positions", "original-max-position-embeddings", "4096");
    field("model.rope.beta_fast", "beta-fast", "32");
    field("model.rope.beta_slow", "beta-slow", "1");
    field("model.rope.mscale", "mscale", "1.0");
    field("model.rope.mscale_all_dim", "mscale-all-dim", "0.0");
  }

  // Which layers are MoE layers, in our form: "1", "2", "[0]*3+[1]*21".
  std::string pattern() { return layer_list("moe-layer-freq", "1"); }

  // "([0]*3+[1]*9)", as model.moe.layers has it.
  std::string layer_list(const std::string& flag, const std::string& otherwise) {
    std::string out = flags_.text(flag, otherwise);
    std::erase_if(out, [](char c) { return c == '(' || c == ')' || c == ' ' || c == '"'; });
    return out;
  }

  void moe() {
    const std::string count = megablocks() ? "moe-num-experts" : "num-experts";
    draft_.set("model.moe.experts", to_text(experts()), flags_.origin(count));
    if (flags_.given("moe-layer-freq")) {
      draft_.set_text("model.moe.layers", pattern(), flags_.origin("moe-layer-freq"));
    }
    if (megablocks()) return megablocks_router();
    field("model.moe.top_k", "moe-router-topk", "2");
    router();
    capacity();
    if (flags_.given("moe-shared-expert-intermediate-size")) {
      const Origin from = flags_.origin("moe-shared-expert-intermediate-size");
      draft_.set("model.moe.shared.experts", "1", from);
      draft_.set("model.moe.shared.hidden", flags_.text("moe-shared-expert-intermediate-size"),
                 from);
      if (flags_.given("moe-shared-expert-gate")) {
        draft_.set("model.moe.shared.form", "gate", flags_.origin("moe-shared-expert-gate"));
      }
    }
  }

  void router() {
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
      field(root + "scale", "moe-router-topk-scaling-factor", "1");
    }
    if (flags_.given("moe-router-num-groups")) {
      field(root + "limit.groups", "moe-router-num-groups", "1");
      field(root + "limit.keep", "moe-router-group-topk", "1");
    }
    balance(losses);
    z_loss(root + "balance.z_loss");
    gate();
  }

  void gate() {
    const std::string root = "model.moe.router.";
    if (flags_.given("moe-input-jitter-eps")) field(root + "jitter", "moe-input-jitter-eps", "0");
    if (flags_.given("moe-router-force-biased")) {
      draft_.set(root + "force", "biased", flags_.origin("moe-router-force-biased"));
      field(root + "force_std", "moe-router-force-biased", "1");
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
    if (flags_.given("moe-z-loss-coeff")) field(path, "moe-z-loss-coeff", "0");
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

  void capacity() {
    const std::string root = "model.moe.capacity.";
    if (flags_.given("moe-expert-rank-capacity-factor")) {
      field(root + "budget", "moe-expert-rank-capacity-factor", "0");
    }
    const bool asked = flags_.given("moe-token-dropping");
    if (!asked && !flags_.given("moe-expert-capacity-factor")) return;
    if (flags_.given("moe-expert-capacity-factor")) {
      field(root + "factor", "moe-expert-capacity-factor", "0");
      if (asked) draft_.ignore(flags_.origin("moe-token-dropping"), "the factor says it");
    } else {
      draft_.set(root + "factor", "1", flags_.origin("moe-token-dropping"));
      draft_.note(
          "--moe-token-dropping: experts drop here what is above their share. Megatron-LM "
          "reads the flag nowhere and drops nothing; take it out to do the same");
    }
    field(root + "policy", "moe-token-drop-policy", "probs");
    if (flags_.given("moe-pad-expert-input-to-capacity")) {
      draft_.set(root + "pad", "true", flags_.origin("moe-pad-expert-input-to-capacity"));
    }
  }

  void megablocks_router() {
    field("model.moe.top_k", "moe-top-k", "1");
    const Origin from = flags_.origin("moe-num-experts");
    draft_.set("model.moe.router.kind", "topk_softmax", from);
    draft_.set("model.moe.router.order", "before", from);
    draft_.set("model.moe.router.balance.aux_loss", "0", from);
    // Theirs is the mean over the layers: ours of the same form.
    field("model.moe.router.balance.batched_loss", "moe-loss-weight", "0.1");
    if (flags_.given("moe-zloss-weight")) {
      field("model.moe.router.balance.z_loss", "moe-zloss-weight", "0");
    }
    if (flags_.given("moe-jitter-eps")) field("model.moe.router.jitter", "moe-jitter-eps", "0");
    if (flags_.given("moe-normalize-expert-weights")) {
      field("model.moe.router.p_norm", "moe-normalize-expert-weights", "0");
    }
    megablocks_capacity();
  }

  // A capacity selects MegaBlocks' dropping layer, which its scripts for MoE (not dMoE) run; by
  // default the dropless layer runs.
  void megablocks_capacity() {
    const bool dropping = program_.ends_with("pretrain_moe.py");
    if (!dropping && !flags_.given("moe-capacity-factor")) {
      return draft_.note(
          "--moe-capacity-factor is not given: no expert drops rows, as in MegaBlocks' dMoE");
    }
    const double factor = flags_.number("moe-capacity-factor", 1);
    const Origin from = flags_.origin("moe-capacity-factor", "1");
    if (factor == 0) return draft_.set("model.moe.capacity.factor", "0", from);
    if (factor >= static_cast<double>(experts())) {
      draft_.set("model.moe.capacity.factor", "0", from);
      return draft_.note(from.text + ": each expert could hold every row, so none is dropped");
    }
    draft_.set("model.moe.capacity.factor", flags_.text("moe-capacity-factor", "1"), from);
    draft_.set("model.moe.capacity.policy", "position", from);
    draft_.set("model.moe.capacity.pad", "true", from);
  }

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

  void schedule() {
    if (flags_.given("train-tokens")) {
      field("train.tokens", "train-tokens", "");
      if (flags_.given("train-iters")) {
        draft_.ignore(flags_.origin("train-iters"), "--train-tokens end the run");
      }
    } else if (flags_.given("train-samples")) {
      const int64_t samples = flags_.whole("train-samples", 0);
      const int64_t sequence = flags_.whole("seq-length", 0);
      draft_.set("train.tokens", to_text(samples * sequence), flags_.origin("train-samples"));
    } else if (flags_.given("train-iters")) {
      field("train.steps", "train-iters", "");
    } else {
      draft_.need("train.tokens",
                  "neither --train-iters nor --train-samples is given: this, or train.steps");
    }
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

  void optimizer() {
    const std::string kind = flags_.text("optimizer", "adam");
    const Origin from = flags_.origin("optimizer", "adam");
    const std::string root = "train.optimizer.";
    if (kind != "adam" && kind != "sgd" && kind != "muon" && kind != "lion" &&
        kind != "adafactor") {
      return draft_.refuse(from, "adam, sgd, lion, muon and adafactor are supported");
    }
    draft_.set(root + "kind", kind == "adam" ? "adamw" : kind, from);
    if (flags_.given("lr")) field(root + "lr", "lr", "");
    const bool grows = flags_.text("weight-decay-incr-style", "constant") != "constant";
    const std::string decay = grows ? "start-weight-decay" : "weight-decay";
    field(root + "weight_decay", decay, "0.01");
    if (grows) {
      field(root + "weight_decay_end", "end-weight-decay", "0.01");
      field(root + "weight_decay_form", "weight-decay-incr-style", "linear");
    }
    if (kind == "adafactor") {
      draft_.note(from.text +
                  ": as torch.optim.Adafactor has it; the script does not say its own "
                  "decay, eps and clip");
    } else if (kind == "sgd") {
      field(root + "momentum", "sgd-momentum", "0.9");
    } else {
      const std::string betas =
          '[' + flags_.text("adam-beta1", "0.9") + ", " + flags_.text("adam-beta2", "0.999") + ']';
      Origin betas_from = flags_.origin("adam-beta1", "0.9");
      betas_from.text += ", " + flags_.origin("adam-beta2", "0.999").text;
      draft_.set(root + "betas", betas, betas_from);
      if (kind != "lion") field(root + "eps", "adam-eps", "1e-8");
    }
    const std::string moments = flags_.text("exp-avg-dtype", "fp32");
    const std::string squares = flags_.text("exp-avg-sq-dtype", "fp32");
    if (moments == "bf16" && squares == "bf16") {
      draft_.set(root + "moments", "bf16", flags_.origin("exp-avg-dtype"));
    } else if (moments != "fp32" || squares != "fp32") {
      draft_.refuse(flags_.origin("exp-avg-dtype"), "both moments are fp32, or both bf16");
    }
    field("train.clip", "clip-grad", "1.0");
  }

  void precision() {
    const char* const flag = flags_.given("bf16") ? "bf16" : "fp16";
    const bool low = flags_.given("bf16") || flags_.given("fp16");
    draft_.set("train.precision", low ? flag : "fp32",
               low ? flags_.origin(flag) : flags_.origin("bf16"));
  }

  Draft& draft_;
  Flags flags_;
  std::string program_;  // the .py file that the script starts
};

}  // namespace

void convert_megatron(const std::string& text, const std::string& file,
                      const std::map<std::string, std::string>& variables, Draft& draft) {
  const std::optional<Yaml> map = yaml_map(text, file);
  const ShellArguments arguments = map && yaml_at(*map, "MODEL_ARGS") != nullptr
                                       ? megatron_yaml_arguments(*map, variables, file, draft)
                                       : shell_arguments(text, variables, file);
  for (const std::string& note : arguments.notes) draft.note(note);
  const auto is_flag = [](const ShellWord& word) { return word.text.starts_with("--"); };
  if (!arguments.script.empty()) {
    fail(
        Code::kBadValue, file + ':' + std::to_string(arguments.line), "starts another script,",
        arguments.script + ": convert that one, with --variable NAME=VALUE for what this one sets");
  }
  if (std::none_of(arguments.words.begin(), arguments.words.end(), is_flag)) {
    fail(Code::kBadValue, file,
         "holds no arguments: neither a command that runs a .py file nor "
         "a list of --flags");
  }
  Megatron(arguments, file, draft).convert();
}

}  // namespace troupe
