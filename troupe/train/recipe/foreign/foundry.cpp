#include "troupe/train/recipe/foreign/foundry.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "troupe/core/text/shell_word.h"
#include "troupe/train/recipe/foreign/mcli.h"
#include "troupe/train/recipe/foreign/megablocks.h"
#include "troupe/train/recipe/foreign/tree.h"

namespace troupe {
namespace {

constexpr auto kField = TreeRule::kField;
constexpr auto kIgnored = TreeRule::kIgnored;
constexpr auto kRefused = TreeRule::kRefused;
constexpr std::string_view kSpeed = "speed only";
constexpr std::string_view kMemory = "memory only";
constexpr std::string_view kShards =
    "what ranks share of the state is parallel.shard; no result depends on it";
constexpr std::string_view kExperts =
    "how many ranks share the experts is parallel.expert; no result depends on it";
constexpr std::string_view kTensor =
    "parallel.tensor says how many ranks share a matrix; which are cut follows from the model";
constexpr std::string_view kWhole = "a checkpoint is always whole, whatever the layout";
constexpr std::string_view kSums = "gradients and losses are always summed in f32 here";
constexpr std::string_view kLogged = "log.jsonl always has it";
constexpr std::string_view kTerminal = "what a terminal shows, not what is computed";
constexpr std::string_view kLoader = "samples are a function of their number: nothing to set";
constexpr std::string_view kEval = "evaluation reads data.valid in order, once: nothing to set";
constexpr std::string_view kTasks = "use `troupe eval --tasks`";
constexpr std::string_view kLabel = "a label, which nothing is computed from";
constexpr std::string_view kTokenizer = "the tokenizer's files say it";
constexpr std::string_view kAdapters = "adapters are of experts alone: model.moe.lora";
constexpr std::string_view kFiles = "make token files of it first: `troupe data build`";

constexpr TreeRule kRules[] = {
    {"variables.*", kIgnored, "used where it is named"},
    {"model.d_model", kField, "model.width"},
    {"model.n_layers", kField, "model.layers"},
    {"model.n_heads", kField, "model.heads"},
    {"model.head_dim", kField, "model.head_dim"},
    {"model.vocab_size", kField, "model.vocab"},
    {"model.expansion_ratio", kIgnored, "ffn_hidden_size says it"},
    {"model.attn_config.kv_n_heads", kField, "model.kv_heads"},
    {"model.attn_config.rope_theta", kField, "model.rope.theta"},
    {"model.attn_config.attn_impl", kIgnored, kSpeed},
    {"model.attn_config.fused_qkv", kIgnored, kSpeed},
    {"model.attn_config.rope_impl", kIgnored, kSpeed},
    {"model.attn_config.alibi_bias_max", kIgnored, "of alibi alone, which is off"},
    {"model.attn_config.softmax_scale", kRefused, "the scale is 1 / sqrt(head_dim)"},
    {"model.attn_config.prefix_lm", kRefused, "attention is causal"},
    {"model.init_device", kIgnored, "where initial values are drawn; no result depends on it"},
    {"model.use_pretrained_flash_attention", kIgnored, kSpeed},
    {"model.use_flash_attention_2", kIgnored, kSpeed},
    {"model.attn_implementation", kIgnored, kSpeed},
    {"model.use_auth_token", kIgnored, "weights are read from a folder"},
    {"model.trust_remote_code", kIgnored, "no code of a model's folder is run"},
    {"model.config_overrides.*", kRefused, "set the fields of model"},
    {"model.use_cache", kIgnored, "training keeps no cache"},
    {"model.use_pad_tok_in_ffn", kIgnored, "samples have no padding here"},
    {"model.use_train_metrics", kIgnored, kLogged},
    {"model.fuse_norm_attn_norm", kIgnored, "how modules are grouped; they compute the same"},
    {"model.activation_checkpointing_target", kIgnored,
     "memory only: train.recompute has whole blocks"},
    {"model.verbose", kIgnored, kTerminal},
    {"model.fc_type", kIgnored, kSpeed},
    {"model.fc_type.*", kIgnored, kSpeed},
    {"model.loss_fn", kIgnored, kSpeed},
    {"model.init_config.verbose", kIgnored, kTerminal},
    {"model.logit_scale", kRefused, "logits are not scaled"},
    {"model.ffn_config.moe_lbl_in_fp32", kIgnored, kSums},
    {"model.ffn_config.moe_world_size", kField, "parallel.expert"},
    {"model.ffn_config.moe_expert_model_parallelism", kIgnored, kExperts},
    {"model.ffn_config.moe_weight_parallelism", kIgnored, kShards},
    {"model.ffn_config.memory_optimized_mlp", kIgnored, "memory only: model.moe.recompute"},
    {"model.ffn_config.mlp_impl", kIgnored, "speed only: model.moe.impl"},
    {"model.ffn_config.fc_type", kIgnored, kSpeed},
    {"model.ffn_config.lbl_process_group", kIgnored,
     "the public version drops it: the loss is of each rank's tokens there"},
    {"model.ffn_config.fp16", kIgnored, "train.precision says it"},
    {"model.ffn_config.bf16", kIgnored, "train.precision says it"},
    {"tp_config.tensor_parallel_degree", kField, "parallel.tensor"},
    {"tp_config.*", kIgnored, kTensor},
    {"parallelism_config.tp.tensor_parallel_degree", kField, "parallel.tensor"},
    {"parallelism_config.tp.*", kIgnored, kTensor},
    {"cuda_load_lazy", kIgnored, kSpeed},
    {"spin_dataloaders", kIgnored, kLoader},
    {"save_overwrite", kIgnored, "nothing published is ever overwritten"},
    {"save_filename", kIgnored, "a step's folder has its number"},
    {"save_latest_filename", kIgnored, "a step's folder has its number"},
    {"save_ignore_keys", kRefused, "a checkpoint is always whole"},
    {"load_ignore_keys", kRefused, "name them in checkpoint.waive_missing"},
    {"load_strict_model_weights", kIgnored, "every tensor is accounted for"},
    {"load_weights_only", kIgnored, "of load_path alone, which is not given"},
    {"console_log_interval.*", kIgnored, kTerminal},
    {"log_to_console", kIgnored, kTerminal},
    {"progress_bar", kIgnored, kTerminal},
    {"log_config", kIgnored, "the run's folder always has recipe.yaml"},
    {"python_log_level", kIgnored, kTerminal},
    {"metadata.*", kIgnored, kLabel},
    {"flatten_metadata", kIgnored, kLabel},
    {"profiler.*", kIgnored, "no result depends on it: profile has steps of one's own"},
    {"callbacks.speed_monitor.*", kIgnored, kLogged},
    {"callbacks.lr_monitor.*", kIgnored, kLogged},
    {"callbacks.memory_monitor.*", kIgnored, kLogged},
    {"callbacks.mbmoe_tok_per_expert.*", kIgnored, kLogged},
    {"callbacks.runtime_estimator.*", kIgnored, "lines always say how long the run still takes"},
    {"callbacks.hf_checkpointer.*", kIgnored,
     "`troupe export` makes such a folder of any checkpoint"},
    {"callbacks.scheduled_gc.*", kIgnored, kSpeed},
    {"callbacks.nan_monitor.*", kIgnored, "always checked here"},
    {"callbacks.optimizer_monitor.*", kIgnored, "log.jsonl has the gradient's norm, no more"},
    {"callbacks.system_metrics_monitor.*", kIgnored, "log.jsonl has memory, no more"},
    {"callbacks.env_logging.*", kIgnored, "the run's folder always has env.json"},
    {"loggers.tensorboard.*", kIgnored, "log.tensorboard, which is on"},
    {"loggers", kIgnored, "none is named"},
    {"train_loader.name", kIgnored, kLoader},
    {"train_loader.drop_last", kIgnored, kLoader},
    {"train_loader.num_workers", kIgnored, kSpeed},
    {"train_loader.prefetch_factor", kIgnored, kSpeed},
    {"train_loader.pin_memory", kIgnored, kSpeed},
    {"train_loader.persistent_workers", kIgnored, kSpeed},
    {"train_loader.timeout", kIgnored, kSpeed},
    {"train_loader.dataset.shuffle_block_size", kIgnored, kLoader},
    {"train_loader.dataset.shuffle_algo", kIgnored, kLoader},
    {"train_loader.dataset.num_canonical_nodes", kIgnored, kLoader},
    {"train_loader.dataset.predownload", kIgnored, kSpeed},
    {"train_loader.dataset.cache_limit", kIgnored, kMemory},
    {"train_loader.dataset.download_retry", kIgnored, kSpeed},
    {"train_loader.dataset.download_timeout", kIgnored, kSpeed},
    {"train_loader.dataset.keep_zip", kIgnored, kMemory},
    {"train_loader.dataset.packing_ratio", kIgnored, "samples are always packed here"},
    {"train_loader.dataset.allow_pad_trimming", kIgnored, "samples have no padding here"},
    {"train_loader.dataset.decoder_only_format", kIgnored, "every model here is a decoder"},
    {"train_loader.dataset.split", kIgnored, kFiles},
    {"eval_loader.*", kIgnored, kEval},
    {"eval_loaders.*", kRefused, "name the files in data.valid"},
    {"icl_seq_len", kIgnored, "of icl_tasks alone, which are not of the training"},
    {"icl_subset_num_batches", kIgnored, "of icl_tasks alone, which are not of the training"},
    {"icl_tasks.*", kRefused, kTasks},
    {"icl_tasks_str", kRefused, kTasks},
    {"eval_gauntlet.*", kRefused, kTasks},
    {"peft_config.*", kRefused, kAdapters},
    {"model.peft_config.*", kRefused, kAdapters},
    {"tokenizer.kwargs.*", kIgnored, kTokenizer},
    {"max_split_size_mb", kIgnored, kMemory},
    {"expandable_segments", kIgnored, kMemory},
    {"compile_config.*", kIgnored, kSpeed},
};

// Under fsdp_config, and under parallelism_config.fsdp.
constexpr TreeRule kFsdpRules[] = {
    {"process_group", kIgnored, kShards},
    {"mixed_precision", kIgnored,
     "weights are kept and gradients summed in f32 here; parallel.sum: bf16 sums as PURE does"},
    {"keep_low_precision_grads", kIgnored, kSums},
    {"activation_checkpointing_reentrant", kIgnored, kSpeed},
    {"activation_cpu_offload", kIgnored, kMemory},
    {"cpu_offload", kIgnored, kMemory},
    {"backward_prefetch", kIgnored, kSpeed},
    {"backward_prefetch_limit", kIgnored, kSpeed},
    {"forward_prefetch", kIgnored, kSpeed},
    {"forward_prefetch_limit", kIgnored, kSpeed},
    {"limit_all_gathers", kIgnored, kSpeed},
    {"flatten_parameters", kIgnored, kSpeed},
    {"min_params", kIgnored, kShards},
    {"use_orig_params", kIgnored, kShards},
    {"sync_module_states", kIgnored, "every rank draws the same initial values"},
    {"state_dict_type", kIgnored, kWhole},
    {"load_monolith_rank0_only", kIgnored, kWhole},
    {"load_fsdp_monolith_rank0_only", kIgnored, kWhole},
    {"sharded_ckpt_prefix_dir", kIgnored, kWhole},
    {"verbose", kIgnored, kTerminal},
};

class Foundry {
 public:
  Foundry(const Yaml& root, Draft& draft) : draft_(draft), tree_(root, draft) {}

