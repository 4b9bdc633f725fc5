#include "troupe/train/recipe/foreign/torchtitan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <vector>

#include "troupe/core/config/toml.h"
#include "troupe/nn/models/presets.h"
#include "troupe/train/recipe/foreign/stage_texts.h"
#include "troupe/train/recipe/foreign/tree.h"

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

struct Flavor {
  std::string_view name, flavor, preset;
};
constexpr Flavor kFlavors[] = {
    {"llama3", "8B", "llama-3.1-8b"},       {"llama3", "70B", "llama-3-70b"},
    {"qwen3", "30B-A3B", "qwen3-30b-a3b"},  {"qwen3", "235B-A22B", "qwen3-235b-a22b"},
    {"deepseek_v3", "671B", "deepseek-v3"}, {"deepseek_v3", "16B", "deepseek-v2-lite"},
    {"gpt_oss", "20b", "gpt-oss-20b"},      {"gpt_oss", "120b", "gpt-oss-120b"}};

class Torchtitan {
 public:
  Torchtitan(const Yaml& root, Draft& draft) : draft_(draft), root_(root), tree_(root, draft) {}

  void convert() {
    model();
    optimizer();
    schedule();
    training();
    parallel();
    checkpoint();
    recompute();
    observation();
    switches();
    tree_.settle(kRules);
  }

 private:
  void field(const std::string& path, const std::string& name, const std::string& otherwise) {
    draft_.set(path, tree_.text(name, otherwise), tree_.origin(name, otherwise));
  }
  void field_if_given(const std::string& path, const std::string& name) {
    if (tree_.given(name)) field(path, name, "");
  }
  // A setting whose other values are not supported.
  void only(const std::string& name, bool wanted, std::string_view why) {
    if (!tree_.given(name)) return;
    const Origin from = tree_.origin(name);
    if (tree_.yes(name, wanted) == wanted) return draft_.ignore(from, why);
    draft_.refuse(from, std::string(why));
  }
  int64_t axis(const std::string& name) { return tree_.whole("parallelism." + name, 1); }

  void model() {
    const std::string name = tree_.text("model.name", "llama3");
    const std::string flavor = tree_.text("model.flavor", "debugmodel");
    Origin from = tree_.origin("model.name", "llama3");
    from.text += ", flavor " + flavor;
    const auto* const found = std::ranges::find_if(
        kFlavors, [&](const Flavor& f) { return f.name == name && f.flavor == flavor; });
    if (found != std::end(kFlavors)) {
      draft_.set("model.preset", std::string(found->preset), from);
      layers_ = preset(found->preset).layers;
    } else {
      draft_.need("model.preset", from.text +
                                      ": no preset of `troupe inspect model` is this one; "
                                      "say its fields, model.layers and the rest");
    }
    const std::string converters = tree_.text("model.converters");
    if (!converters.empty() && converters != "[]") {
      draft_.refuse(tree_.origin("model.converters"),
                    "8-bit products are train.fp8, with recipes of their own");
    }
    // Without a converter the sections do nothing.
    for (const std::string section : {"quantize", "float8", "mx"}) {
      for (const std::string& path : leaves_under(section)) {
        if (tree_.given(path)) {
          draft_.ignore(tree_.origin(path), "read by model.converters alone");
        }
      }
    }
  }

  std::vector<std::string> leaves_under(const std::string& section) const {
    std::vector<std::string> out;
    for (const std::string& name : tree_.names(section)) {
      const std::string path = section + '.' + name;
      const std::vector<std::string> inner = leaves_under(path);
      if (inner.empty()) out.push_back(path);
      out.insert(out.end(), inner.begin(), inner.end());
    }
    return out;
  }

  void optimizer() {
    const std::string name = tree_.text("optimizer.name", "AdamW");
    const Origin from = tree_.origin("optimizer.name", "AdamW");
    const double decay = tree_.number("optimizer.weight_decay", 0.1);
    if (name != "AdamW" && (name != "Adam" || decay != 0)) {
      return draft_.refuse(from, name == "Adam" ? "adds weight decay to gradients; AdamW does not"
                                                : "AdamW, and Adam without weight decay, are "
                                                  "there");
    }
    const std::string root = "train.optimizer.";
    draft_.set(root + "kind", "adamw", from);
    field(root + "lr", "optimizer.lr", "8e-4");
    Origin betas = tree_.origin("optimizer.beta1", "0.9");
    betas.text += ", " + tree_.origin("optimizer.beta2", "0.95").text;
    draft_.set(root + "betas",
               '[' + tree_.text("optimizer.beta1", "0.9") + ", " +
                   tree_.text("optimizer.beta2", "0.95") + ']',
               betas);
    field(root + "eps", "optimizer.eps", "1e-8");
    field(root + "weight_decay", "optimizer.weight_decay", "0.1");
    only("optimizer.early_step_in_backward", false,
         "the update comes after the gradient's norm, which is of all");
  }

