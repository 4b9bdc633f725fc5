#include "troupe/train/recipe/foreign/foundry_parts.h"

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
constexpr std::string_view kAdapters = "adapters are not converted: write them in model.lora";
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

}  // namespace

std::span<const TreeRule> foundry_rules() {
  return kRules;
}

std::span<const TreeRule> foundry_shard_rules() {
  return kFsdpRules;
}

}  // namespace troupe
