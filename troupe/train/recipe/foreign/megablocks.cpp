#include "troupe/train/recipe/foreign/megablocks.h"

namespace troupe {
namespace {

constexpr std::string_view kSums = "losses are always summed in f32 here";
constexpr std::string_view kExperts =
    "how many ranks share the experts is chosen: parallel.expert; no result depends on it";
constexpr std::string_view kShards =
    "what ranks share of the state is parallel.shard; no result depends on it";
constexpr std::string_view kStages = "MegaBlocks checks a count with it; its loss is the same";

constexpr TreeRule kRules[] = {
    {"moe_lbl_in_fp32", TreeRule::kIgnored, kSums},
    {"moe_zloss_in_fp32", TreeRule::kIgnored, kSums},
    {"moe_expert_model_parallelism", TreeRule::kIgnored, kExperts},
    {"expert_parallel_group", TreeRule::kIgnored, kExperts},
    {"moe_weight_parallelism", TreeRule::kIgnored, kShards},
    {"weight_parallel_group", TreeRule::kIgnored, kShards},
    {"pipeline_model_parallel_size", TreeRule::kIgnored, kStages},
    {"num_layers_per_virtual_pipeline_stage", TreeRule::kIgnored, kStages},
    {"memory_optimized_mlp", TreeRule::kIgnored, "memory only: model.moe.recompute"},
    {"mlp_impl", TreeRule::kIgnored, "speed only: model.moe.impl"},
    {"device", TreeRule::kIgnored, "where it runs is run.device, chosen by default"},
    {"remat_act_fn", TreeRule::kIgnored, "MegaBlocks reads it nowhere"},
    {"init_method", TreeRule::kRefused, "initial values are normal: model.init_std"},
    {"output_layer_init_method", TreeRule::kRefused, "initial values are normal: model.init_std"},
    {"fc_cls", TreeRule::kRefused, "layers of one's own are not supported"},
    {"fc_kwargs", TreeRule::kRefused, "layers of one's own are not supported"},
};

// "gelu" with `approximate`, or the name of a function: "partial(F.gelu, approximate='tanh')".
std::string activation(const std::string& text, const std::string& gelu) {
  const auto has = [&](std::string_view word) { return text.find(word) != std::string::npos; };
  if (text.empty()) return gelu;
  if (has("gelu")) return has("tanh") ? "gelu_tanh" : "gelu";
  if (has("silu")) return "silu";
  return has("relu") ? "relu" : text;
}

class Layer {
 public:
  Layer(Tree& tree, const MegaBlocksForm& form, Draft& draft)
      : tree_(tree), form_(form), draft_(draft) {}

  void convert() {
    field("model.moe.experts", "moe_num_experts", "1");
    field("model.moe.top_k", "moe_top_k", "1");
    draft_.set("model.moe.hidden", tree_.text(at("ffn_hidden_size"), form_.hidden),
               tree_.given(at("ffn_hidden_size")) ? origin("ffn_hidden_size") : form_.hidden_from);
    form();
    router();
    capacity();
    shared();
    quantize();
  }

 private:
  std::string at(const std::string& name) const { return form_.root + name; }
  Origin origin(const std::string& name, const std::string& otherwise = "") {
    return tree_.origin(at(name), otherwise);
  }
  void field(const std::string& path, const std::string& name, const std::string& otherwise) {
    draft_.set(path, tree_.text(at(name), otherwise), origin(name, otherwise));
  }

  void form() {
    std::string act = tree_.text(at("ffn_act_fn.name"), tree_.text(at("activation_fn")));
    Origin from = origin(tree_.given(at("ffn_act_fn.name")) ? "ffn_act_fn.name" : "activation_fn",
                         form_.gelu);
    if (tree_.given(at("ffn_act_fn.approximate"))) act += tree_.text(at("ffn_act_fn.approximate"));
    draft_.set("model.moe.activation", activation(act, form_.gelu), from);
    const std::string type = tree_.text(at("mlp_type"), "mlp");
    if (type == "mlp" || type == "glu") {
      draft_.set("model.moe.gated", type == "glu" ? "true" : "false", origin("mlp_type", "mlp"));
    } else {
      draft_.refuse(origin("mlp_type"), "mlp and glu are supported");
    }
    const bool bias = tree_.yes(at("bias"), form_.bias);
    draft_.set("model.moe.output_bias", bias ? "true" : "false",
               origin("bias", form_.bias ? "true" : "false"));
    if (tree_.given(at("return_bias"))) {
      draft_.set("model.moe.return_bias",
                 bias && tree_.yes(at("return_bias"), true) ? "true" : "false",
                 origin("return_bias"));
    }
  }

