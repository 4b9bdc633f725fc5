#include <sstream>

#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {
namespace {

// Heads, norms and windows of attention, and latent attention's own sizes.
class MegatronAttention : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    if (flags_.given("num-key-value-heads")) {
      script_.field("model.kv_heads", "num-key-value-heads", "1");
    } else if (flags_.given("group-query-attention")) {
      Origin from = flags_.origin("group-query-attention");
      from.text += ", " + flags_.origin("num-query-groups", "1").text;
      draft_.set("model.kv_heads", flags_.text("num-query-groups", "1"), from);
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
    if (flags_.given("q-lora-rank")) script_.field("model.mla.q_rank", "q-lora-rank", "0");
    script_.field("model.mla.kv_rank", "kv-lora-rank", "32");
    script_.field("model.mla.nope_dim", named("qk-head-dim", "qk-nope-head-dim"), "128");
    script_.field("model.mla.rope_dim", named("qk-pos-emb-head-dim", "qk-rope-head-dim"), "64");
    script_.field("model.mla.value_dim", "v-head-dim", "128");
    script_.field("model.mla.eps", "norm-epsilon", "1e-5");  // of all norms there
    draft_.set("model.rope.interleaved", "true", from);      // of latents always so there
  }

 private:
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
    const std::string layers = script_.layer_list("window-attn-skip-freq", "");
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
};

// Rotary or learned positions, and how far they are stretched.
class MegatronPositions : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    constexpr const char* kPai = "use-llama2-rotary-position-embeddings";
    const char* const flag = flags_.stands(kPai) ? kPai : "use-rotary-position-embeddings";
    const bool old = flags_.given(flag);
    const std::string kind =
        flags_.text("position-embedding-type", old ? "rope" : "learned_absolute");
    const Origin from =
        old ? flags_.origin(flag) : flags_.origin("position-embedding-type", "learned_absolute");
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
    if (flags_.given("rotary-scale-factor")) {  // Pai's
      const Origin scale = flags_.origin("rotary-scale-factor");
      if (flags_.number("rotary-scale-factor", 1) == 1) {
        draft_.ignore(scale, "1 scales nothing");
      } else {
        draft_.refuse(scale, "1 is supported: others say model.rope.scaling and its factor");
      }
    }
    if (flags_.given("multi-latent-attention")) {
      // Its embedding gets neither (multi_latent_attention.py).
      script_.ignore_given(
          {"use-rope-scaling", "rope-scaling-factor", "rotary-seq-len-interpolation-factor"},
          "with --multi-latent-attention it has no effect there: --rope-type yarn stretches");
    } else {
      stretched();
    }
    latent_rope();
  }

 private:
  // What all but latent attention has there.
  void stretched() {
    if (flags_.given("rotary-seq-len-interpolation-factor")) {
      const Origin factor = flags_.origin("rotary-seq-len-interpolation-factor");
      draft_.set("model.rope.scaling", "linear", factor);
      draft_.set("model.rope.factor", flags_.text("rotary-seq-len-interpolation-factor"), factor);
    }
    if (flags_.given("use-rope-scaling")) {
      const Origin scaling = flags_.origin("use-rope-scaling");
      draft_.set("model.rope.scaling", "llama3", scaling);
      script_.field("model.rope.factor", "rope-scaling-factor", "8");
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
    script_.field("model.rope.factor", "rotary-scaling-factor", "1");
    script_.field("model.rope.original_positions", "original-max-position-embeddings", "4096");
    script_.field("model.rope.beta_fast", "beta-fast", "32");
    script_.field("model.rope.beta_slow", "beta-slow", "1");
    script_.field("model.rope.mscale", "mscale", "1.0");
    script_.field("model.rope.mscale_all_dim", "mscale-all-dim", "0.0");
  }
};

}  // namespace

void convert_megatron_attention(const MegatronScript& script) {
  MegatronAttention(script).convert();
  MegatronPositions(script).convert();
}

}  // namespace troupe