  void convert() {
    const std::string name = tree_.text("model.name", "mpt_causal_lm");
    if (name == "hf_causal_lm") {
      published_model();
    } else if (name == "mpt_causal_lm") {
      model();
      ffn();
    } else {
      return draft_.refuse(tree_.origin("model.name"),
                           "mpt_causal_lm and hf_causal_lm are supported");
    }
    length();
    optimizer();
    scheduler();
    rest();
    data();
    checkpoint();
    evaluation();
    tree_.settle(kRules);
    draft_.need("train.optimizer.lr", "optimizer.lr is not given");
    draft_.need("train.global_batch", "global_train_batch_size is not given");
    if (!tree_.given("train_loader.dataset.hf_name")) {
      draft_.need("data.train", "train_loader.dataset names no data");
    }
    draft_.need("checkpoint.dir", "neither save_folder nor run_name is given: the run's folder");
  }

 private:
  void field(const std::string& path, const std::string& name, const std::string& otherwise) {
    draft_.set(path, tree_.text(name, otherwise), tree_.origin(name, otherwise));
  }
  // A key with a default there that is not ours.
  void with_default(const std::string& path, const std::string& name,
                    const std::string& otherwise) {
    if (!tree_.given(name)) draft_.set(path, otherwise, tree_.origin(name, otherwise));
  }

