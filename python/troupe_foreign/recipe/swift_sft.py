"""ms-swift's `swift sft`, `pt` and `rlhf --rlhf_type dpo`: the settings of transformers' trainer, as flags."""
import re

from .common import give_model, number, plain, refuse_sight
from .settings import Fault
from .tuning import Tuning, chats, preference, training

# Of both of its trainers: how fast it runs, what it logs, and how its data are read.
SWIFT_IGNORED = re.compile(
    r"^(save_safetensors|load_safetensors|merge_lora|load_from_cache_file|dataset_num_proc|packing|padding_free|streaming|use_hf|"
    r"no_save_optim|no_save_rng|no_load_optim|no_load_rng|finetune|attention_backend|cross_entropy|moe_permute_fusion|moe_grouped_gemm|"
    r"moe_shared_expert_overlap|recompute_|optimizer_cpu_offload|use_precision_aware|optimizer_offload|overlap_|tensorboard|wandb|swanlab|"
    r"report_to|model_author|model_name|system|max_shard_size|torch_dtype|check_model|ddp_|dataset_shuffle|train_dataloader|strict|"
    r"model_type|template|use_flash_attn|async_save|save_total_limit|bridge_backend|mcore_|split_dataset_ratio|val_dataset|truncation|"
    r"manual_gc|apply_rope|logprob|max_pixels|interleave|cached_|add_non_thinking|columns|shuffle_buffer|lazy_tokenize|gradient_acc|external_plugins|"
    r"add_version|deterministic|tp_comm|custom_register|load_args|new_special|remove_unused|loss_scale|agent_template|enable_thinking|"
    r"sequence_packing|vit_gradient|attn_impl|dataloader_|group_by|moe_enable_deepep|moe_token_dispatcher|eval_iters|create_checkpoint|task_type causal_lm)")

MORE_IGNORED = re.compile(
    r"^(use_liger_kernel|gradient_checkpointing|deepspeed|fsdp|experts_impl|per_device_eval|eval_|save_|logging_|experiment|run_name|"
    r"resume_from|dataset|split_|preprocess|metric_|full_determinism|low_cpu|sequence_parallel_size 1|neftune_noise_alpha 0|do_|"
    r"predict_with|include_|push_|hub_|use_logits|sortish|seed|data_seed|local_rank|ignore_args|num_proc|padding_side)")
DEFAULTS = {"weight_decay": 0.1, "adam_beta2": 0.95, "lr_scheduler_type": "cosine", "per_device_train_batch_size": 1, "lora_rank": 8,
            "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear", "save_steps": 500, "logging_steps": 5, "torch_dtype": "bfloat16"}
ROWS = 16  # of a step, where it is not said


