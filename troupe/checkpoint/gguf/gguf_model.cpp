#include "troupe/checkpoint/gguf/gguf_model.h"

#include <set>
#include <utility>

#include "troupe/checkpoint/gguf/gguf_families.h"
#include "troupe/checkpoint/gguf/gguf_fields.h"
#include "troupe/distributed/params/param.h"

namespace troupe {
namespace {

using gguf::Family;

// A tensor of a block, between "layers.3." of ours and "blk.3." of theirs.
class Tensors {
 public:
  Tensors(const Family& family, const ModelConfig& config) : family_(family), c_(config) {}

  void ends() {
    add("token_embd.weight", {c_.vocab, c_.width}, {{"embed.tokens", 0, c_.vocab}});
    vector("output_norm.weight", c_.width, "head.norm.weight");
    if (!c_.tie_embeddings)
      add("output.weight", {c_.vocab, c_.width}, {{"head.weight", 0, c_.vocab}});
    if (c_.rope.scaling == RopeScaling::kLlama3) rope_factors();
  }

  void block(int64_t i) {
    const LayerConfig l = layer_config(c_, i);
    ours_ = "layers." + std::to_string(i) + '.', theirs_ = "blk." + std::to_string(i) + '.';
    vector("attn_norm.weight", c_.width, "norm1.weight");
    vector(second_norm(), c_.width, "norm2.weight");
    c_.mla ? latent_attention() : attention(l);
    l.moe ? experts(*l.moe) : ffn("", "ffn.", l.ffn);
    if (!l.moe && c_.ffn_bias.value_or(c_.bias)) ffn_biases(l.ffn);
    ours_.clear(), theirs_.clear();
  }

  std::vector<GgufTensor> take() { return std::move(tensors_); }

 private:
  GgufTensor& add(const std::string& theirs, const std::vector<int64_t>& shape,
                  std::vector<GgufPart> parts) {
    for (GgufPart& part : parts) part.ours = ours_ + part.ours;
    tensors_.push_back({theirs_ + theirs, shape, std::move(parts)});
    return tensors_.back();
  }
  GgufTensor& vector(const std::string& theirs, int64_t size, const std::string& ours) {
    GgufTensor& out = add(theirs, {size}, {{ours, 0, 1}});
    out.f32 = true;
    return out;
  }

  // What wave lengths are stretched by, in theirs.
  void rope_factors() {
    RopeConfig plain = c_.rope;
    plain.scaling = RopeScaling::kNone;
    const int64_t n = layer_config(c_, 0).head_dim;
    const std::vector<double> f = rope_frequencies(plain, n), g = rope_frequencies(c_.rope, n);
    GgufTensor& out = add("rope_freqs.weight", {n / 2}, {});
    for (size_t j = 0; j < f.size(); ++j) out.values.push_back(static_cast<float>(f[j] / g[j]));
    out.f32 = true;
  }

  const char* second_norm() const {
    return family_.architecture == "gpt-oss" ? "post_attention_norm.weight"
           : family_.architecture == "dbrx"  ? "attn_output_norm.weight"
                                             : "ffn_norm.weight";
  }

  void attention(const LayerConfig& l) {
    const int64_t q = l.heads * l.head_dim, kv = l.kv_heads * l.head_dim, D = c_.width;
    const std::string a = "attention.";
    if (family_.joined_qkv) {
      add("attn_qkv.weight", {q + 2 * kv, D},
          {{a + "q.weight", 0, q}, {a + "k.weight", 0, kv}, {a + "v.weight", 0, kv}});
    } else {
      projection("q", q, l.heads);
      projection("k", kv, l.kv_heads);
      projection("v", kv, 0);
    }
    add("attn_output.weight", {D, q}, {{a + "out.weight", 0, D}});
    if (c_.out_bias.value_or(c_.bias)) vector("attn_output.bias", D, a + "out.bias");
    if (c_.qk_norm != QkNorm::kNone) {
      const bool head = c_.qk_norm == QkNorm::kHead;
      vector("attn_q_norm.weight", head ? l.head_dim : q, a + "q_norm.weight");
      vector("attn_k_norm.weight", head ? l.head_dim : kv, a + "k_norm.weight");
    }
    if (c_.sinks) vector("attn_sinks.weight", l.heads, a + "sinks");
  }

  void projection(const std::string& name, int64_t rows, int64_t turned) {
    if (!family_.turned) turned = 0;
    const std::string ours = "attention." + name, theirs = "attn_" + name;
    add(theirs + ".weight", {rows, c_.width}, {{ours + ".weight", 0, rows}}).turned_heads = turned;
    if (c_.qkv_bias.value_or(c_.bias))
      vector(theirs + ".bias", rows, ours + ".bias").turned_heads = turned;
  }