  // A model of Hugging Face's hub: the preset whose name is in its own, and its weights by import.
  void published_model() {
    const std::string key = "model.pretrained_model_name_or_path", name = tree_.text(key);
    const std::string folder = name.substr(name.find_last_of('/') + 1);
    std::string lower = folder;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::string preset;
    for (const std::string_view one : ModelConfig::presets()) {
      if (one.size() > preset.size() && lower.find(one) != std::string::npos) preset = one;
    }
    if (preset.empty()) {
      draft_.refuse(tree_.origin(key), "is none of the models of `troupe inspect model`");
    } else {
      draft_.set("model.preset", preset, tree_.origin(key));
    }
    if (!tree_.yes("model.pretrained", true)) {
      return draft_.ignore(tree_.origin("model.pretrained"), "so it is without init_from");
    }
    draft_.need("checkpoint.init_from", "download " + name + ", `troupe import " + folder +
                                            " runs/" + folder + "`: runs/" + folder +
                                            "/step-000000");
  }

  int64_t sequence() { return tree_.whole("max_seq_len", tree_.whole("model.max_seq_len", 2048)); }

  void model() {
    with_default("model.width", "model.d_model", "2048");
    with_default("model.heads", "model.n_heads", "16");
    with_default("model.layers", "model.n_layers", "24");
    with_default("model.vocab", "model.vocab_size", "50368");
    for (const char* name :
         {"model.d_model", "model.n_heads", "model.n_layers", "model.vocab_size"}) {
      if (!tree_.given(name)) continue;
      const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules),
                                            [&](const TreeRule& r) { return r.path == name; });
      field(std::string(rule->text), name, "");
    }
    const std::string positions = tree_.text("model.max_seq_len", to_text(sequence()));
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
    field("model.tie_embeddings", "model.tie_word_embeddings", "true");
    field("model.dropout", "model.resid_pdrop", "0");
    if (tree_.number("model.emb_pdrop", 0) != tree_.number("model.resid_pdrop", 0)) {
      draft_.refuse(tree_.origin("model.emb_pdrop", "0"),
                    "the embedding has resid_pdrop here: model.dropout");
    } else if (tree_.given("model.emb_pdrop")) {
      draft_.set("model.dropout", tree_.text("model.emb_pdrop"), tree_.origin("model.emb_pdrop"));
    }
    attention();
    initial();
  }

