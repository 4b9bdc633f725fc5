"""Fine-tuning as LLaMA-Factory's and Axolotl's YAML say it: chats or pairs, adapters, and a model of a hub."""
import re

from .common import give, give_model, number, refuse_sight, shown, yaml_of
from .settings import Fault, Settings

# Modules of transformers, and the target of model.lora that has them.
TARGETS = {"q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "o_proj": "attention", "qkv_proj": "attention",
           "q_a_proj": "attention", "q_b_proj": "attention", "kv_a_proj_with_mqa": "attention", "kv_b_proj": "attention",
           "gate": "router", "gate_proj": "ffn", "up_proj": "ffn", "down_proj": "ffn", "w1": "experts", "w2": "experts", "w3": "experts",
           "experts": "experts", "gate_up_proj": "experts",
           "Wqkv": "attention", "out_proj": "attention", "v1": "experts", "layer": "router"}
SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}
OPTIMIZERS = {"adamw_torch": "adam", "adamw_torch_fused": "adam", "adamw_hf": "adam", "adamw_bnb_8bit": "adam", "adamw_8bit": "adam",
              "paged_adamw_8bit": "adam", "paged_adamw_32bit": "adam", "adamw_torch_8bit": "adam", "adamw_torch_4bit": "adam", "adamw_apex_fused": "adam",
              "muon": "muon", "sgd": "sgd"}


class Tuning:
    """The settings of one file, each asked for once; what nobody asked for is for the reader's table."""

    def __init__(self, whose, file, content, lines):
        self.out, self.content, self.lines = Settings(whose, file), content, lines
        self.asked = set()

    def get(self, name, otherwise=None):
        self.asked.add(name)
        value = self.content.get(name)
        return otherwise if value is None else value

    def theirs(self, name):
        return f"{name}: {shown(self.content.get(name))}"

    def place(self, name):
        return f"{self.out.file}:{self.lines.get(name, 1)}"

    def flag(self, name, flag, value=None):
        found = self.get(name)
        if found is not None:
            self.out.give(flag, found if value is None else value, self.theirs(name), self.place(name))

    def refuse(self, name, why):
        self.out.refuse(self.theirs(name), self.place(name), why)

    def adapters(self, rank, alpha, dropout, targets, rslora, experts):
        """model.lora of an adapter's settings; `targets`: names of modules, or all."""
        out = self.out
        out.set("model.lora.rank", rank, self.theirs_or("lora_rank", "lora_r", rank))
        out.set("model.lora.alpha", alpha, self.theirs_or("lora_alpha", "lora_alpha", alpha))
        if rslora:
            out.set("model.lora.rslora", True, "use_rslora: true")
        if number(dropout, 0) > 0:
            out.set("model.lora.dropout", number(dropout), self.theirs_or("lora_dropout", "lora_dropout", dropout))
        out.set("model.lora.targets", self.targets(targets, experts), f"targets: {shown(targets)}")
        if "router" in out.own["model.lora.targets"][0]:
            out.note("the router has an adapter too: the files of both projects name it gate")

    def theirs_or(self, name, other, value):
        found = next((n for n in (name, other) if n in self.content), None)
        return self.theirs(found) if found else f"{name}: {value}, {self.out.whose}'s default"

    def targets(self, names, experts):
        """All linear layers are those of attention and of dense layers: experts are parameters of their own there."""
        if names == "all":
            return ["attention"] if experts else ["attention", "ffn"]
        out = []
        for name in names:
            target = TARGETS.get(str(name).split(".")[-1]) or ("experts" if "expert" in str(name) else None)
            if target is None:
                self.out.refuse(f"adapters of {name}", self.out.file, "is no matrix that has adapters here")
            elif target == "ffn" and experts:
                target = "shared" if self.out.has("moe-shared-expert-intermediate-size") else None
            if target and target not in out:
                out.append(target)
        return out

    def schedule(self):
        name = self.get("lr_scheduler_type") or self.get("lr_scheduler") or "linear"
        key = "lr_scheduler_type" if "lr_scheduler_type" in self.content else "lr_scheduler"
        if str(name) not in SCHEDULES:
            self.refuse(key, "a schedule that is not known here: cosine, linear and constant are")
        else:
            self.out.give("lr-decay-style", SCHEDULES[str(name)], self.theirs_or(key, key, name), self.place(key))
        self.out.give("min-lr", 0, "min_lr: 0, of its schedules")
        steps = self.get("warmup_steps", 0)
        part = self.get("warmup_ratio")
        if number(steps, 0) >= 1:
            self.flag("warmup_steps", "lr-warmup-iters", int(number(steps)))
        elif number(steps, 0) > 0 or number(part, 0) > 0:
            self.flag("warmup_steps" if number(steps, 0) > 0 else "warmup_ratio", "lr-warmup-fraction",
                      number(steps) if number(steps, 0) > 0 else number(part))

    def optimizer(self):
        name = str(self.get("optim") or self.get("optimizer") or "adamw_torch")
        key = "optim" if "optim" in self.content else "optimizer"
        if name not in OPTIMIZERS:
            self.refuse(key, "an optimizer that is not known here")
            return
        if found := re.search(r"([48])bit", name):
            self.out.note(f"{key}: {name}: moments have {found[1]} bits there, f32 here (train.optimizer.moments: bf16 has half)")
        self.out.give("optimizer", OPTIMIZERS[name], self.theirs_or(key, key, name), self.place(key))
        self.flag("learning_rate", "lr", number(self.get("learning_rate")))
        self.out.give("weight-decay", number(self.get("weight_decay", 0)), self.theirs_or("weight_decay", "weight_decay", 0))
        self.out.give("clip-grad", number(self.get("max_grad_norm", 1.0)), self.theirs_or("max_grad_norm", "max_grad_norm", 1.0))
        self.out.give("adam-beta1", number(self.get("adam_beta1", 0.9)), self.theirs_or("adam_beta1", "adam_beta1", 0.9))
        self.out.give("adam-beta2", number(self.get("adam_beta2", 0.999)), self.theirs_or("adam_beta2", "adam_beta2", 0.999))

    def length(self):
        steps = self.get("max_steps")
        epochs = self.get("num_train_epochs") or self.get("num_epochs")
        if number(steps, -1) > 0:
            self.flag("max_steps", "train-iters", int(number(steps)))
        else:
            self.out.stand_in("train-iters", 1000, "train.steps", f"{epochs or 3} epochs of the data: their tokens, over sequence times global_batch, times as many")

    def batch(self, micro, ranks):
        each, pieces = int(number(self.get(micro, 1), 1)), int(number(self.get("gradient_accumulation_steps", 1), 1))
        self.out.give("micro-batch-size", each, self.theirs_or(micro, micro, each), self.place(micro))
        theirs = f"{micro}: {each}, gradient_accumulation_steps: {pieces}"
        if ranks is not None:
            self.out.give("global-batch-size", each * pieces * ranks, theirs, self.place(micro))
            self.out.note(f"global_batch is that of {ranks} data ranks: take it times as many as the run had")

    def precision(self):
        for name in ("bf16", "fp16"):
            if str(self.get(name, "")).lower() in ("true", "auto"):
                self.out.give(name, True, self.theirs(name), self.place(name))
                return
        if self.out.whose == "Axolotl" or "pure_bf16" in self.content:
            self.out.give("bf16", True, "the model's own type")

    def frozen_bits(self, four, eight):
        if four or eight:
            form = "nf4" if four else "int8"
            self.out.set("model.lora.frozen.format", form, "4 bits" if four else "8 bits")
            self.out.set("model.lora.frozen.targets", ["attention", "experts"] if self.out.has("num-experts") else ["attention", "ffn"],
                         "all linear layers")


