#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {
namespace {

// What is the same in every layer, and what dense layers and experts compute.
class MegatronModel : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    model();
    activation();
  }

 private:
  void model() {
    const int64_t width = flags_.whole("hidden-size", 0);
    const int64_t default_ffn = flags_.given("swiglu") ? width * 8 / 3 / 64 * 64 : 4 * width;
    const char* const hidden =  // of Pai's models or Megatron-LM's
        flags_.stands("intermediate-size") ? "intermediate-size" : "ffn-hidden-size";
    const int64_t ffn = flags_.whole(hidden, default_ffn);
    const Origin from = flags_.origin(hidden, to_text(default_ffn));
    const std::string frequency = script_.moe_layers();
    if (script_.experts() == 0 || frequency != "1") draft_.set("model.ffn", to_text(ffn), from);
    if (script_.experts() > 0) {
      const bool own = flags_.given("moe-ffn-hidden-size");
      draft_.set("model.moe.hidden", to_text(flags_.whole("moe-ffn-hidden-size", ffn)),
                 own ? flags_.origin("moe-ffn-hidden-size") : from);
    }
    const std::string norm = flags_.text("normalization", "LayerNorm");
    const Origin norm_from = flags_.origin("normalization", "LayerNorm");
    const bool layer = norm == "LayerNorm" || norm == "layernorm";
    if (layer || norm == "RMSNorm" || norm == "rmsnorm") {  // Megatron-DeepSpeed's in small letters
      draft_.set("model.norm.kind", layer ? "layer" : "rms", norm_from);
      if (layer) draft_.set("model.norm.bias", "true", norm_from);
    } else {
      draft_.refuse(norm_from, "LayerNorm and RMSNorm are supported");
    }
    const bool tied = !flags_.given("untie-embeddings-and-output-weights");
    draft_.set("model.tie_embeddings", tied ? "true" : "false",
               flags_.origin("untie-embeddings-and-output-weights"));
    vocabulary();
    script_.field("model.init_std", "init-method-std", "0.02");
    script_.field("model.dropout", "hidden-dropout", "0.1");
    script_.field("model.attn_dropout", "attention-dropout", "0.1");
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
      if (script_.experts() == 0 || script_.moe_layers() != "1") {
        draft_.refuse(flags_.origin(flag), "dense layers do not have it; experts do");
      }
    } else {
      // With biases Megatron-LM fuses them with the tanh form, unless told not to.
      flag = flags_.given("openai-gelu") ? "openai-gelu" : "no-bias-gelu-fusion";
      dense = fused || flags_.given("openai-gelu") ? "gelu_tanh" : "gelu";
      routed = script_.megablocks() || flags_.given("openai-gelu") ? "gelu_tanh" : "gelu";
    }
    const Origin from = flags_.origin(flag);
    if (!dense.empty()) draft_.set("model.act", dense, from);
    if (script_.experts() == 0) return;
    draft_.set("model.moe.activation", routed, from);
    draft_.set("model.moe.gated", gated() ? "true" : "false", from);
    // MegaBlocks' experts have one bias behind their sum, Megatron-LM's have their own.
    draft_.set(script_.megablocks() ? "model.moe.output_bias" : "model.moe.bias",
               biases() ? "true" : "false", bias_from);
  }

  bool biases() { return !flags_.given("disable-bias-linear"); }

  bool gated() {
    return flags_.given("swiglu") || flags_.given("quick-geglu") || flags_.given("glu") ||
           flags_.text("mlp-type", "mlp") == "glu";
  }
};

}  // namespace

void convert_megatron_model(const MegatronScript& script) {
  MegatronModel(script).convert();
}

}  // namespace troupe
