#include "troupe/checkpoint/hf/families/table.h"

#include <functional>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/distributed/params/param.h"

namespace troupe::hf {
namespace {

// Of the matrix that a tensor is here; a vector is one column.
struct MatrixSize {
  int64_t rows, columns;
};
MatrixSize matrix_size(const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return {shape[0], 1};
  return {product({shape.begin(), shape.end() - 1}), shape.back()};
}

}  // namespace

int64_t product(const std::vector<int64_t>& sizes, size_t from) {
  return std::accumulate(sizes.begin() + static_cast<int64_t>(from), sizes.end(), int64_t{1},
                         std::multiplies<>());
}

HfPiece piece(const std::string& theirs, const std::vector<int64_t>& shape, int64_t row,
              int64_t rows, const Strided& at) {
  return {theirs, shape, row, rows, at.offset, at.row_stride, at.column_stride};
}

void Table::add(const std::string& ours, const std::vector<int64_t>& shape,
                std::vector<HfPiece> pieces) {
  const auto [rows, columns] = matrix_size(shape);
  tensors_.push_back({ours, shape, rows, columns, std::move(pieces), {}, false});
}

void Table::same(const std::string& ours, const std::vector<int64_t>& shape,
                 const std::string& theirs) {
  joined(ours, shape, {theirs});
}

void Table::joined(const std::string& ours, const std::vector<int64_t>& shape,
                   const std::vector<std::string>& theirs) {
  const auto [all_rows, columns] = matrix_size(shape);
  const int64_t rows = all_rows / static_cast<int64_t>(theirs.size());
  const std::vector<int64_t> each =
      shape.size() > 1 ? std::vector<int64_t>{rows, columns} : std::vector<int64_t>{rows};
  std::vector<HfPiece> pieces;
  for (const std::string& name : theirs) {
    const auto row = static_cast<int64_t>(pieces.size()) * rows;
    pieces.push_back(piece(name, each, row, rows, {0, columns, 1}));
  }
  add(ours, shape, std::move(pieces));
}

void add_ends(Table& t, const ModelConfig& c) {
  t.same("embed.tokens", {c.vocab, c.width}, "model.embed_tokens.weight");
  t.same("head.norm.weight", {c.width}, "model.norm.weight");
  if (!c.tie_embeddings) t.same("head.weight", {c.vocab, c.width}, "lm_head.weight");
}

void add_norms(Table& t, const ModelConfig& c, const Prefix& at) {
  t.same(at.ours + "norm1.weight", {c.width}, at.theirs + "input_layernorm.weight");
  t.same(at.ours + "norm2.weight", {c.width}, at.theirs + "post_attention_layernorm.weight");
}

void add_attention(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                   const QkNames& norms) {
  const std::string a = at.ours + "attention.", b = at.theirs + "self_attn.";
  const int64_t q = l.heads * l.head_dim, kv = l.kv_heads * l.head_dim;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    const std::string other = name == "out" ? "o" : name;
    t.same(a + name + ".weight", {out, in}, b + other + "_proj.weight");
    if (bias) t.same(a + name + ".bias", {out}, b + other + "_proj.bias");
  };
  linear("q", q, c.width, c.qkv_bias.value_or(c.bias));
  linear("k", kv, c.width, c.qkv_bias.value_or(c.bias));
  linear("v", kv, c.width, c.qkv_bias.value_or(c.bias));
  linear("out", c.width, q, c.out_bias.value_or(c.bias));
  if (c.qk_norm != QkNorm::kNone) {
    const bool head = c.qk_norm != QkNorm::kWhole;
    t.same(a + "q_norm.weight", {head ? l.head_dim : q}, b + norms.q + ".weight");
    t.same(a + "k_norm.weight", {head ? l.head_dim : kv}, b + norms.k + ".weight");
  }
  if (c.sinks) t.same(a + "sinks", {l.heads}, b + "sinks");
}

void add_mla(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const MlaConfig& m = *c.mla;
  const std::string a = at.ours + "attention.", b = at.theirs + "self_attn.";
  const int64_t q = l.heads * (m.nope_dim + m.rope_dim);
  if (m.q_rank > 0) {
    t.same(a + "q_down.weight", {m.q_rank, c.width}, b + "q_a_proj.weight");
    t.same(a + "q_norm.weight", {m.q_rank}, b + "q_a_layernorm.weight");
    t.same(a + "q_up.weight", {q, m.q_rank}, b + "q_b_proj.weight");
  } else {
    t.same(a + "q.weight", {q, c.width}, b + "q_proj.weight");
  }
  t.same(a + "kv_down.weight", {m.kv_rank + m.rope_dim, c.width}, b + "kv_a_proj_with_mqa.weight");
  t.same(a + "kv_norm.weight", {m.kv_rank}, b + "kv_a_layernorm.weight");
  t.same(a + "kv_up.weight", {l.heads * (m.nope_dim + m.value_dim), m.kv_rank},
         b + "kv_b_proj.weight");
  t.same(a + "out.weight", {c.width, l.heads * m.value_dim}, b + "o_proj.weight");
}