def preference(out, loss, beta, smoothing):
    """train.loss of pairs; what its loss is not, is refused."""
    kinds = {"sigmoid": "sigmoid", "ipo": "ipo", "hinge": "hinge"}
    if loss not in kinds:
        out.refuse(f"the loss {loss}", out.file, "of pairs sigmoid, ipo and hinge are supported")
        return
    out.set("train.loss", "dpo", "dpo")
    out.set("train.dpo.beta", number(beta, 0.1), f"beta: {beta}")
    out.set("train.dpo.loss", kinds[loss], f"loss: {loss}")
    if number(smoothing, 0):
        out.set("train.dpo.label_smoothing", number(smoothing), f"label_smoothing: {smoothing}")
    out.note("batches count pairs there, rows here: global_batch and micro_batch are twice theirs")
    for flag in ("micro-batch-size", "global-batch-size"):
        if out.has(flag):
            out.give(flag, 2 * int(out.value(flag)), out.flags[flag].theirs + ", pairs")


LF_IGNORED = {
    "do_train": "what is done", "do_eval": "what is done", "trust_remote_code": "no code of a model runs here", "output_dir": "",
    "overwrite_output_dir": "checkpoint.resume", "plot_loss": "log.jsonl holds it", "report_to": "logs", "ddp_timeout": "speed only",
    "preprocessing_num_workers": "speed only", "dataloader_num_workers": "speed only", "overwrite_cache": "speed only",
    "save_only_model": "exports are another command", "resume_from_checkpoint": "checkpoint.resume", "logging_steps": "", "save_steps": "",
    "flash_attn": "speed only", "gradient_checkpointing": "memory only", "disable_gradient_checkpointing": "memory only",
    "deepspeed": "how ranks share the state: parallel.shard", "fsdp": "how ranks share the state", "fsdp_config": "how ranks share the state",
    "enable_liger_kernel": "speed only", "use_unsloth": "speed only", "use_v1_kernels": "speed only", "use_kt": "where experts are computed",
    "upcast_layernorm": "norms are computed in f32", "quantization_method": "of frozen weights", "run_name": "a name",
    "ray_run_name": "of Ray", "ray_storage_path": "of Ray", "ray_num_workers": "of Ray", "resources_per_worker": "of Ray",
    "placement_strategy": "of Ray", "ddp_find_unused_parameters": "speed only", "double_quantization": "scales' own bits",
    "bf16_full_eval": "speed only", "low_cpu_mem_usage": "memory only", "kt_weight_path": "where experts are computed",
    "include_num_input_tokens_seen": "logs", "print_param_status": "logs", "seed": "", "val_size": "held out when data are built",
    "eval_strategy": "eval.every", "per_device_eval_batch_size": "eval.batch", "eval_steps": "", "eval_dataset": "data.valid",
    "cache_dir": "a folder", "use_reentrant_gc": "memory only", "tokenized_path": "a folder", "save_total_limit": "checkpoint.keep",
    "save_strategy": "checkpoint.every", "load_best_model_at_end": "checkpoint.keep_best", "dataset_dir": "a folder",
    "warmup_steps": "", "use_adam_mini": None, "packing": "rows are filled from the data", "neat_packing": "rows are filled from the data",
    "enable_thinking": "the template's", "train_on_prompt": None, "mask_history": None}