  void schedule() {
    const std::string decay = tree_.text("lr_scheduler.decay_type", "linear");
    const Origin from = tree_.origin("lr_scheduler.decay_type", "linear");
    const std::string root = "train.schedule.";
    const std::string least =
        tree_.given("lr_scheduler.lr_min") ? "lr_scheduler.lr_min" : "lr_scheduler.min_lr_factor";
    const bool part = tree_.given("lr_scheduler.decay_ratio");
    if (decay != "linear" && decay != "cosine" && (decay != "sqrt" || !part)) {
      return draft_.refuse(from, "linear and cosine are supported, and sqrt with a decay_ratio");
    }
    draft_.set(root + "kind", part ? "wsd" : decay, from);
    field(root + "warmup", "lr_scheduler.warmup_steps", "200");
    field(root + "min", least, "0");
    if (!part) return;
    draft_.set(root + "tail", decay, from);
    draft_.set(root + "decay",
               to_text(std::llround(tree_.number("lr_scheduler.decay_ratio", 0) *
                                    static_cast<double>(tree_.whole("training.steps", 10000)))),
               tree_.origin("lr_scheduler.decay_ratio"));
  }

  void training() {
    field("data.sequence", "training.seq_len", "2048");
    field("train.steps", "training.steps", "10000");
    field("train.clip", "training.max_norm", "1.0");
    batch();
    const std::string type = tree_.text("training.mixed_precision_param", "bfloat16");
    const Origin from = tree_.origin("training.mixed_precision_param", "bfloat16");
    if (type == "bfloat16" || type == "float32") {
      draft_.set("train.precision", type == "bfloat16" ? "bf16" : "fp32", from);
    } else {
      draft_.refuse(from, "bfloat16 and float32 are supported");
    }
    if (tree_.text("training.dtype", "float32") != "float32") {
      draft_.refuse(tree_.origin("training.dtype"), "master weights are always f32");
    } else if (tree_.given("training.dtype")) {
      draft_.ignore(tree_.origin("training.dtype"), "master weights are always f32");
    }
    for (const std::string root : {"training.", "debug."}) {
      field_if_given("train.seed", root + "seed");
      field_if_given("run.deterministic", root + "deterministic");
    }
    std::string set = tree_.origin("training.dataset", "c4_test").text;
    if (tree_.given("training.dataset_path")) {
      set += ", " + tree_.origin("training.dataset_path").text;
    }
    draft_.need("data.train", set +
                                  ": make token files of it with `troupe data build`, and name "
                                  "them here");
  }

  // Theirs is of a data-parallel rank, ours of all.
  void batch() {
    const int64_t local = tree_.whole("training.local_batch_size", 8);
    const Origin from = tree_.origin("training.local_batch_size", "8");
    const int64_t replicas = axis("data_parallel_replicate_degree"),
                  shard = tree_.whole("parallelism.data_parallel_shard_degree", -1);
    if (tree_.whole("training.global_batch_size", -1) > 0) {
      field("train.global_batch", "training.global_batch_size", "");
    } else if (shard > 0) {
      Origin all = from;
      all.text += " on each of " + to_text(replicas * shard) + " data-parallel ranks";
      draft_.set("train.global_batch", to_text(local * replicas * shard), all);
    } else {
      draft_.need("train.global_batch",
                  from.text +
                      " sequences on each data-parallel rank, and data_parallel_shard_"
                      "degree -1 leaves open how many there are");
    }
    const bool stages = axis("pipeline_parallel_degree") > 1;
    const std::string micro = "parallelism.pipeline_parallel_microbatch_size";
    if (stages) return field("train.micro_batch", micro, "1");
    draft_.set("train.micro_batch", to_text(local), from);
    if (tree_.given(micro)) draft_.ignore(tree_.origin(micro), "there is one stage");
  }