void add_ffn(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const int64_t F = l.ffn, D = c.width;
  const auto name = [&](const char* part) { return at.theirs + "mlp." + part + "_proj.weight"; };
  t.joined(at.ours + "ffn.w1", {2, F, D}, {name("gate"), name("up")});
  t.same(at.ours + "ffn.w2", {D, F}, name("down"));
  if (!c.ffn_bias.value_or(c.bias)) return;
  t.add(at.ours + "ffn.b1", {2, F},
        {piece(at.theirs + "mlp.gate_proj.bias", {F}, 0, 1, {0, F, 1}),
         piece(at.theirs + "mlp.up_proj.bias", {F}, 1, 1, {0, F, 1})});
  t.same(at.ours + "ffn.b2", {D}, at.theirs + "mlp.down_proj.bias");
}

void add_experts(Table& t, const ModelConfig& c, const LayerConfig& l, const MoeStyle& style,
                 const Prefix& at, bool fused) {
  const int64_t E = l.moe->experts, F = l.moe->ffn.hidden, D = c.width;
  t.same(at.ours + "moe.router.weight", {E, D},
         at.theirs + (fused ? style.fused_router : style.router));
  const std::string w1 = at.ours + "moe.experts.w1", w2 = at.ours + "moe.experts.w2";
  for (int64_t e = 0; e < E; ++e) {
    if (fused) {
      t.add(expert_name(w1, e), {2, F, D},
            {piece(at.theirs + "mlp.experts.gate_up_proj", {E, 2 * F, D}, 0, 2 * F,
                   {e * 2 * F * D, D, 1})});
      t.add(expert_name(w2, e), {D, F},
            {piece(at.theirs + "mlp.experts.down_proj", {E, D, F}, 0, D, {e * D * F, F, 1})});
      continue;
    }
    const std::string own = at.theirs + style.experts + "." + std::to_string(e) + ".";
    t.joined(expert_name(w1, e), {2, F, D},
             {own + style.gate + ".weight", own + style.up + ".weight"});
    t.same(expert_name(w2, e), {D, F}, own + style.down + ".weight");
  }
}

void add_shared(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                const std::string& name) {
  const int64_t F = l.moe->shared.width_for(l.moe->ffn.hidden), D = c.width;
  const std::string shared = at.theirs + name;
  t.joined(at.ours + "moe.shared.w1", {2, F, D},
           {shared + "gate_proj.weight", shared + "up_proj.weight"});
  t.same(at.ours + "moe.shared.w2", {D, F}, shared + "down_proj.weight");
}

void add_choice_bias(Table& t, const LayerConfig& l, const Prefix& at, const std::string& name) {
  t.same(at.ours + "moe.router.balance_bias", {l.moe->experts}, at.theirs + name);
  t.last().fp32 = true;
}

void add_biased_moe(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                    bool fused) {
  add_experts(t, c, l, {}, at, fused);
  if (l.moe->router.kind() == "sigmoid_bias") {
    add_choice_bias(t, l, at, "mlp.gate.e_score_correction_bias");
  }
  if (l.moe->shared.experts > 0) add_shared(t, c, l, at, "mlp.shared_experts.");
}

void add_latent_block(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                      bool fused) {
  add_norms(t, c, at);
  add_mla(t, c, l, at);
  l.moe ? add_biased_moe(t, c, l, at, fused) : add_ffn(t, c, l, at);
}

bool module_left_out(const ModelConfig& c, std::string_view name) {
  constexpr std::string_view kLayer = "model.layers.";
  if (!name.starts_with(kLayer)) return false;
  name.remove_prefix(kLayer.size());
  int64_t layer = 0;
  return from_text(name.substr(0, name.find('.')), layer) && layer >= c.layers + c.mtp.depth;
}

std::vector<HfTensor> layered_names(const ModelConfig& c, const AddBlock& add_block) {
  Table t;
  add_ends(t, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    add_block(t, layer_config(c, i), {ours, "model." + ours});
  }
  return t.take();
}

std::vector<HfTensor> common_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    l.moe ? add_experts(t, c, l, {}, at, fused) : add_ffn(t, c, l, at);
  });
}

std::vector<HfTensor> biased_moe_names(const ModelConfig& c, bool fused) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    l.moe ? add_biased_moe(t, c, l, at, fused) : add_ffn(t, c, l, at);
  });
}

}  // namespace troupe::hf