LF_STAGES = {"rm": "a reward model", "kto": "KTO", "ppo": "PPO"}
LF_REFUSED = ("use_galore", "use_apollo", "use_badam", "use_dora", "pissa_init", "loraplus_lr_ratio", "use_llama_pro", "mixture_of_depths",
              "use_adam_mini", "use_muon", "use_dft_loss", "use_eaft_loss", "use_asft_loss", "neftune_noise_alpha", "train_on_prompt",
              "mask_history", "use_mca", "additional_target", "freeze_trainable_layers", "fp8", "predict_with_generate", "use_oft")


def llama_factory(file, troupe, variables, config):
    del troupe, variables
    content, lines = yaml_of(file)
    one = Tuning("LLaMA-Factory", file, content, lines)
    stage, kind = one.get("stage", "sft"), one.get("finetuning_type", "lora")
    model = one.get("model_name_or_path")
    if "do_train" not in content and "learning_rate" not in content:
        raise Fault(f"{file}: LLaMA-Factory's, of no training (it exports or chats): no recipe is made of it")
    if model is None:
        raise Fault(f"{file}: LLaMA-Factory's of version 1, or of another tool: it names no model_name_or_path")
    if stage in LF_STAGES:
        raise Fault(f"{file}: LLaMA-Factory's, {LF_STAGES[stage]}: of its stages pt, sft and dpo are read")
    refuse_sight("LLaMA-Factory", file, str(model), "image_max_pixels" in content)
    give_model(one.out, str(model), one.place("model_name_or_path"), config)
    experts = one.out.has("num-experts")
    for name in LF_REFUSED:
        if one.get(name):
            one.refuse(name, "is not supported")
    one.flag("cutoff_len", "seq-length")
    one.out.default("seq-length", 2048, "cutoff_len")
    if kind in ("lora",):
        targets = one.get("lora_target", "all")
        rank = int(number(one.get("lora_rank", 8)))
        one.adapters(rank, number(one.get("lora_alpha"), 2 * rank), one.get("lora_dropout", 0),
                     "all" if targets == "all" else [t.strip() for t in str(targets).split(",")], one.get("use_rslora"), experts)
        bits = number(one.get("quantization_bit"), 0)
        one.frozen_bits(bits == 4, bits == 8)
    elif kind != "full":
        one.refuse("finetuning_type", "lora and full are supported")
    training(one, "per_device_train_batch_size")
    one.flag("output_dir", "save")
    one.flag("save_steps", "save-interval")
    one.flag("logging_steps", "log-interval")
    one.flag("eval_steps", "eval-interval")
    if number(one.get("moe_aux_loss_coef"), 0):
        one.flag("moe_aux_loss_coef", "moe-aux-loss-coeff")
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
                 "context_parallel_size", "sequence_parallel", "use_distributed_optimizer"):
        if name in content:
            give(one.out, name, one.get(name), one.theirs(name), one.place(name))
    chats(one, [str(one.get("dataset", "")), f"template: {one.get('template')}"], stage == "dpo", stage == "pt",
          one.get("max_samples"))
    if stage == "dpo":
        preference(one.out, str(one.get("pref_loss", "sigmoid")), one.get("pref_beta", 0.1), one.get("dpo_label_smoothing", 0))
    rest(one, LF_IGNORED)
    return one.out


