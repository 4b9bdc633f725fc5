#include <algorithm>
#include <cctype>

#include "troupe/train/recipe/foreign/foundry_parts.h"
#include "troupe/train/recipe/foreign/megablocks.h"

namespace troupe {
namespace {

// Sizes, norms, attention, positions and initial values.
class FoundryModel : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  void convert() {
    settings_.with_default("model.width", "model.d_model", "2048");
    settings_.with_default("model.heads", "model.n_heads", "16");
    settings_.with_default("model.layers", "model.n_layers", "24");
    settings_.with_default("model.vocab", "model.vocab_size", "50368");
    for (const char* name :
         {"model.d_model", "model.n_heads", "model.n_layers", "model.vocab_size"}) {
      if (!tree_.given(name)) continue;
      const std::span<const TreeRule> rules = foundry_rules();
      const auto rule = std::find_if(rules.begin(), rules.end(),
                                     [&](const TreeRule& r) { return r.path == name; });
      settings_.field(std::string(rule->text), name, "");
    }
    const std::string positions = tree_.text("model.max_seq_len", to_text(settings_.sequence()));
    draft_.set("model.max_positions", positions, tree_.origin("model.max_seq_len", positions));
    const bool bias = !tree_.yes("model.no_bias", false);
    const Origin bias_from = tree_.origin("model.no_bias", "false");
    draft_.set("model.bias", bias ? "true" : "false", bias_from);
    const std::string norm = tree_.text("model.norm_type", "low_precision_layernorm");
    const Origin norm_from = tree_.origin("model.norm_type", "low_precision_layernorm");
    const bool rms = norm.find("rmsnorm") != std::string::npos;
    draft_.set("model.norm.kind", rms ? "rms" : "layer", norm_from);
    draft_.set("model.norm.eps", tree_.text("model.norm_eps", "1e-5"),
               tree_.origin("model.norm_eps", "1e-5"));
    if (!rms) draft_.set("model.norm.bias", bias ? "true" : "false", bias_from);
    settings_.field("model.tie_embeddings", "model.tie_word_embeddings", "true");
    settings_.field("model.dropout", "model.resid_pdrop", "0");
    if (tree_.number("model.emb_pdrop", 0) != tree_.number("model.resid_pdrop", 0)) {
      draft_.refuse(tree_.origin("model.emb_pdrop", "0"),
                    "the embedding has resid_pdrop here: model.dropout");
    } else if (tree_.given("model.emb_pdrop")) {
      draft_.set("model.dropout", tree_.text("model.emb_pdrop"), tree_.origin("model.emb_pdrop"));
    }
    attention();
    initial();
  }

 private:
  void attention() {
    const std::string root = "model.attn_config.";
    settings_.field("model.attn_dropout", root + "attn_pdrop", "0");
    if (tree_.yes(root + "alibi", false)) {
      draft_.refuse(tree_.origin(root + "alibi"), "positions are rotary, learned or none");
    }
    const bool rope = tree_.yes(root + "rope", false);
    const bool learned = tree_.yes("model.learned_pos_emb", true);
    draft_.set("model.positions",
               rope      ? "rope"
               : learned ? "learned"
                         : "none",
               rope ? tree_.origin(root + "rope") : tree_.origin("model.learned_pos_emb", "true"));
    if (tree_.given(root + "clip_qkv")) settings_.field("model.clip_qkv", root + "clip_qkv", "");
    if (tree_.yes(root + "qk_ln", false)) {
      draft_.set("model.qk_norm", "whole", tree_.origin(root + "qk_ln"));
    }
    if (tree_.yes(root + "qk_gn", false)) {
      draft_.set("model.qk_norm", "head", tree_.origin(root + "qk_gn"));
    }
    if (tree_.text(root + "attn_type") == "multiquery_attention") {
      draft_.set("model.kv_heads", "1", tree_.origin(root + "attn_type"));
    } else if (tree_.given(root + "attn_type")) {
      draft_.ignore(tree_.origin(root + "attn_type"), "kv_n_heads says it");
    }
    if (tree_.given(root + "attn_uses_sequence_id")) {
      const bool apart = tree_.yes(root + "attn_uses_sequence_id", false);
      draft_.set("data.documents", apart ? "eod" : "none",
                 tree_.origin(root + "attn_uses_sequence_id"));
    }
    const int64_t window = tree_.whole(root + "sliding_window_size", -1);
    if (window > 0) {
      draft_.set("model.window", to_text(window), tree_.origin(root + "sliding_window_size"));
    }
  }

