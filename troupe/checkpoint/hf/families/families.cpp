#include "troupe/checkpoint/hf/families/families.h"

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace hf {

extern const HfFamily kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen2Moe, kQwen3Moe,
    kOlmoe, kFlexOlmo, kDbrx, kDeepseekV2, kDeepseekV3, kGlm4Moe, kGptOss, kGraniteMoe, kErnie45Moe,
    kHunyuanMoe, kMinimaxM2, kDots1, kSolarOpen, kGlm4MoeLite, kGraniteMoeShared, kQwen3Next;

}  // namespace hf
namespace {

// The one list.
constexpr const HfFamily* kFamilies[] = {&hf::kLlama,
                                         &hf::kMistral,
                                         &hf::kQwen2,
                                         &hf::kQwen3,
                                         &hf::kMixtral,
                                         &hf::kQwen2Moe,
                                         &hf::kQwen3Moe,
                                         &hf::kOlmoe,
                                         &hf::kDbrx,
                                         &hf::kDeepseekV2,
                                         &hf::kDeepseekV3,
                                         &hf::kGlm4Moe,
                                         &hf::kGptOss,
                                         &hf::kGpt2,
                                         &hf::kFlexOlmo,
                                         &hf::kGraniteMoe,
                                         &hf::kErnie45Moe,
                                         &hf::kHunyuanMoe,
                                         &hf::kMinimaxM2,
                                         &hf::kDots1,
                                         &hf::kSolarOpen,
                                         &hf::kGlm4MoeLite,
                                         &hf::kGraniteMoeShared,
                                         &hf::kQwen3Next};

// The same model under another model_type; it is written by the first.
struct OtherName {
  std::string_view model_type;
  const HfFamily* family;
};
constexpr OtherName kOtherNames[] = {{"kimi_k2", &hf::kDeepseekV3}};

struct MissingOperator {
  std::string_view model_type, what;
};
constexpr MissingOperator kMissing[] = {
    {"phimoe", "the router SparseMixer: two masked softmaxes, one behind the other"},
    {"minimax", "lightning attention: linear attention with a decay"},
    {"kimi_linear", "Kimi Delta Attention: linear attention with a state"},
    {"jamba", "Mamba layers: a selective state space"},
    {"granitemoehybrid", "Mamba-2 layers: a selective state space"},
    {"nemotron_h", "Mamba-2 layers: a selective state space"},
    {"deepseek_v32", "the lightning indexer: attention over chosen tokens"},
    {"lfm2_moe", "gated short convolutions: layers without attention"},
    {"llama4_text", "chunked attention: a query sees keys of its own chunk alone"},
};

// The first thing in which a config differs from a form, or nothing.
class Misfit {
 public:
  void unless(bool holds, const char* key) {
    if (!holds && key_.empty()) key_ = key;
  }
  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

void check_form(const HfForm& f, const ModelConfig& c, Misfit& m) {
  m.unless(c.overrides.empty(), "overrides");
  m.unless(!c.lora.on(), "lora");
  m.unless(c.block.kind() == f.block, "block.kind");
  m.unless(c.vocab_pad == 1 || padded_vocab(c) >= c.vocab, "vocab_pad");
  m.unless(c.positions == (f.gpt2 ? PositionForm::kLearned : PositionForm::kRope), "positions");
  m.unless(
      (c.norm.kind == NormForm::kLayer) == (f.norm == NormForm::kLayer) && c.norm.bias == f.gpt2,
      "norm");
  m.unless(c.mla.has_value() == f.mla, "mla");
  m.unless(c.rope.interleaved == (f.mla || f.interleaved), "rope.interleaved");
  m.unless(c.rope.fraction == 1 || f.partial_rope, "rope.fraction");
  m.unless(c.attn_gate == f.delta, "attn_gate");
  m.unless(!c.delta || f.delta, "delta");
  m.unless(c.mtp.depth == 0 || f.mtp, "mtp.depth");
  m.unless(c.sinks == f.sinks, "sinks");
  m.unless(c.window == 0 || f.window, "window");
  m.unless(!c.clip_qkv || f.clip_qkv, "clip_qkv");
  m.unless(c.qk_norm == f.qk_norm || (f.qk_norm_or_none && c.qk_norm == QkNorm::kNone), "qk_norm");
  const bool qkv = c.qkv_bias.value_or(c.bias), out = c.out_bias.value_or(c.bias);
  if (f.gpt2) {
    m.unless(qkv && out && c.ffn_bias.value_or(c.bias), "bias");
    m.unless(c.kv_heads == 0 || c.kv_heads == c.heads, "kv_heads");
    return m.unless(c.head_dim == 0 || c.head_dim * c.heads == c.width, "head_dim");
  }
  m.unless(f.qkv_bias_alone ? !out : qkv == out, "out_bias");
  m.unless(!qkv || f.qkv_bias || f.qkv_bias_alone, "qkv_bias");
  m.unless(!c.ffn_bias.value_or(c.bias) || f.ffn_bias, "ffn_bias");
}

void check_layers(const HfForm& f, const ModelConfig& c, Misfit& m) {
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    m.unless(f.mixed_layers || l.moe.has_value() == f.moe, "moe.layers");
    m.unless(l.moe || c.act == (f.gpt2 ? FfnAct::kGeluTanh : FfnAct::kSwiglu), "act");
  }
}

void check_moe(const HfForm& f, const ModelConfig& c, Misfit& m) {
  if (!f.moe) return m.unless(c.moe.experts == 0, "moe.experts");
  const MoeConfig& moe = c.moe;
  const bool oss = f.biased_clamped_experts;
  m.unless(moe.experts > 0, "moe.experts");
  m.unless(moe.ffn.form.activation == (oss ? "quick_gelu" : "silu"), "moe.activation");
  m.unless(moe.ffn.form.gated, "moe.gated");
  m.unless(moe.ffn.form.clamp.has_value() == oss, "moe.clamp");
  m.unless(moe.ffn.form.offset == (oss ? 1 : 0), "moe.offset");
  m.unless(moe.ffn.bias == oss, "moe.bias");
  m.unless(!moe.output_bias, "moe.output_bias");
  m.unless(moe.latent == 0, "moe.latent");
  m.unless(moe.table_layers == 0, "moe.table_layers");
  m.unless(!moe.ffn.score_on_input, "moe.score_on_input");
  m.unless(!moe.ffn.lora.on(), "moe.lora");
  m.unless(moe.router.kind() == f.router, "moe.router.kind");
  const GateConfig* const gate = gate_of(moe.router);
  m.unless((gate != nullptr && gate->bias) == oss, "moe.router.bias");
  m.unless(f.gated_shared ? moe.shared.experts > 0 : moe.shared.experts == 0 || f.shared,
           "moe.shared");
  m.unless(moe.shared.experts == 0 ||
               moe.shared.form == (f.gated_shared ? SharedForm::kGate : SharedForm::kSum),
           "moe.shared.form");
  m.unless(moe.shared.experts == 0 || f.shared_width || moe.shared.hidden == 0 ||
               moe.shared.hidden == moe.shared.experts * moe.ffn.hidden,
           "moe.shared.hidden");
  if (const auto* softmax = std::get_if<TopkSoftmaxRouting>(&moe.router)) {
    const bool sums = softmax->order == SoftmaxOrder::kAfter || softmax->sums_to_one(moe.top_k);
    if (f.sums_to_one) m.unless(sums, "moe.router.order");
    m.unless(softmax->scale == 1 || f.scaled_and_limited, "moe.router.scale");
    m.unless(softmax->limit.groups == 1 || f.scaled_and_limited, "moe.router.limit");
  }
}

void check_biased_router(const HfForm& f, const ModelConfig& c, Misfit& m) {
  const auto* const r = std::get_if<SigmoidBiasRouting>(&c.moe.router);
  if (!f.moe || r == nullptr) return;
  m.unless(r->score == f.score, "moe.router.score");
  m.unless(r->p_norm == 0, "moe.router.p_norm");
  m.unless(!f.plain_bias || r->scale == 1, "moe.router.scale");
  m.unless(!f.plain_bias || r->limit.groups == 1, "moe.router.limit");
}

std::string misfit(const HfForm& form, const ModelConfig& c) {
  Misfit m;
  check_form(form, c, m);
  check_layers(form, c, m);
  check_moe(form, c, m);
  check_biased_router(form, c, m);
  return m.key();
}

}  // namespace