  void parallel() {
    const std::string root = "parallelism.";
    for (const auto& [theirs, ours] : {std::pair{"tensor_parallel_degree", "tensor"},
                                       {"context_parallel_degree", "context"},
                                       {"expert_parallel_degree", "expert"},
                                       {"expert_tensor_parallel_degree", "expert_tensor"}}) {
      field_if_given(std::string("parallel.") + ours, root + theirs);
    }
    dealing(root + "context_parallel_load_balancer");
    only(root + "enable_sequence_parallel", true,
         "ranks that share matrices always share the tokens between the products: whole tokens on "
         "each would cost as many times the activations");
    const std::string loss = root + "disable_loss_parallel";
    if (tree_.given(loss) && tree_.yes(loss, false)) {
      draft_.set("parallel.split_vocab", "off", tree_.origin(loss));
    } else if (tree_.given(loss)) {
      draft_.ignore(tree_.origin(loss), "parallel.split_vocab cuts tables where they are large");
    }
    sharding();
    pipeline();
  }

  // shard: full over DP-shard x CP ranks, which is what ours counts.
  void sharding() {
    const std::string r = "parallelism.data_parallel_replicate_degree",
                      s = "parallelism.data_parallel_shard_degree",
                      reshard = "parallelism.fsdp_reshard_after_forward";
    const int64_t replicas = tree_.whole(r, 1), shard = tree_.whole(s, -1);
    const Origin from = tree_.origin(s, "-1"), copies = tree_.origin(r, "1");
    const bool full = shard != 1;
    draft_.set("parallel.shard", full ? "full" : "none", from);
    if (shard > 0) {
      Origin both = from;
      both.text += ", " + copies.text;
      draft_.set("parallel.data", to_text(replicas * shard), both);
    }
    if (full && replicas > 1 && shard > 0) {
      draft_.set("parallel.shard_ranks", to_text(shard * axis("context_parallel_degree")), copies);
    } else if (full && replicas > 1) {
      draft_.need("parallel.shard_ranks",
                  copies.text + ": the ranks of a stage, over tensor ranks and over these");
    } else if (tree_.given(r)) {
      draft_.ignore(copies, full ? "one copy of the state is what shard: full has"
                                 : "as many as the ranks give");
    }
    if (!full) {
      if (tree_.given(reshard)) draft_.ignore(tree_.origin(reshard), "no weights are sharded");
      return;
    }
    const std::string policy = tree_.text(reshard, "default");
    const bool stages = axis("pipeline_parallel_degree") > 1;
    if (policy != "default" && policy != "always" && policy != "never") {
      return draft_.refuse(tree_.origin(reshard), "default, always and never are supported");
    }
    const bool keeps = policy == "never" || (policy == "default" && stages);
    draft_.set("parallel.reshard", keeps ? "false" : "true", tree_.origin(reshard, "default"));
  }

  void pipeline() {
    const std::string root = "parallelism.pipeline_parallel_";
    const int64_t ranks = axis("pipeline_parallel_degree");
    const std::array<std::string, 7> keys = {root + "schedule",
                                             root + "schedule_csv",
                                             root + "layers_per_stage",
                                             root + "first_stage_less_layers",
                                             root + "last_stage_less_layers",
                                             root + "split_points",
                                             "parallelism.module_fqns_per_model_part"};
    field_if_given("parallel.pipeline", root + "degree");
    if (ranks <= 1) {
      for (const std::string& key : keys) {
        if (tree_.given(key)) {
          draft_.ignore(tree_.origin(key), "one pipeline rank leaves it nothing to do");
        }
      }
      return;
    }
    order(root + "schedule");
    if (!tree_.text(root + "schedule_csv").empty()) {
      draft_.refuse(tree_.origin(root + "schedule_csv"), "an order from a file is not read");
    }
    stages(root, ranks);
  }

  // Which tokens of a row a context rank has: no result depends on it.
  void dealing(const std::string& key) {
    if (!tree_.given(key)) return;
    const std::string name = tree_.text(key);
    if (tree_.whole("parallelism.context_parallel_degree", 1) <= 1) {
      draft_.ignore(tree_.origin(key), "one context rank leaves it nothing to do");
    } else if (name == "headtail" || name == "ptrr") {
      draft_.set("parallel.context_dealing", name == "ptrr" ? "documents" : "zigzag",
                 tree_.origin(key));
    } else {
      draft_.ignore(tree_.origin(key), "rows are dealt from both ends; no result depends on it");
    }
  }