  void attention() {
    const std::string root = "model.attn_config.";
    field("model.attn_dropout", root + "attn_pdrop", "0");
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
    if (tree_.given(root + "clip_qkv")) field("model.clip_qkv", root + "clip_qkv", "");
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
      field("model.init_std", "model.init_config.init_std", "0.02");
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

  std::string ffn_width() {
    if (tree_.given("model.ffn_config.ffn_hidden_size")) {
      return tree_.text("model.ffn_config.ffn_hidden_size");
    }
    const double ratio = tree_.number("model.expansion_ratio", 4);
    return number_text(ratio * static_cast<double>(tree_.whole("model.d_model", 2048)));
  }

  void ffn() {
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

  // A time of theirs, "4800ba", as a span of ours; empty, and refused, where there is none.
  std::string span(const std::string& name) {
    const std::string text = tree_.text(name);
    const auto unit = text.find_last_not_of("abcdefghijklmnopqrstuvwxyz") + 1;
    std::string number = text.substr(0, unit);
    const std::string suffix = unit == text.size() ? "ep" : text.substr(unit);
    double value = 0;
    std::erase(number, '_');
    if (from_text(number, value)) {
      std::string whole = to_text(std::llround(value));
      if (suffix == "ba") return whole;
      if (suffix == "tok") return whole + " tokens";
      if (suffix == "sp") return whole + " samples";
      if (suffix == "dur") return to_text(std::llround(100 * value)) + '%';
      if (suffix == "sec") return whole + "s";
    }
    draft_.refuse(tree_.origin(name),
                  suffix == "ep" ? "an epoch is not a length here: give it in ba, tok or sp"
                                 : "a time in ba, tok, sp or dur is expected");
    return {};
  }

  void length() {
    draft_.set("data.sequence", to_text(sequence()), tree_.origin("max_seq_len", "2048"));
    if (tree_.given("global_train_batch_size")) {
      field("train.global_batch", "global_train_batch_size", "");
    }
    const std::string micro = tree_.text("device_train_microbatch_size", "auto");
    if (micro == "auto") {
      draft_.ignore(tree_.origin("device_train_microbatch_size", "auto"),
                    "train.micro_batch is chosen, and printed");
    } else {
      field("train.micro_batch", "device_train_microbatch_size", "");
    }
    if (!tree_.given("max_duration")) {
      return draft_.need("train.tokens", "max_duration is not given: this, or train.steps");
    }
    if (in_epochs("max_duration")) {
      const Origin epochs = tree_.origin("max_duration");
      return draft_.need("train.tokens", epochs.text +
                                             ": so many times the tokens that `troupe "
                                             "inspect` counts in the files");
    }
    const std::string all = span("max_duration");
    const Origin from = tree_.origin("max_duration");
    int64_t samples = 0;
    if (all.ends_with(" tokens")) {
      draft_.set("train.tokens", all.substr(0, all.find(' ')), from);
    } else if (all.ends_with(" samples") && from_text(all.substr(0, all.find(' ')), samples)) {
      draft_.set("train.tokens", to_text(samples * sequence()), from);
    } else if (!all.empty() && all.find_first_not_of("0123456789") == std::string::npos) {
      draft_.set("train.steps", all, from);
    } else if (!all.empty()) {
      draft_.refuse(from, "give the length in ba, tok or sp");
    }
  }

  void optimizer() {
    const std::string name = tree_.text("optimizer.name", "decoupled_adamw");
    const Origin from = tree_.origin("optimizer.name", "decoupled_adamw");
    const bool lion = name == "decoupled_lionw", decoupled = name.starts_with("decoupled_");
    const std::string root = "train.optimizer.";
    if (!lion && name != "decoupled_adamw" && name != "adamw" && name != "adam") {
      return draft_.refuse(from, "decoupled_adamw, adamw and decoupled_lionw are supported");
    }
    draft_.set(root + "kind", lion ? "lion" : "adamw", from);
    const double lr = tree_.number("optimizer.lr", 0);
    if (tree_.given("optimizer.lr")) field(root + "lr", "optimizer.lr", "");
    const auto betas = tree_.list("optimizer.betas");
    draft_.set(root + "betas",
               betas.size() == 2 ? '[' + betas[0] + ", " + betas[1] + ']'
                                 : std::string(lion ? "[0.9, 0.99]" : "[0.9, 0.95]"),
               tree_.origin("optimizer.betas", lion ? "0.9, 0.99" : "0.9, 0.95"));
    if (!lion) field(root + "eps", "optimizer.eps", "1e-8");
    const std::string by_default = lion ? "0" : decoupled ? "1e-5" : "0.01";
    double decay = 0;
    from_text(by_default, decay);
    decay = tree_.number("optimizer.weight_decay", decay);
    Origin decay_from = tree_.origin("optimizer.weight_decay", by_default);
    if (decoupled && lr > 0) {
      // Theirs takes w lr / lr0 off a weight at each step, ours w lr.
      decay /= lr;
      decay_from.text += ", over lr";
    }
    draft_.set(root + "weight_decay", number_text(decay), decay_from);
  }

  void scheduler() {
    const std::string name = tree_.text("scheduler.name", "cosine_with_warmup");
    const Origin from = tree_.origin("scheduler.name", "cosine_with_warmup");
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKinds = {
        {{"cosine_with_warmup", "cosine"},
         {"linear_decay_with_warmup", "linear"},
         {"inv_sqrt_with_warmup", "inverse_sqrt"},
         {"constant_with_warmup", "constant"}}};
    const auto* const found = std::find_if(kKinds.begin(), kKinds.end(),
                                           [&](const auto& kind) { return kind.first == name; });
    if (found == kKinds.end()) {
      return draft_.refuse(from,
                           "cosine_with_warmup, linear_decay_with_warmup, "
                           "inv_sqrt_with_warmup and constant_with_warmup are supported");
    }
    const std::string root = "train.schedule.";
    draft_.set(root + "kind", std::string(found->second), from);
    draft_.set(root + "megatron", "true", from);
    if (tree_.given("scheduler.t_warmup")) {
      const std::string warmup = span("scheduler.t_warmup");
      if (!warmup.empty()) draft_.set(root + "warmup", warmup, tree_.origin("scheduler.t_warmup"));
    }
    if (found->second == "constant") return;
    if (tree_.text("scheduler.t_max", "1dur") != "1dur") {
      const std::string end = span("scheduler.t_max");
      if (!end.empty()) draft_.set(root + "end", end, tree_.origin("scheduler.t_max"));
    }
    field(root + "min", "scheduler.alpha_f", "0");
    for (const char* key : {"scheduler.t_scale", "scheduler.t_cooldown", "scheduler.alpha_f_decay",
                            "scheduler.alpha_f_cooldown"}) {
      if (tree_.given(key)) draft_.refuse(tree_.origin(key), "has no counterpart: kind wsd has");
    }
  }

  void rest() {
    const std::string precision = tree_.text("precision", "amp_bf16");
    const Origin from = tree_.origin("precision", "amp_bf16");
    if (precision == "amp_bf16" || precision == "amp_fp16" || precision == "fp32") {
      draft_.set("train.precision", precision.substr(precision.find('_') + 1), from);
    } else {
      draft_.refuse(from, "amp_bf16, amp_fp16 and fp32 are supported");
    }
    const std::string clip = "algorithms.gradient_clipping.clipping_threshold";
    const std::string clip_type = tree_.text("algorithms.gradient_clipping.clipping_type", "norm");
    if (clip_type != "norm") {
      draft_.refuse(tree_.origin("algorithms.gradient_clipping.clipping_type"),
                    "only the global norm is clipped here");
    }
    draft_.set("train.clip", tree_.text(clip, "0"), tree_.origin(clip, "0"));
    const std::string seed = tree_.given("seed") ? "seed" : "global_seed";
    field("train.seed", seed, "17");
    if (tree_.whole("tp_config.tensor_parallel_degree", 1) > 1 ||
        tree_.whole("parallelism_config.tp.tensor_parallel_degree", 1) > 1) {
      tensor();
    }
    sharding("fsdp_config");
    sharding("parallelism_config.fsdp");
    if (tree_.given("dist_timeout")) {
      draft_.set("run.hang_timeout", tree_.text("dist_timeout") + "s",
                 tree_.origin("dist_timeout"));
    }
    if (tree_.given("accumulate_train_batch_on_tokens")) {
      const bool tokens = tree_.yes("accumulate_train_batch_on_tokens", true);
      draft_.set("train.loss_mean", tokens ? "tokens" : "microbatches",
                 tree_.origin("accumulate_train_batch_on_tokens"));
    }
    loggers();
  }

  void tensor() {
    for (const char* key :
         {"tp_config.tensor_parallel_degree", "parallelism_config.tp.tensor_parallel_degree"}) {
      if (tree_.given(key)) field("parallel.tensor", key, "");
    }
    if (tree_.text("model.ffn_config.ffn_type").find("moe") != std::string::npos) {
      draft_.note(
          "LLM-Foundry refuses tensor parallelism beside experts; here the ranks that share "
          "experts are counted across those that share matrices");
    }
  }

  void sharding(const std::string& root) {
    strategy(root);
    const std::string again = root + ".activation_checkpointing";
    if (tree_.given(again)) {
      draft_.set_text("train.recompute", tree_.yes(again, false) ? "1" : "none",
                      tree_.origin(again));
    }
    for (const TreeRule& rule : kFsdpRules) {
      const std::string path = root + '.' + std::string(rule.path);
      if (tree_.given(path)) draft_.ignore(tree_.origin(path), rule.text);
    }
  }

  // Composer's FSDP: what is sharded, and over how many ranks.
  void strategy(const std::string& root) {
    constexpr const char *kShard = "parallel.shard", *kReshard = "parallel.reshard",
                         *kRanks = "parallel.shard_ranks";
    const std::string key = root + ".sharding_strategy", name = tree_.text(key);
    const Origin from = tree_.origin(key);
    const bool hybrid = name.find("HYBRID_SHARD") != std::string::npos;
    if (name == "NO_SHARD") {
      draft_.set(kShard, "none", from);
    } else if (name == "FULL_SHARD" || name == "SHARD_GRAD_OP" || hybrid) {
      draft_.set(kShard, "full", from);
      if (name == "SHARD_GRAD_OP" || name.ends_with("ZERO2")) draft_.set(kReshard, "false", from);
    } else if (tree_.given(key)) {
      draft_.refuse(from, "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD and NO_SHARD are supported");
    }
    const std::string mesh = root + ".device_mesh", moe = "model.ffn_config.device_mesh",
                      shard = root + ".data_parallel_shard_degree",
                      copies = root + ".data_parallel_replicate_degree";
    // One number: over all of so many ranks; two: copies, and the ranks of each.
    for (const std::string& path : {mesh, moe}) {
      if (!tree_.given(path)) continue;
      const std::vector<std::string> axes = tree_.list(path);
      const size_t most = path == moe ? 1 : 2;
      if (axes.empty() || axes.size() > most) {
        draft_.refuse(tree_.origin(path), most == 1 ? "one number, the ranks that share a copy"
                                                    : "one number, or copies and ranks of each");
      } else {
        draft_.set(kRanks, axes.back(), tree_.origin(path));
      }
    }
    if (tree_.whole(shard, -1) > 0) {
      draft_.set(kRanks, tree_.text(shard), tree_.origin(shard));
    } else if (tree_.given(shard)) {
      draft_.ignore(tree_.origin(shard), "all ranks, as shard_ranks 0 has it");
    }
    if (tree_.given(copies)) {
      draft_.ignore(tree_.origin(copies), "as many as parallel.shard_ranks leaves");
    }
    if (hybrid) draft_.need(kRanks, from.text + ": the ranks that share a copy, there a host's");
  }

  // What Weights & Biases and MLflow get is sent by a script that follows the run's log.
  void loggers() {
    constexpr std::array<std::array<const char*, 3>, 5> kNames = {
        {{"wandb", "project", "--project"},
         {"wandb", "name", "--name"},
         {"wandb", "entity", "--entity"},
         {"mlflow", "experiment_name", "--project"},
         {"mlflow", "run_name", "--name"}}};
    for (const std::string to : {"wandb", "mlflow"}) {
      std::vector<Origin> given;
      std::string command = "tools/follow_log.py RUN --to " + to;
      if (tree_.given("loggers." + to)) given.push_back(tree_.origin("loggers." + to));
      for (const auto& [logger, key, option] : kNames) {
        const std::string path = "loggers." + to + '.' + key;
        if (logger != to || !tree_.given(path)) continue;
        given.push_back(tree_.origin(path));
        command.append(" ").append(option).append(" ").append(shell_word(tree_.text(path)));
      }
      if (!given.empty()) draft_.beside(given, command);
    }
  }

  // Folders of MDS shards, which `troupe data convert` makes token files of.
  void data() {
    const std::string root = "train_loader.dataset.";
    const bool streams = tree_.section(root + "streams");
    std::string sources;
    Origin from = tree_.origin(root + "local");
    const auto add = [&](const std::string& at, const std::string& weight) {
      std::string path = tree_.text(at + "local");
      if (path.empty()) path = tree_.text(at + "remote");
      if (path.empty()) return;
      tree_.given(at + "remote");
      const std::string split = tree_.text(at + "split", tree_.text(root + "split"));
      if (!split.empty()) path += '/' + split;
      sources += (sources.empty() ? "{path: " : ", {path: ") + quoted_yaml(path) +
                 (weight.empty() ? "" : ", weight: " + weight) + '}';
      from = tree_.origin(at + "local");
    };
    if (streams) {
      for (const std::string& name : tree_.names(root + "streams")) {
        std::string at = root;
        at.append("streams.").append(name).append(".");
        add(at, tree_.text(at + "proportion"));
      }
    } else {
      add(root, "");
    }
    if (!sources.empty()) {
      draft_.set("data.train", '[' + sources + ']', from);
      draft_.note("data.train names folders of MDS shards: convert them to token files first");
    }
    from_hub("train_loader.dataset.hf_name", "data.train");
    from_hub("eval_loader.dataset.hf_name", "data.valid");
    if (!tree_.yes(root + "shuffle", true)) {
      draft_.refuse(tree_.origin(root + "shuffle"), "training data is always shuffled here");
    } else if (tree_.given(root + "shuffle")) {
      draft_.ignore(tree_.origin(root + "shuffle"), "training data is always shuffled here");
    }
    if (tree_.whole(root + "max_seq_len", sequence()) != sequence()) {
      draft_.refuse(tree_.origin(root + "max_seq_len"), "differs from max_seq_len");
    }
    if (tree_.given(root + "shuffle_seed")) {
      field("data.seed", root + "shuffle_seed", "");
    }
    if (tree_.given(root + "eos_token_id")) {
      draft_.ignore(tree_.origin(root + "eos_token_id"), "the token files say it");
    }
    if (tree_.given("tokenizer.name")) {
      draft_.ignore(tree_.origin("tokenizer.name"),
                    "training reads ids; name its tokenizer.json in data.tokenizer to see text");
    }
  }

  void from_hub(const std::string& key, const std::string& path) {
    if (!tree_.given(key)) return;
    draft_.need(path, tree_.origin(key).text + ": download it, make token files of it with " +
                          "`troupe data build`, and name them here");
  }

  void checkpoint() {
    const std::string folder = tree_.text("save_folder"), name = tree_.text("run_name");
    if (folder.find("://") != std::string::npos) {
      draft_.refuse(tree_.origin("save_folder"), "a run's folder is on a disk of this machine");
    } else if (!folder.empty()) {
      std::string path = folder;
      const auto at = path.find("{run_name}");
      if (at != std::string::npos) path.replace(at, 10, name);
      draft_.set_text("checkpoint.dir", path, tree_.origin("save_folder"));
    } else if (!name.empty()) {
      draft_.set_text("checkpoint.dir", "runs/" + name, tree_.origin("run_name"));
    }
    if (tree_.given("save_interval")) {
      save_interval();
    }
    if (tree_.given("autoresume")) {
      draft_.set("checkpoint.resume", tree_.yes("autoresume", false) ? "auto" : "never",
                 tree_.origin("autoresume"));
    }
    for (const char* key : {"save_weights_only", "only_hf_checkpoint"}) {
      if (!tree_.given(key)) continue;
      if (tree_.yes(key, false)) draft_.refuse(tree_.origin(key), "a checkpoint is always whole");
      if (!tree_.yes(key, false)) draft_.ignore(tree_.origin(key), "a checkpoint is always whole");
    }
    if (tree_.given("only_composer_checkpoint")) {
      draft_.ignore(tree_.origin("only_composer_checkpoint"),
                    "`troupe export` makes other forms, when they are asked for");
    }
    if (tree_.given("save_num_checkpoints_to_keep")) {
      const int64_t keep = tree_.whole("save_num_checkpoints_to_keep", -1);
      draft_.set("checkpoint.keep", to_text(std::max<int64_t>(keep, 0)),
                 tree_.origin("save_num_checkpoints_to_keep"));
    }
    if (!tree_.given("load_path")) return;
    if (tree_.yes("load_weights_only", false)) {
      draft_.set_text("checkpoint.init_from", tree_.text("load_path"), tree_.origin("load_path"));
    } else {
      draft_.refuse(tree_.origin("load_path"),
                    "a run goes on from its own folder; load_weights_only: true is "
                    "checkpoint.init_from");
    }
  }

  void save_interval() {
    const Origin from = tree_.origin("save_interval");
    if (in_epochs("save_interval")) {
      return draft_.ignore(from,
                           "an epoch is not a length here; the end and every 30 minutes are saved: "
                           "checkpoint.every, checkpoint.every_steps");
    }
    const std::string every = span("save_interval");
    const bool in_steps = every.find_first_not_of("0123456789") == std::string::npos;
    if (in_steps && !every.empty()) {
      draft_.set("checkpoint.every_steps", every, from);
    } else if (!every.empty()) {
      draft_.refuse(from, "give it in ba: checkpoint.every_steps");
    }
  }

  bool in_epochs(const std::string& name) {
    const std::string text = tree_.text(name);
    return text.ends_with("ep") || text.find_first_not_of("0123456789") == std::string::npos;
  }

  void evaluation() {
    const bool some = tree_.section("eval_loader");
    if (tree_.given("eval_interval") && !some) {
      draft_.ignore(tree_.origin("eval_interval"), "there is no eval_loader");
    } else if (tree_.given("eval_interval") && in_epochs("eval_interval") &&
               tree_.text("eval_interval") != "0") {
      draft_.need("eval.every", tree_.origin("eval_interval").text +
                                    ": an epoch is as long as the data: say it in steps or tokens");
    } else if (tree_.given("eval_interval") && tree_.text("eval_interval") != "0") {
      const std::string every = span("eval_interval");
      if (!every.empty()) draft_.set("eval.every", every, tree_.origin("eval_interval"));
    }
    if (tree_.yes("eval_first", false)) {
      draft_.set("eval.at_start", "true", tree_.origin("eval_first"));
    }
    if (tree_.given("eval_subset_num_batches")) {
      const int64_t batches = tree_.whole("eval_subset_num_batches", -1);
      draft_.set("eval.batches", to_text(std::max<int64_t>(batches, 0)),
                 tree_.origin("eval_subset_num_batches"));
      if (batches > 0) {
        draft_.note("eval_subset_num_batches is of each rank, eval.batches of all ranks together");
      }
    }
    if (tree_.given("device_eval_batch_size")) {
      field("eval.batch", "device_eval_batch_size", "");
    }
    if (tree_.given("console_log_interval")) {
      const std::string every = span("console_log_interval");
      if (!every.empty()) draft_.set("log.every", every, tree_.origin("console_log_interval"));
    }
    const std::string valid = tree_.text("eval_loader.dataset.local");
    if (!valid.empty()) {
      const std::string split = tree_.text("eval_loader.dataset.split");
      draft_.set("data.valid",
                 "[{path: " + quoted_yaml(split.empty() ? valid : valid + '/' + split) + "}]",
                 tree_.origin("eval_loader.dataset.local"));
    }
  }

  Draft& draft_;
  Tree tree_;
};

}  // namespace

void convert_foundry(const std::string& text, const std::string& file, Draft& draft) {
  Foundry(launched_settings(parse_yaml(text, file), file, draft), draft).convert();
}

}  // namespace troupe