def training(one, batch):
    """Optimizer, schedule, length, batch (the key of one device's) and seed: the same keys in both projects."""
    one.optimizer()
    one.schedule()
    one.length()
    one.batch(batch, 1)
    one.precision()
    one.out.default("seed", 42)
    one.flag("seed", "seed")


def chats(one, said, pairs, text, most):
    what = "pairs of answers" if pairs else "plain text" if text else "questions whose answers alone are learned"
    form = "" if text else " --format chat"
    one.out.hole("data.train", f"{', '.join(said)}: {what}; `troupe data build FILE{form} -t TOKENIZER -o DATA` makes token files of them"
                 + (f" (of at most {most} examples)" if most else ""))


def rest(one, ignored):
    """What no part asked for."""
    speed = ("moe_grouped_gemm", "moe_token", "overlap_", "recompute_", "apply_rope", "bias_activation", "wandb_", "swanlab_", "trackio_", "liger_",
             "kt_")
    for name, value in one.content.items():
        if name in one.asked or value in (None, False, [], {}):
            continue
        if ignored.get(name) is not None:
            one.out.ignore(one.theirs(name), ignored[name])
        elif name.startswith(speed):
            one.out.ignore(one.theirs(name), "speed only, memory only or logs")
        else:
            one.refuse(name, f"a setting of {one.out.whose}'s that is not known here")


AXOLOTL_IGNORED = {name: "speed, memory or logs" for name in (
    "use_kernels", "gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_offloading", "tf32", "flash_attention",
    "attn_implementation", "xformers_attention", "sdp_attention", "flex_attention", "eager_attention", "logging_steps",
    "dataset_prepared_path", "deepspeed", "fsdp", "fsdp_config", "fsdp_version", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel",
    "lora_embedding_kernel", "experts_implementation", "experimental_skip_move_to_device", "low_cpu_mem_usage", "torch_compile", "saves_per_epoch", "evals_per_epoch",
    "save_strategy", "eval_strategy", "save_total_limit", "eval_steps", "save_steps", "debug", "local_rank", "strict", "trust_remote_code", "hub_model_id",
    "resume_from_checkpoint", "auto_resume_from_checkpoints", "loss_watchdog_threshold", "loss_watchdog_patience", "chunked_cross_entropy",
    "use_tensorboard", "ddp_timeout", "ddp_find_unused_parameters", "tokenizer_type", "model_type", "is_mistral_derived_model",
    "is_llama_derived_model", "is_qwen_derived_model", "save_safetensors", "save_only_model", "save_first_step", "dataset_processes",
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory", "unsloth_cross_entropy_loss", "liger_rope",
    "liger_rms_norm", "liger_glu_activation", "liger_swiglu", "liger_layer_norm", "liger_fused_linear_cross_entropy", "shuffle_merged_datasets",
    "eval_sample_packing", "pad_to_sequence_len", "sample_packing", "eval_table_size", "eval_max_new_tokens", "eval_batch_size",
    "group_by_length", "quantize_moe_experts", "use_scattermoe", "use_sonicmoe", "tokenizer_use_mistral_common", "gpu_memory_limit", "dp_shard_size",
    "early_stopping_patience", "chat_template", "special_tokens", "bf16_full_eval", "cut_cross_entropy", "flash_attn_cross_entropy",
    "flash_attn_rms_norm", "flash_attn_fuse_qkv", "flash_attn_fuse_mlp", "tokens", "eot_tokens", "include_tkps", "remove_unused_columns",
    "expert_parallel_backend", "torch_dtype", "scaling_softmax", "load_in_8bit", "load_in_4bit", "val_set_size", "output_dir", "tokenizer_config", "train_on_inputs")}
AXOLOTL_REFUSED = {"unfrozen_parameters": "weights are trained whole, or adapters alone", "lora_modules_to_save": "is not supported",
                   "peft_use_dora": "DoRA is not supported", "reward_model": "a reward model: no recipe trains one", "relora": "is not supported",
                   "noisy_embedding_alpha": "is not supported", "neftune_noise_alpha": "is not supported", "lora_layers_to_transform": "adapters are in all layers",
                   "quantization": "is not supported", "qat": "is not supported", "loraplus_lr_ratio": "is not supported", "trainer_cls": "is not supported"}