  void router() {
    const Origin from = origin("moe_num_experts");
    draft_.set("model.moe.router.kind", "topk_softmax", from);
    draft_.set("model.moe.router.order", "before", from);
    const std::string p = tree_.text(at("moe_normalize_expert_weights"));
    if (!p.empty() && p != "None" && p != "none") {
      field("model.moe.router.p_norm", "moe_normalize_expert_weights", "");
    }
    const std::string jitter = tree_.text(at("moe_jitter_eps"));
    if (!jitter.empty() && jitter != "None" && jitter != "none") {
      field("model.moe.router.jitter", "moe_jitter_eps", "");
    }
    draft_.set("model.moe.router.balance.aux_loss", "0", from);
    if (form_.loss) {
      // The mean over the MoE layers: a coefficient w / layers of the loss of one layer.
      field("model.moe.router.balance.batched_loss", "moe_loss_weight", "0.1");
    } else {
      draft_.note("nothing balances the experts: this ffn_type has no balance loss");
    }
    if (tree_.given(at("moe_zloss_weight"))) {
      field("model.moe.router.balance.z_loss", "moe_zloss_weight", "0");
    }
    if (tree_.yes(at("uniform_expert_assignment"), false)) {
      draft_.set("model.moe.router.force", "uniform", origin("uniform_expert_assignment"));
      draft_.note("uniform_expert_assignment is for benches: what trains so is no model");
    }
  }

  void capacity() {
    const Origin from = origin("moe_capacity_factor", "1");
    if (!form_.capacity) {
      if (tree_.given(at("moe_capacity_factor"))) {
        draft_.ignore(from, "this ffn_type drops no rows, whatever the factor");
      }
      return;
    }
    const double factor = tree_.number(at("moe_capacity_factor"), 1);
    const auto experts = static_cast<double>(tree_.whole(at("moe_num_experts"), 1));
    if (factor == 0 || (factor >= experts && experts > 1)) {
      draft_.set("model.moe.capacity.factor", "0", from);
      if (factor != 0) {
        draft_.note(from.text + ": each expert could hold every row, so none is dropped");
      }
      return;
    }
    draft_.set("model.moe.capacity.factor", tree_.text(at("moe_capacity_factor"), "1"), from);
    draft_.set("model.moe.capacity.policy", "position", from);
    draft_.set("model.moe.capacity.pad", "true", from);
  }

  // Bits of what backward reads, of the versions that had the option [quant].
  void quantize() {
    for (const char* name : {"inputs", "rematerialize", "scatter"}) {
      const std::string key = "quantize_" + std::string(name) + "_num_bits";
      if (tree_.given(at(key))) field("model.moe.quantize." + std::string(name), key, "");
    }
  }

  void shared() {
    if (!tree_.yes(at("shared_expert"), false)) return;
    draft_.set("model.moe.shared.experts", "1", origin("shared_expert"));
    if (tree_.given(at("shared_expert_hidden_size"))) {
      field("model.moe.shared.hidden", "shared_expert_hidden_size", "");
    }
    const bool weighted = tree_.yes(at("shared_expert_weighted_sum"), false);
    draft_.set("model.moe.shared.form", weighted ? "weighted" : "sum",
               origin("shared_expert_weighted_sum", "false"));
  }

  Tree& tree_;
  const MegaBlocksForm& form_;
  Draft& draft_;
};

// "{hidden_size: 1024, ...}" out of a Python call, line for line, so that places stay right.
std::string yaml_of_call(const std::string& text) {
  const auto call = text.find("Arguments(");
  std::string out;
  for (size_t i = 0; i < call; ++i) out += text[i] == '\n' ? "\n" : "";
  out += '{';
  int depth = 1;
  bool quoted = false, name = true;
  for (size_t i = call + 10; i < text.size() && depth > 0; ++i) {
    const char c = text[i];
    if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      continue;
    }
    depth += (c == '(') - (c == ')');
    if (depth == 0) break;
    if (name && c == '=' && depth == 1) {
      // A value that is no plain word is quoted, so that YAML takes it as one text.
      quoted = text.find('(', i) < text.find_first_of(",\n", i);
      out += quoted ? ": \"" : ": ";
      name = false;
    } else if (c == ',' && depth == 1) {
      out += quoted ? "\"," : ",";
      quoted = false, name = true;
    } else if (quoted && c == '"') {
      out += '\'';
    } else if (!(quoted && c == '\n')) {
      out += c;
    }
  }
  return out + (quoted ? "\"}" : "}");
}

}  // namespace

void convert_moe(Tree& tree, const MegaBlocksForm& form, Draft& draft) {
  Layer(tree, form, draft).convert();
}

void convert_megablocks(const std::string& text, const std::string& file, Draft& draft) {
  const bool call = text.find("Arguments(") != std::string::npos;
  Tree tree(parse_yaml(call ? yaml_of_call(text) : text, file), draft);
  const std::string width = tree.text("hidden_size", "1024");
  draft.set("model.width", width, tree.origin("hidden_size", "1024"));
  draft.set("model.layers", tree.text("num_layers", "1"), tree.origin("num_layers", "1"));
  const bool half = tree.yes("fp16", true), bf16 = tree.yes("bf16", false);
  draft.set("train.precision",
            bf16   ? "bf16"
            : half ? "fp16"
                   : "fp32",
            tree.origin(bf16 ? "bf16" : "fp16", "true"));
  convert_moe(tree,
              {.root = "", .hidden = "4096", .hidden_from = tree.origin("ffn_hidden_size", "4096")},
              draft);
  tree.settle(kRules);
}

}  // namespace troupe
