#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/checkpoint/hf/families/table.h"

namespace troupe::hf {
namespace {

// Theirs are Conv1D: [in, out], so that ours [out, in] is the transpose of `of` columns from
// `first` on.
void transposed(Table& t, const std::string& ours, const std::vector<int64_t>& shape,
                const std::string& theirs, int64_t of, int64_t first = 0) {
  const int64_t in = shape.back(), out = product(shape) / in;
  t.add(ours + "weight", shape, {piece(theirs + "weight", {in, of}, 0, out, {first, 1, of})});
}

void add_block(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at) {
  const int64_t D = c.width, F = l.ffn;
  for (const auto& [ours, theirs] : {std::pair{"norm1.", "ln_1."}, std::pair{"norm2.", "ln_2."}}) {
    t.same(at.ours + ours + "weight", {D}, at.theirs + theirs + "weight");
    t.same(at.ours + ours + "bias", {D}, at.theirs + theirs + "bias");
  }
  const std::string a = at.ours + "attention.", joined = at.theirs + "attn.c_attn.";
  int64_t first = 0;
  for (const char* name : {"q.", "k.", "v."}) {
    transposed(t, a + name, {D, D}, joined, 3 * D, first);
    t.add(a + name + "bias", {D}, {piece(joined + "bias", {3 * D}, 0, D, {first, 1, 1})});
    first += D;
  }
  transposed(t, a + "out.", {D, D}, at.theirs + "attn.c_proj.", D);
  t.same(a + "out.bias", {D}, at.theirs + "attn.c_proj.bias");
  const std::string up = at.theirs + "mlp.c_fc.", down = at.theirs + "mlp.c_proj.";
  t.add(at.ours + "ffn.w1", {1, F, D}, {piece(up + "weight", {D, F}, 0, F, {0, 1, F})});
  t.add(at.ours + "ffn.b1", {1, F}, {piece(up + "bias", {F}, 0, 1, {0, F, 1})});
  t.add(at.ours + "ffn.w2", {D, F}, {piece(down + "weight", {F, D}, 0, D, {0, 1, D})});
  t.same(at.ours + "ffn.b2", {D}, down + "bias");
}

std::vector<HfTensor> gpt2_names(const ModelConfig& c, bool /*fused*/) {
  Table t;
  t.same("embed.tokens", {c.vocab, c.width}, "transformer.wte.weight");
  t.same("embed.positions", {c.max_positions, c.width}, "transformer.wpe.weight");
  t.same("head.norm.weight", {c.width}, "transformer.ln_f.weight");
  t.same("head.norm.bias", {c.width}, "transformer.ln_f.bias");
  if (!c.tie_embeddings) t.same("head.weight", {c.vocab, c.width}, "lm_head.weight");
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string number = std::to_string(i) + '.';
    add_block(t, c, layer_config(c, i), {"layers." + number, "transformer.h." + number});
  }
  return t.take();
}

void gpt2_config(ConfigFields& f) {
  ModelConfig& c = f.config.model;
  f.keys.field({"vocab_size"}, c.vocab, int64_t{50257});
  f.keys.field({"n_embd", "hidden_size"}, c.width, int64_t{768});
  f.keys.field({"n_layer", "num_hidden_layers"}, c.layers, int64_t{12});
  f.keys.field({"n_head", "num_attention_heads"}, c.heads, int64_t{12});
  f.keys.field({"n_positions", "max_position_embeddings"}, c.max_positions, int64_t{1024});
  f.keys.field({"layer_norm_epsilon"}, c.norm.eps, 1e-5);
  f.keys.field({"tie_word_embeddings"}, c.tie_embeddings, true);
  f.keys.field({"attn_pdrop"}, c.attn_dropout, 0.1);
  double embedding = c.dropout;
  f.keys.field({"resid_pdrop"}, c.dropout, 0.1);
  f.keys.field({"embd_pdrop"}, embedding, 0.1);
  if (embedding != c.dropout) f.keys.refuse("embd_pdrop", "is supported as resid_pdrop alone");
  f.keys.only("activation_function", std::string("gelu_new"));
  f.keys.only("scale_attn_weights", true);
  f.keys.only("scale_attn_by_inverse_layer_idx", false);
  f.keys.only("add_cross_attention", false);
  f.keys.pass({"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
               "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
               "task_specific_params", "gradient_checkpointing"},
              f.passed);
  f.init_std();
  f.check_sizes();
  std::optional<int64_t> inner;
  if (c.ffn != 4 * c.width) inner = c.ffn;
  f.keys.optional({"n_inner"}, inner);
  if (!f.keys.reads()) return;
  if (inner && *inner < 1) f.keys.refuse("n_inner", "it must be 1 or more");
  c.ffn = inner.value_or(4 * c.width);
  c.moe.experts = 0;
  c.kv_heads = c.head_dim = 0;
  c.bias = true, c.qkv_bias = c.out_bias = c.ffn_bias = {};
  c.norm.kind = NormForm::kLayer, c.norm.bias = true;
  c.positions = PositionForm::kLearned;
  c.act = FfnAct::kGeluTanh;
}

// Masks that old files hold beside the weights.
bool attention_mask(const ModelConfig&, std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace

extern constinit const HfFamily kGpt2 = {
    .model_type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .form = {.norm = NormForm::kLayer, .moe = false, .gpt2 = true},
    .read_or_write = gpt2_config,
    .names = gpt2_names,
    .skippable = attention_mask,
    .base_prefix = "transformer.",
};

}  // namespace troupe::hf