PLUGIN_SPEED = ("cut_cross_entropy", "liger", "kernels", "expert_parallel", "spectrum", "scattermoe", "sonicmoe")


def axolotl(file, troupe, variables, config):
    del troupe, variables
    content, lines = yaml_of(file)
    one = Tuning("Axolotl", file, content, lines)
    model = str(one.get("base_model"))
    if "learning_rate" not in content:
        raise Fault(f"{file}: Axolotl's, of no training: it has no learning_rate")
    refuse_sight("Axolotl", file, model, content.get("processor_type") or "vision" in str(file.name).lower())
    rl = one.get("rl")
    if rl and rl not in ("dpo", "ipo") or content.get("reward_model") or content.get("process_reward_model"):
        raise Fault(f"{file}: Axolotl's, {rl or 'a reward model'}: of preferences dpo and ipo are read")
    if one.get("diffusion") or any("diffusion" in str(p) for p in content.get("plugins") or []):
        raise Fault(f"{file}: Axolotl's, of a diffusion model of text: decoders are supported")
    give_model(one.out, model, one.place("base_model"), config)
    experts = one.out.has("num-experts")
    for name, why in AXOLOTL_REFUSED.items():
        if one.get(name):
            one.refuse(name, why)
    for plugin in one.get("plugins", []):
        if any(word in str(plugin).lower() for word in PLUGIN_SPEED):
            one.out.ignore(f"plugins: {plugin}", "speed or memory only")
        else:
            one.refuse("plugins", f"what {plugin} does is not known here")
    one.flag("sequence_len", "seq-length")
    adapter = one.get("adapter")
    if kind := one.get("model_quantization_config"):
        one.out.note(f"model_quantization_config: {kind}: how the weights that it reads are kept: `troupe import` widens them")
        one.get("model_quantization_config_kwargs")
    if adapter in ("lora", "qlora"):
        targets = one.get("lora_target_modules") or []
        everything = one.get("lora_target_linear") or targets == "all-linear"
        parameters = one.get("lora_target_parameters") or []
        names = "all" if everything and not parameters else [*(targets if isinstance(targets, list) else [targets]), *parameters]
        if isinstance(names, list) and len(names) == 1 and any(c in str(names[0]) for c in "|()*"):
            names = [target for target in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj") if target.split("_")[0] in str(names[0])] or names
        one.adapters(int(number(one.get("lora_r", 8))), number(one.get("lora_alpha", 16)), one.get("lora_dropout", 0), names,
                     one.get("peft_use_rslora"), experts)
        one.frozen_bits(one.get("load_in_4bit") or adapter == "qlora", one.get("load_in_8bit"))
    elif adapter:
        one.refuse("adapter", "lora and qlora are supported")
    training(one, "micro_batch_size")
    one.flag("output_dir", "save")
    for name, flag in (("logging_steps", "log-interval"), ("save_steps", "save-interval"), ("eval_steps", "eval-interval")):
        if number(content.get(name), 0) >= 1:  # below 1 it is a part of the run
            one.flag(name, flag)
    expert_ranks = number(one.get("expert_parallel_size"), 0)
    if expert_ranks > 1:
        one.flag("expert_parallel_size", "expert-model-parallel-size")
    for name, flag in (("tensor_parallel_size", "tensor-model-parallel-size"), ("context_parallel_size", "context-parallel-size")):
        if number(one.get(name), 1) > 1:
            one.flag(name, flag)
    if (one.get("model_config") or {}).get("output_router_logits"):
        one.out.give("moe-aux-loss-coeff", 0.02 if "mixtral" in model.lower() else 0.001, "model_config.output_router_logits: true, and the "
                     "coefficient of the model's config.json")
    sets = one.get("datasets") or one.get("pretraining_dataset") or []
    sets = sets if isinstance(sets, list) else [sets]
    said = [f"{s.get('path')} ({s.get('type')})" if isinstance(s, dict) else str(s) for s in sets]
    one.get("pretraining_dataset"), one.get("test_datasets")
    chats(one, said or ["no datasets"], bool(rl), "completion" in str(sets) or "pretraining_dataset" in content, None)
    if rl:
        preference(one.out, "ipo" if rl == "ipo" else str(one.get("dpo_loss_type", "sigmoid")), one.get("rl_beta") or one.get("dpo_beta") or 0.1,
                   one.get("dpo_label_smoothing", 0))
    rest(one, AXOLOTL_IGNORED)
    return one.out
