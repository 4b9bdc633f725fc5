#include "troupe/nn/models/hf_names.h"

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/nn/models/hf/table.h"

namespace troupe {
namespace {

// What a family's code computes: the first thing in which the config differs, or nothing.
class Misfit {
 public:
  void unless(bool holds, const char* key) {
    if (!holds && key_.empty()) key_ = key;
  }
  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

bool is_moe(HfFamily f) {
  return f != HfFamily::kLlama;
}

void check_form(HfFamily f, const ModelConfig& c, Misfit& m) {
  const bool dbrx = f == HfFamily::kDbrx, oss = f == HfFamily::kGptOss;
  const bool deepseek = f == HfFamily::kDeepseekV2 || f == HfFamily::kDeepseekV3;
  m.unless(c.overrides.empty(), "overrides");
  m.unless(c.vocab_pad == 1 || padded_vocab(c) >= c.vocab, "vocab_pad");
  m.unless(c.positions == PositionForm::kRope, "positions");
  m.unless((c.norm.kind == NormForm::kLayer) == dbrx && !c.norm.bias, "norm");
  m.unless(c.mla.has_value() == deepseek, "mla");
  m.unless(c.rope.interleaved == deepseek, "rope.interleaved");
  m.unless(c.rope.fraction == 1, "rope.fraction");
  m.unless(c.mtp.depth == 0 || f == HfFamily::kDeepseekV3, "mtp.depth");
  m.unless(c.sinks == oss, "sinks");
  m.unless(c.window == 0 || oss || f == HfFamily::kMixtral || f == HfFamily::kQwen3Moe, "window");
  m.unless(!c.clip_qkv || dbrx || f == HfFamily::kOlmoe, "clip_qkv");
  const QkNorm norm = f == HfFamily::kQwen3Moe ? QkNorm::kHead
                      : f == HfFamily::kOlmoe  ? QkNorm::kWhole
                                               : QkNorm::kNone;
  m.unless(c.qk_norm == norm, "qk_norm");
  const bool qkv = c.qkv_bias.value_or(c.bias), out = c.out_bias.value_or(c.bias);
  m.unless(qkv == out, "out_bias");
  m.unless(
      !qkv || f == HfFamily::kLlama || oss || f == HfFamily::kQwen3Moe || f == HfFamily::kOlmoe,
      "qkv_bias");
  m.unless(f == HfFamily::kLlama || !c.ffn_bias.value_or(c.bias) || oss, "ffn_bias");
}

void check_layers(HfFamily f, const ModelConfig& c, Misfit& m) {
  const bool mixed =
      f == HfFamily::kQwen3Moe || f == HfFamily::kDeepseekV2 || f == HfFamily::kDeepseekV3;
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    m.unless(mixed || l.moe.has_value() == is_moe(f), "moe.layers");
    m.unless(l.moe || c.act == FfnAct::kSwiglu, "act");
  }
}

void check_moe(HfFamily f, const ModelConfig& c, Misfit& m) {
  if (!is_moe(f)) return m.unless(c.moe.experts == 0, "moe.experts");
  const MoeConfig& moe = c.moe;
  const bool oss = f == HfFamily::kGptOss, v3 = f == HfFamily::kDeepseekV3;
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
  m.unless(moe.ffn.lora.rank == 0, "moe.lora");
  m.unless(moe.router.kind() == (v3 ? "sigmoid_bias" : "topk_softmax"), "moe.router.kind");
  m.unless(std::visit([](const auto& r) { return r.gate.bias; }, moe.router) == oss,
           "moe.router.bias");
  m.unless(moe.shared.experts == 0 || v3 || f == HfFamily::kDeepseekV2, "moe.shared");
  m.unless(moe.shared.form == SharedForm::kSum, "moe.shared.form");
  if (const auto* softmax = std::get_if<TopkSoftmaxRouting>(&moe.router)) {
    const bool after = softmax->order == SoftmaxOrder::kAfter ||
                       (softmax->order == SoftmaxOrder::kAuto && moe.top_k > 1);
    // After and before with p_norm 1 are one function (moe.md 2.3).
    const bool sums_to_one = after || softmax->p_norm == 1;
    if (oss || f == HfFamily::kMixtral) m.unless(sums_to_one, "moe.router.order");
    m.unless(softmax->scale == 1 || f == HfFamily::kDeepseekV2, "moe.router.scale");
    m.unless(softmax->limit.groups == 1 || f == HfFamily::kDeepseekV2, "moe.router.limit");
  }
}

std::string misfit(HfFamily family, const ModelConfig& c) {
  Misfit m;
  check_form(family, c, m);
  check_layers(family, c, m);
  check_moe(family, c, m);
  return m.key();
}

hf::Names names_for(HfFamily family) {
  switch (family) {
    case HfFamily::kLlama: return hf::llama_names;
    case HfFamily::kMixtral: return hf::mixtral_names;
    case HfFamily::kQwen3Moe:
    case HfFamily::kOlmoe: return hf::qwen3_moe_names;
    case HfFamily::kDbrx: return hf::dbrx_names;
    case HfFamily::kDeepseekV2:
    case HfFamily::kDeepseekV3: return hf::deepseek_names;
    case HfFamily::kGptOss: break;
  }
  return hf::gpt_oss_names;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::vector<HfTensor> hf_names(HfFamily family, const ModelConfig& c, bool fused) {
  const std::string key = misfit(family, c);
  if (!key.empty()) {
    fail(Code::kBadValue, "model." + key, "is not what the family", to_text(family), "can hold");
  }
  return names_for(family)(c, fused);
}

bool hf_skippable(HfFamily family, const ModelConfig& c, std::string_view name) {
  if (ends_with(name, "rotary_emb.inv_freq")) return true;
  if (c.tie_embeddings && name == "lm_head.weight") return true;
  if (family != HfFamily::kDeepseekV3) return false;
  // A module that the config leaves out.
  constexpr std::string_view kLayer = "model.layers.";
  if (name.substr(0, kLayer.size()) != kLayer) return false;
  name.remove_prefix(kLayer.size());
  int64_t layer = 0;
  return from_text(name.substr(0, name.find('.')), layer) && layer >= c.layers + c.mtp.depth;
}

std::optional<HfFamily> hf_family_of(const ModelConfig& c) {
  for (const auto& [name, family] : names_of(HfFamily{})) {
    if (misfit(family, c).empty()) return family;
  }
  return std::nullopt;
}

}  // namespace troupe