class Flags(Tuning):
    """Settings with the flags' names; what no flag says has ms-swift's default."""

    def __init__(self, script):
        said = {name: (" ".join(values) if values else True, line) for name, values, line in script.flags()}
        given = {name: plain(value) for name, (value, _) in said.items()}
        super().__init__("ms-swift", script.file, {**DEFAULTS, **given}, {})
        self.given = {name: value for name, (value, _) in said.items()}
        self.places = {name: script.place(line) for name, (_, line) in said.items()}
        adapters = self.get("tuner_type", self.get("train_type", "lora")) == "lora"
        self.adapted = adapters
        self.content.setdefault("learning_rate", 1e-4 if adapters else 1e-5)
        rows = number(self.get("per_device_train_batch_size"), 1)
        self.content.setdefault("gradient_accumulation_steps", max(1, -(-ROWS // int(rows))))

    def theirs(self, name):
        if name in self.given:
            return f"--{name}" + ("" if self.given[name] is True else f" {self.given[name]}")
        return f"{name}: {self.content.get(name)}, ms-swift's default"

    def place(self, name):
        return self.places.get(name, "")

    def precision(self):
        """The model's own type is bf16, where no flag says another."""
        kind = str(self.get("torch_dtype", "bfloat16"))
        if kind in ("bfloat16", "float16"):
            self.out.give({"bfloat16": "bf16", "float16": "fp16"}[kind], True, self.theirs("torch_dtype"), self.place("torch_dtype"))


def swift_sft(script, config):
    one = Flags(script)
    verb, kind = script.program.split()[-1], one.get("rlhf_type", "")
    if verb not in ("sft", "pt", "rlhf"):
        raise Fault(f"{script.file}: ms-swift's, {verb}: it trains nothing")
    if verb == "rlhf" and kind != "dpo":
        raise Fault(f"{script.file}: ms-swift's, {str(kind).upper() or 'no --rlhf_type'}: of `swift rlhf` only dpo is read")
    model = str(one.get("model") or "no model")
    refuse_sight("ms-swift", script.file, model, "freeze_vit" in one.content)
    if one.get("task_type", "causal_lm") != "causal_lm":
        raise Fault(f"{script.file}: ms-swift's, {one.get('task_type')}: only models that write text are supported")
    give_model(one.out, model, one.place("model"), config)
    if one.get("max_length") is None:
        one.out.stand_in("seq-length", 2048, "data.sequence", "--max_length is not given: the model's own longest there")
    one.flag("max_length", "seq-length")
    adapters(one)
    training(one, "per_device_train_batch_size")
    one.flag("output_dir", "save")
    one.flag("save_steps", "save-interval")
    one.flag("logging_steps", "log-interval")
    one.flag("eval_steps", "eval-interval")
    one.flag("router_aux_loss_coef", "moe-aux-loss-coeff")
    if number(one.get("sequence_parallel_size"), 1) > 1:
        one.flag("sequence_parallel_size", "context-parallel-size")
    chats(one, [one.theirs("dataset") if one.get("dataset") else "no --dataset"], kind == "dpo", verb == "pt", None)
    if kind == "dpo":
        preference(one.out, str(one.get("loss_type", "sigmoid")), one.get("beta", 0.1), one.get("label_smoothing", 0))
        if number(one.get("rpo_alpha"), 0):
            one.refuse("rpo_alpha", "a likelihood beside the loss of pairs is not supported")
    rest(one)
    return one.out


def adapters(one):
    """model.lora. All linear layers are the router's too; those of experts are experts there."""
    names = str(one.get("target_modules")).split()
    experts = one.out.has("num-experts")
    if not one.adapted:
        if one.get("tuner_type", one.get("train_type")) != "full":
            one.refuse("tuner_type", "lora and full are supported")
        for name in ("lora_rank", "lora_alpha", "lora_dropout"):
            one.get(name)
        return
    rank, alpha, dropout = int(number(one.get("lora_rank"))), number(one.get("lora_alpha")), one.get("lora_dropout")
    one.adapters(rank, alpha, dropout, "all" if names == ["all-linear"] else names, one.get("use_rslora"), experts)
    if experts and "all-linear" in names:
        one.out.set("model.lora.targets", ["attention", "experts", "router"], one.theirs("target_modules"))
    elif experts and {"gate_proj", "up_proj", "down_proj"} & set(names):
        targets = [target for target in one.out.own["model.lora.targets"][0] if target != "shared"]
        one.out.set("model.lora.targets", [*targets, "experts"], one.theirs("target_modules"))
    bits = number(one.get("quant_bits"), 0)
    one.frozen_bits(bits == 4, bits == 8)


def rest(one):
    for name, value in one.content.items():
        theirs = one.theirs(name)
        if name in one.asked or name not in one.given or value in (None, False):
            continue
        if SWIFT_IGNORED.match(theirs[2:]) or MORE_IGNORED.match(theirs[2:]):
            one.out.ignore(theirs, "speed, memory, logs, or how its data are read")
        else:
            one.refuse(name, "a setting of ms-swift's that is not known here")