  // The products that come out of the latent are apart: of the keys transposed, for queries go
  // through it.
  void latent_attention() {
    const MlaConfig& m = *c_.mla;
    const int64_t q = c_.heads * (m.nope_dim + m.rope_dim), each = m.nope_dim + m.value_dim;
    const std::string a = "attention.";
    if (m.q_rank > 0) {
      add("attn_q_a.weight", {m.q_rank, c_.width}, {{a + "q_down.weight", 0, m.q_rank}});
      vector("attn_q_a_norm.weight", m.q_rank, a + "q_norm.weight");
      add("attn_q_b.weight", {q, m.q_rank}, {{a + "q_up.weight", 0, q}});
    } else {
      add("attn_q.weight", {q, c_.width}, {{a + "q.weight", 0, q}});
    }
    add("attn_kv_a_mqa.weight", {m.kv_rank + m.rope_dim, c_.width},
        {{a + "kv_down.weight", 0, m.kv_rank + m.rope_dim}});
    vector("attn_kv_a_norm.weight", m.kv_rank, a + "kv_norm.weight");
    std::vector<GgufPart> keys, values;
    for (int64_t h = 0; h < c_.heads; ++h) {
      keys.push_back({a + "kv_up.weight", h * each, m.nope_dim, /*transposed=*/true});
      values.push_back({a + "kv_up.weight", h * each + m.nope_dim, m.value_dim});
    }
    add("attn_k_b.weight", {c_.heads, m.kv_rank, m.nope_dim}, std::move(keys));
    add("attn_v_b.weight", {c_.heads, m.value_dim, m.kv_rank}, std::move(values));
    add("attn_output.weight", {c_.width, c_.heads * m.value_dim},
        {{a + "out.weight", 0, c_.width}});
  }

  // Gate and up are the two halves of w1.
  void ffn(const std::string& suffix, const std::string& ours, int64_t F) {
    const auto name = [&](const char* part) {
      return std::string("ffn_").append(part).append(suffix).append(".weight");
    };
    add(name("gate"), {F, c_.width}, {{ours + "w1", 0, F}});
    add(name("up"), {F, c_.width}, {{ours + "w1", F, F}});
    add(name("down"), {c_.width, F}, {{ours + "w2", 0, c_.width}});
  }

  void ffn_biases(int64_t F) {
    vector("ffn_gate.bias", F, "ffn.b1");
    vector("ffn_up.bias", F, "ffn.b1").parts[0].row = 1;
    vector("ffn_down.bias", c_.width, "ffn.b2");
  }

  // The same rows of each expert's tensor.
  GgufTensor& stacked(const std::string& theirs, std::vector<int64_t> each, const char* ours,
                      int64_t row, int64_t rows) {
    std::vector<GgufPart> parts;
    for (int64_t e = 0; e < c_.moe.experts; ++e) {
      parts.push_back({expert_name(std::string("moe.experts.") + ours, e), row, rows});
    }
    each.insert(each.begin(), c_.moe.experts);
    return add(theirs, each, std::move(parts));
  }

  void experts(const MoeConfig& moe) {
    const int64_t E = moe.experts, F = moe.ffn.hidden, D = c_.width;
    add("ffn_gate_inp.weight", {E, D}, {{"moe.router.weight", 0, E}}).f32 = true;
    const GateConfig* const gate = gate_of(moe.router);
    if (gate != nullptr && gate->bias) vector("ffn_gate_inp.bias", E, "moe.router.bias");
    if (moe.router.kind() == SigmoidBiasRouting::kKind)
      vector("exp_probs_b.bias", E, "moe.router.balance_bias");
    stacked("ffn_gate_exps.weight", {F, D}, "w1", 0, F);
    stacked("ffn_up_exps.weight", {F, D}, "w1", F, F);
    stacked("ffn_down_exps.weight", {D, F}, "w2", 0, D);
    if (moe.ffn.bias) {
      stacked("ffn_gate_exps.bias", {F}, "b1", 0, 1).f32 = true;
      stacked("ffn_up_exps.bias", {F}, "b1", 1, 1).f32 = true;
      stacked("ffn_down_exps.bias", {D}, "b2", 0, 1).f32 = true;
    }
    if (moe.shared.experts == 0) return;
    ffn("_shexp", "moe.shared.", moe.shared.width_for(F));
    if (moe.shared.form == SharedForm::kGate)
      vector("ffn_gate_inp_shexp.weight", D, "moe.shared.gate");
  }

  const Family& family_;
  const ModelConfig& c_;
  std::string ours_, theirs_;
  std::vector<GgufTensor> tensors_;
};

// Ours that no tensor of theirs is made of.
std::vector<std::string> unused(const HfConfig& config, const std::vector<GgufTensor>& tensors) {
  std::set<std::string> used;
  for (const GgufTensor& t : tensors) {
    for (const GgufPart& part : t.parts) used.insert(part.ours);
  }
  std::vector<std::string> out;
  for (const HfTensor& t : hf_names(*config.family, config.model)) {
    if (!used.contains(t.name)) out.push_back(t.name);
  }
  return out;
}

}  // namespace

GgufModel gguf_model(const HfConfig& config) {
  const Family& family = gguf::family_of(config);
  const ModelConfig& c = config.model;
  gguf::require_computed(family, c);
  GgufModel out{.architecture = std::string(family.architecture)};
  out.fields = gguf::model_fields(family, c);
  Tensors tensors(family, c);
  tensors.ends();
  for (int64_t i = 0; i < c.layers; ++i) tensors.block(i);
  out.tensors = tensors.take();
  out.left_out = unused(config, out.tensors);
  for (const std::string& name : out.left_out) {
    if (!name.starts_with("head.mtp."))
      fail(Code::kBadModelConfig, "--gguf", "llama.cpp has no place for", name);
  }
  if (c.rope.scaling == RopeScaling::kYarn && !c.rope.truncate) {
    out.notes.emplace_back(
        "llama.cpp rounds YaRN's range to whole dimensions, and this model does not: where its "
        "context is stretched, logits differ a little");
  }
  return out;
}

}  // namespace troupe