std::string hf_model_types() {
  std::string out;
  for (const HfFamily* family : kFamilies) {
    out.append(out.empty() ? "" : ", ").append(family->model_type);
  }
  for (const OtherName& other : kOtherNames) out.append(", ").append(other.model_type);
  return out;
}

const HfFamily* find_hf_family(std::string_view model_type) {
  for (const HfFamily* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  for (const OtherName& other : kOtherNames) {
    if (other.model_type == model_type) return other.family;
  }
  return nullptr;
}

std::string_view hf_missing_operator(std::string_view model_type) {
  for (const MissingOperator& missing : kMissing) {
    if (missing.model_type == model_type) return missing.what;
  }
  return "";
}

const HfFamily* hf_family_of(const ModelConfig& c) {
  for (const HfFamily* family : kFamilies) {
    if (misfit(family->form, c).empty()) return family;
  }
  return nullptr;
}

std::vector<HfTensor> hf_names(const HfFamily& family, const ModelConfig& c, bool fused) {
  const std::string key = misfit(family.form, c);
  if (!key.empty()) {
    fail(Code::kBadValue, "model." + key, "is not what the family", family.model_type, "can hold");
  }
  return family.names(c, fused);
}

bool hf_skippable(const HfFamily& family, const ModelConfig& c, std::string_view name) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  if (c.tie_embeddings && name == "lm_head.weight") return true;
  return family.skippable != nullptr && family.skippable(c, name);
}

}  // namespace troupe