  void initial() {
    const std::string name = tree_.text("model.init_config.name", "kaiming_normal_");
    const Origin from = tree_.origin("model.init_config.name", "kaiming_normal_");
    if (tree_.given("model.init_config.init_std")) {
      settings_.field("model.init_std", "model.init_config.init_std", "0.02");
    } else {
      draft_.note(from.text +
                  ": initial values are drawn otherwise here: normal, 0.02, and what "
                  "adds to the residual divided by sqrt(2 layers)");
    }
    for (const std::string& key : tree_.names("model.init_config")) {
      const std::string path = "model.init_config." + key;
      if (key == "name" || key == "init_std" || key == "verbose") continue;
      if (tree_.given(path)) draft_.note(tree_.origin(path).text + ": initial values differ");
    }
  }
};

// Dense layers, or experts as MegaBlocks has them.
class FoundryFfn : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  void convert() {
    const std::string root = "model.ffn_config.", type = tree_.text(root + "ffn_type", "mptmlp");
    const Origin from = tree_.origin(root + "ffn_type", "mptmlp");
    const Origin width_from = tree_.given(root + "ffn_hidden_size")
                                  ? tree_.origin(root + "ffn_hidden_size")
                                  : tree_.origin("model.expansion_ratio", "4");
    if (type == "mptmlp" || type == "mptglu" || type == "te_ln_mlp") {
      draft_.set("model.ffn", ffn_width(), width_from);
      std::string act = tree_.text(root + "ffn_act_fn.name", "gelu");
      const bool tanh = tree_.text(root + "ffn_act_fn.approximate", "none") == "tanh";
      if (act == "gelu" && tanh) act = "gelu_tanh";
      if (type == "mptglu") {
        act = act == "silu"        ? "swiglu"
              : act == "gelu"      ? "geglu"
              : act == "gelu_tanh" ? "geglu_tanh"
              : act == "relu"      ? "reglu"
                                   : act;
      }
      return draft_.set("model.act", act, tree_.origin(root + "ffn_act_fn.name", "gelu"));
    }
    if (type != "mb_moe" && type != "mb_dmoe" && type != "torch_dmoe") {
      return draft_.refuse(from,
                           "mptmlp, mptglu, te_ln_mlp, mb_moe, mb_dmoe and torch_dmoe are "
                           "there");
    }
    convert_moe(tree_,
                {.root = root,
                 .capacity = type == "mb_moe",
                 .loss = type != "torch_dmoe",
                 .hidden = ffn_width(),
                 .hidden_from = width_from,
                 .gelu = "gelu",
                 .bias = !tree_.yes("model.no_bias", false)},
                draft_);
  }

 private:
  std::string ffn_width() {
    if (tree_.given("model.ffn_config.ffn_hidden_size")) {
      return tree_.text("model.ffn_config.ffn_hidden_size");
    }
    const double ratio = tree_.number("model.expansion_ratio", 4);
    return number_text(ratio * static_cast<double>(tree_.whole("model.d_model", 2048)));
  }
};

}  // namespace

void convert_foundry_model(FoundrySettings& settings) {
  FoundryModel(settings).convert();
  FoundryFfn(settings).convert();
}

void convert_foundry_published(FoundrySettings& settings) {
  auto& [draft, tree] = settings;
  const std::string key = "model.pretrained_model_name_or_path", name = tree.text(key);
  const std::string folder = name.substr(name.find_last_of('/') + 1);
  std::string lower = folder;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string preset;
  for (const std::string_view one : ModelConfig::presets()) {
    if (one.size() > preset.size() && lower.find(one) != std::string::npos) preset = one;
  }
  if (preset.empty()) {
    draft.refuse(tree.origin(key), "is none of the models of `troupe inspect model`");
  } else {
    draft.set("model.preset", preset, tree.origin(key));
  }
  if (!tree.yes("model.pretrained", true)) {
    return draft.ignore(tree.origin("model.pretrained"), "so it is without init_from");
  }
  draft.need("checkpoint.init_from", "download " + name + ", `troupe import " + folder + " runs/" +
                                         folder + "`: runs/" + folder + "/step-000000");
}

}  // namespace troupe
