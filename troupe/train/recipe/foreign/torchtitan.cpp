#include "troupe/train/recipe/foreign/torchtitan.h"

#include <algorithm>
#include <vector>

#include "troupe/core/config/toml.h"
#include "troupe/train/recipe/foreign/torchtitan_flavors.h"
#include "troupe/train/recipe/foreign/torchtitan_parts.h"

namespace troupe {
namespace {

constexpr auto kIgnored = TreeRule::kIgnored;
constexpr auto kRefused = TreeRule::kRefused;
constexpr std::string_view kSpeed = "speed only";
constexpr std::string_view kMemory = "memory only";
constexpr std::string_view kSums = "gradients and losses are always summed in f32 here";
constexpr std::string_view kLabel = "a label, which nothing is computed from";
constexpr std::string_view kTerminal = "what a terminal shows, not what is computed";
constexpr std::string_view kLogged = "log.jsonl always has it";
constexpr std::string_view kWhole =
    "a checkpoint is always whole; `troupe export` makes other forms";
constexpr std::string_view kProfile = "no result depends on it: profile has steps of one's own";
constexpr std::string_view kTokens =
    "token files are read in an order that is a function of data.seed";
constexpr std::string_view kFolders = "the run's folder has a place for each of its files";
constexpr std::string_view kFlight = "the run's folder always has flight.json after a fault";

constexpr TreeRule kRules[] = {
    {"job.description", kIgnored, kLabel},
    {"job.print_config", kIgnored, kTerminal},
    {"job.print_args", kIgnored, kTerminal},
    {"job.save_config_file", kIgnored, "the run's folder always has recipe.yaml"},
    {"job.config_file", kIgnored, "the file itself"},
    {"job.use_for_integration_test", kIgnored, kLabel},
    {"job.custom_config_module", kIgnored, "its keys are looked at one by one"},
    {"profiling.*", kIgnored, kProfile},
    {"metrics.disable_color_printing", kIgnored, kTerminal},
    {"metrics.save_tb_folder", kIgnored, kFolders},
    {"metrics.save_for_all_ranks", kIgnored, kLogged},
    {"model.tokenizer_path", kIgnored, "training reads ids; data.tokenizer shows text"},
    {"model.hf_assets_path", kIgnored, "training reads ids; data.tokenizer shows text"},
    {"model.print_after_conversion", kIgnored, kTerminal},
    {"optimizer.implementation", kIgnored, kSpeed},
    {"training.mixed_precision_reduce", kIgnored, kSums},
    {"training.enable_cpu_offload", kIgnored, kMemory},
    {"training.gc_freq", kIgnored, kSpeed},
    {"training.gc_debug", kIgnored, kSpeed},
    {"training.compile", kIgnored, kSpeed},
    {"training.data_parallel_replicate_degree", kRefused, "give it in parallelism"},
    {"parallelism.enable_compiled_autograd", kIgnored, kSpeed},
    {"parallelism.enable_fsdp_symm_mem", kIgnored, kSpeed},
    {"parallelism.spmd_backend", kIgnored, "how it is written, not what is computed"},
    {"parallelism.enable_async_tensor_parallel", kIgnored, kSpeed},
    {"parallelism.expert_parallel_comm_backend", kIgnored,
     "speed only: parallel.dispatcher, chosen for the ranks"},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", kIgnored, kSpeed},
    {"parallelism.context_parallel_rotate_method", kIgnored,
     "keys are fetched by those whose queries see them; no result depends on it"},
    {"parallelism.context_parallel_ptrr_mask_key", kIgnored, "of ptrr alone: speed only"},
    {"checkpoint.last_save_model_only", kIgnored, kWhole},
    {"checkpoint.last_save_in_hf", kIgnored, kWhole},
    {"checkpoint.export_dtype", kIgnored, kWhole},
    {"checkpoint.enable_ft_dataloader_checkpoints", kIgnored, kWhole},
    {"checkpoint.create_seed_checkpoint", kIgnored,
     "initial values are a function of the seed on any layout"},
    {"checkpoint.enable_first_step_checkpoint", kIgnored,
     "`troupe check` and the first interval find what it looks for"},
    {"checkpoint.initial_load_model_only", kIgnored, "of initial_load_path, as init_from has it"},
    {"checkpoint.initial_load_in_hf", kIgnored, "`troupe import` reads such a folder"},
    {"checkpoint.initial_load_in_hf_quantized", kIgnored, "`troupe import` reads such a folder"},
    {"checkpoint.exclude_from_loading", kRefused, "name them in checkpoint.waive_missing"},
    {"checkpoint.load_only", kRefused, "a run always saves its end"},
    {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", kIgnored, kMemory},
    {"activation_checkpoint.early_stop", kIgnored, kSpeed},
    {"activation_checkpoint.memory_budget", kIgnored, kMemory},
    {"activation_checkpoint.visualize_memory_budget_pareto", kIgnored, kTerminal},
    {"activation_checkpoint.preserve_rng_state", kIgnored,
     "random numbers are a function of the seed: none are saved"},
    {"activation_checkpoint.determinism_check", kIgnored, "always the same bits here"},
    {"activation_checkpoint.debug", kIgnored, kTerminal},
    {"compile.*", kIgnored, kSpeed},
    {"comm.trace_buf_size", kIgnored, kFlight},
    {"comm.save_traces_folder", kIgnored, kFlight},
    {"comm.save_traces_file_prefix", kIgnored, kFlight},
    {"comm.mode", kRefused, "ranks are real; `troupe plan` forecasts a layout without them"},
    {"memory_estimation.*", kIgnored, "`troupe plan` forecasts memory"},
    {"experimental.*", kRefused, "Python modules of one's own are not read"},
    {"validation.dataset", kIgnored, "data.valid names its files"},
    {"validation.dataset_path", kIgnored, "data.valid names its files"},
    {"validation.seq_len", kIgnored, "evaluation reads rows of data.sequence"},
    {"validation.dataloader.*", kIgnored, kTokens},
    {"training.dataloader.*", kIgnored, kTokens},
    {"debug.deterministic_warn_only", kIgnored, "of deterministic alone"},
    {"debug.print_config", kIgnored, kTerminal},
    {"debug.save_config_file", kIgnored, "the run's folder always has recipe.yaml"},
    {"debug.enable_structured_logging", kIgnored, kLogged},
    {"debug.detect_anomaly", kIgnored, "what is not finite is always looked for, and named"},
};

std::vector<std::string> leaves_under(const Tree& tree, const std::string& section) {
  std::vector<std::string> out;
  for (const std::string& name : tree.names(section)) {
    const std::string path = section + '.' + name;
    const std::vector<std::string> inner = leaves_under(tree, path);
    if (inner.empty()) out.push_back(path);
    out.insert(out.end(), inner.begin(), inner.end());
  }
  return out;
}

// What its code draws and rounds otherwise than any recipe says.
void tell_differences(const Origin& from, const TorchtitanFlavor& model, Draft& draft) {
  const auto has = [&](std::string_view section) {
    return std::ranges::any_of(model.fields,
                               [&](const auto& field) { return field.first.starts_with(section); });
  };
  draft.note(from.text +
             ": initial values are cut off normals there, with 1 for the table, width^-1/2 for the "
             "head and 0.02 / sqrt(2 (l + 1)) for layer l's outputs, up products and router; here "
             "they are normals as model.init_std and model.scaled_init say");
  if (has("mla.")) {
    draft.note(from.text +
               ": the last norm's epsilon is the smallest step of its type there, 1.2e-7 of f32, "
               "here model.norm.eps as in all others");
  }
  if (has("moe.")) draft.note(from.text + ": routers work in the model's type there, here in f32");
  if (model.unbalanced) {
    draft.note(from.text +
               ": nothing balances the experts, as there; 0.01 is usual for "
               "model.moe.router.balance.aux_loss");
  }
}

// The flavor's own values, and what changes a model's products.
void convert_model(TorchtitanSettings& settings) {
  Draft& draft = settings.draft;
  Tree& tree = settings.tree;
  const std::string name = tree.text("model.name", "llama3");
  const std::string flavor = tree.text("model.flavor", "debugmodel");
  Origin from = tree.origin("model.name", "llama3");
  from.text += ", flavor " + flavor;
  const TorchtitanFlavor model =
      torchtitan_flavor(name, flavor, tree.whole("training.seq_len", 2048));
  for (const auto& [key, value] : model.fields) {
    draft.set("model." + key, value, from);
    if (key == "layers") settings.layers = draft.recipe().model.layers;
  }
  if (model.documents) draft.set("data.documents", "eod", from);
  if (model.fields.empty()) {
    draft.need("model.preset", from.text +
                                   ": not a flavor that is known here: name a preset of `troupe "
                                   "inspect model`, or say the fields, model.layers and the rest");
  } else {
    tell_differences(from, model, draft);
  }
  if (model.bias_alone) {
    draft.refuse(from,
                 "a bias that moves by 1e-3 a step balances its experts, whose weights are not "
                 "divided by their sum: model.moe.router has such a bias with such a sum alone; "
                 "topk_softmax without a loss is what is nearest");
  }
  const std::string converters = tree.text("model.converters");
  if (!converters.empty() && converters != "[]") {
    draft.refuse(tree.origin("model.converters"),
                 "8-bit products are train.fp8, with recipes of their own");
  }
  // Without a converter the sections do nothing.
  for (const std::string section : {"quantize", "float8", "mx"}) {
    for (const std::string& path : leaves_under(tree, section)) {
      if (tree.given(path)) {
        draft.ignore(tree.origin(path), "read by model.converters alone");
      }
    }
  }
}

}  // namespace

void convert_torchtitan(const std::string& text, const std::string& file, Draft& draft) {
  const Yaml root = parse_toml(text, file);
  Tree tree(root, draft);
  TorchtitanSettings settings{.draft = draft, .root = root, .tree = tree, .layers = 0};
  convert_model(settings);
  convert_torchtitan_training(settings);
  convert_torchtitan_parallel(settings);
  convert_torchtitan_run(settings);
  tree.settle(kRules);
}

}  // namespace troupe