  void order(const std::string& key) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOrders = {
        {{"gpipe", "gpipe"},
         {"1f1b", "1f1b"},
         {"interleaved1f1b", "interleaved"},
         {"zbvzerobubble", "zbv"},
         {"interleavedzerobubble", "zb1p"},
         {"loopedbfs", "gpipe"},
         {"dualpipev", "dualpipev"}}};
    std::string name = tree_.text(key, "1F1B");
    const Origin from = tree_.origin(key, "1F1B");
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto* const found =
        std::ranges::find(kOrders, name, &std::pair<std::string_view, std::string_view>::first);
    if (found == kOrders.end()) {
      return draft_.refuse(from, "gpipe, 1f1b, interleaved, zb1p and zbv are supported");
    }
    draft_.set("parallel.schedule", std::string(found->second), from);
    if (name == "interleavedzerobubble") {
      draft_.note(from.text + ": zb1p has one stage a rank; with several, interleaved idles less");
    }
  }

  void stages(const std::string& root, int64_t ranks) {
    const std::string parts = "parallelism.module_fqns_per_model_part",
                      points = root + "split_points", each = root + "layers_per_stage",
                      first = root + "first_stage_less_layers",
                      last = root + "last_stage_less_layers";
    std::string text;
    const std::string* from = nullptr;
    if (tree_.given(parts)) {
      text = stages_of_modules(modules(parts), layers_);
      from = &parts;
    } else if (tree_.given(points) && layers_ > 0) {
      text = stages_of_points(tree_.list(points), layers_);
      from = &points;
    } else if (tree_.given(each) || tree_.given(first) || tree_.given(last)) {
      const int64_t in = tree_.whole(first, 1), out = tree_.whole(last, 1);
      const int64_t blocks = layers_ + in + out, a_stage = tree_.whole(each, 0);
      const int64_t count =
          a_stage > 0 ? (blocks + a_stage - 1) / a_stage : ranks * default_virtual(root);
      if (layers_ > 0) text = stages_of_weights(layers_, count, in, out);
      from = tree_.given(each) ? &each : tree_.given(first) ? &first : &last;
    }
    for (const std::string& key : {parts, points, each, first, last}) {
      if (from == nullptr || !tree_.given(key) || key == *from) continue;
      draft_.ignore(tree_.origin(key), "parallel.stages has it");
    }
    if (from == nullptr) return;
    if (!text.empty()) return draft_.set_text("parallel.stages", text, tree_.origin(*from));
    if (layers_ == 0) {
      return draft_.need("parallel.stages", tree_.origin(*from).text +
                                                ": the model's layers are not known; "
                                                "\"Ett|ttL\" are four on two stages");
    }
    draft_.refuse(tree_.origin(*from), "no whole stages with an embedding and a head come of it");
  }

  // Two stages a rank for orders that have several.
  int64_t default_virtual(const std::string& root) {
    std::string name = tree_.text(root + "schedule", "1F1B");
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name == "1f1b" || name == "gpipe" ? 1 : 2;
  }

  std::vector<std::vector<std::string>> modules(const std::string& path) const {
    std::vector<std::vector<std::string>> out;
    const Yaml* at = &root_;
    for (size_t begin = 0; at != nullptr && begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      const Yaml* inner = nullptr;
      for (const Yaml::Field& f : at->fields) {
        if (f.name == name) inner = &f.value;
      }
      at = inner;
      begin = end + 1;
    }
    if (at == nullptr) return out;
    for (const Yaml& part : at->items) {
      std::vector<std::string>& stage = out.emplace_back();
      for (const Yaml& name : part.items) stage.push_back(name.text);
    }
    return out;
  }

  void checkpoint() {
    const std::string folder = tree_.text("checkpoint.folder", "checkpoint");
    std::string root = tree_.text("job.dump_folder", "./outputs");
    if (root.find("://") != std::string::npos) {
      draft_.refuse(tree_.origin("job.dump_folder"), "a run's folder is on a disk of this machine");
    } else {
      while (root.size() > 1 && root.ends_with('/')) root.pop_back();
      Origin from = tree_.origin("job.dump_folder", "./outputs");
      from.text += ", " + tree_.origin("checkpoint.folder", "checkpoint").text;
      draft_.set_text("checkpoint.dir", root + '/' + folder, from);
    }
    std::string on = "checkpoint.enable";
    if (tree_.given("checkpoint.enable_checkpoint")) on += "_checkpoint";
    const bool saves = tree_.yes(on, false);
    if (tree_.given(on) && saves) draft_.ignore(tree_.origin(on), "checkpoints are always made");
    if (!saves) {
      draft_.note(tree_.origin(on, "false").text +
                  ": a run here saves its end, and every 30 minutes unless checkpoint.every is 0s");
    }
    if (saves) {
      field("checkpoint.every_steps", "checkpoint.interval", "500");
      field("checkpoint.keep", "checkpoint.keep_latest_k", "10");
    }
    for (const char* key : {"checkpoint.interval", "checkpoint.keep_latest_k"}) {
      if (!saves && tree_.given(key))
        draft_.ignore(tree_.origin(key), "no checkpoints are asked for");
    }
    const std::string mode = tree_.text("checkpoint.async_mode", "disabled");
    draft_.set("checkpoint.background", mode == "disabled" ? "false" : "true",
               tree_.origin("checkpoint.async_mode", "disabled"));
    if (tree_.given("checkpoint.initial_load_path")) {
      draft_.set_text("checkpoint.init_from", tree_.text("checkpoint.initial_load_path"),
                      tree_.origin("checkpoint.initial_load_path"));
    }
    if (tree_.whole("checkpoint.load_step", -1) >= 0) {
      draft_.refuse(tree_.origin("checkpoint.load_step"), "name the step's folder in init_from");
    } else if (tree_.given("checkpoint.load_step")) {
      draft_.ignore(tree_.origin("checkpoint.load_step"), "the newest, as always");
    }
  }

  void recompute() {
    const std::string root = "activation_checkpoint.",
                      mode = tree_.text(root + "mode", "selective");
    const Origin from = tree_.origin(root + "mode", "selective");
    const std::string option = tree_.text(root + "selective_ac_option", "2");
    const bool counts =
        !option.empty() && option.find_first_not_of("0123456789") == std::string::npos;
    if (mode == "none" || mode == "full") {
      draft_.set_text("train.recompute", mode == "full" ? "1" : "none", from);
    } else if (mode == "selective" && counts) {
      Origin both = from;
      both.text += ", selective_ac_option " + option;
      draft_.set_text("train.recompute", option, both);
      return;
    } else {
      draft_.ignore(from, "memory only: train.recompute has whole blocks");
    }
    if (tree_.given(root + "selective_ac_option")) {
      draft_.ignore(tree_.origin(root + "selective_ac_option"),
                    "memory only: train.recompute has whole blocks");
    }
  }

  void observation() {
    field("log.every", "metrics.log_freq", "10");
    field_if_given("log.tensorboard", "metrics.enable_tensorboard");
    if (tree_.yes("metrics.enable_wandb", false)) {
      draft_.beside({tree_.origin("metrics.enable_wandb")}, "tools/follow_log.py RUN --to wandb");
    } else if (tree_.given("metrics.enable_wandb")) {
      draft_.ignore(tree_.origin("metrics.enable_wandb"), "off");
    }
    const bool valid = tree_.yes("validation.enable", false);
    for (const char* key : {"validation.enable", "validation.freq", "validation.steps",
                            "validation.local_batch_size"}) {
      if (tree_.given(key) && !valid)
        draft_.ignore(tree_.origin(key), "no validation is asked for");
    }
    if (!valid) return;
    draft_.need("data.valid", tree_.origin("validation.dataset", "c4_validation").text +
                                  ": make token files of it with `troupe data build`");
    field("eval.every", "validation.freq", "10");
    const int64_t steps = tree_.whole("validation.steps", -1);
    draft_.set("eval.batches", to_text(std::max<int64_t>(steps, 0)),
               tree_.origin("validation.steps", "-1"));
    field("eval.batch", "validation.local_batch_size", "8");
  }

  void switches() {
    const std::string wait = "comm.train_timeout_seconds", start = "comm.init_timeout_seconds";
    if (tree_.given(wait)) {
      draft_.set("run.hang_timeout", tree_.text(wait) + "s", tree_.origin(wait));
    }
    if (tree_.given(start)) {
      draft_.set("run.start_timeout", tree_.text(start) + "s", tree_.origin(start));
    }
    const std::string forced = "debug.moe_force_load_balance";
    if (tree_.given(forced)) {
      draft_.set("model.moe.router.force", tree_.yes(forced, false) ? "uniform" : "none",
                 tree_.origin(forced));
    }
    const bool tolerant = tree_.yes("fault_tolerance.enable", false);
    for (const std::string& name : tree_.names("fault_tolerance")) {
      const std::string key = "fault_tolerance." + name;
      if (!tree_.given(key)) continue;
      if (!tolerant) {
        draft_.ignore(tree_.origin(key), "it is off");
      } else if (name == "enable") {
        draft_.refuse(tree_.origin(key),
                      "replicas that come and go, or step apart, are not supported; `troupe launch "
                      "--max-restarts` goes on after a fault");
      } else {
        draft_.ignore(tree_.origin(key), "of fault_tolerance.enable, which is refused");
      }
    }
  }

  Draft& draft_;
  const Yaml& root_;
  Tree tree_;
  int64_t layers_ = 0;  // 0: not known
};

}  // namespace

void convert_torchtitan(const std::string& text, const std::string& file, Draft& draft) {
  const Yaml root = parse_toml(text, file);
  Torchtitan(root, draft).convert();
}

}  // namespace troupe
