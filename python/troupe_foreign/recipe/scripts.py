"""Launch scripts whose flags are others than Megatron-LM's, or hydra's: ms-swift, slime, verl and MindSpeed-LLM. Their words come from
`troupe convert words`, which runs nothing."""
import pathlib
import re
import tempfile

from . import hand_over
from .common import batch, flag_said, give, give_model, give_preset, number, plain, refuse_sight, shown
from .mindspeed import mindspeed
from .pai import is_pai, pai
from .settings import Fault, Settings
from .swift_sft import SWIFT_IGNORED, swift_sft
from .tuning import preference

VARIABLE = re.compile(r"^\$(\{[^}]*\}|\w+|@|\*)$")


class Script:
    def __init__(self, file, troupe, variables):
        self.file = file
        with tempfile.TemporaryDirectory() as folder:
            text, self.lines = inlined(file)
            path = pathlib.Path(folder, file.name)
            path.write_text(text)
            self.program, self.words, self.notes = hand_over.words_of(troupe, path, variables)

    def place(self, line):
        return self.lines[line - 1] if 0 < line <= len(self.lines) else str(self.file)

    def flags(self):
        """[(name with underscores, values, line)]; a word that nobody sets is no word."""
        out = []
        for word, line in self.words:
            if word.startswith("--") and len(word) > 2:
                name, sign, value = word[2:].partition("=")
                out.append((name.replace("-", "_"), [value] if sign else [], line))
            elif out and not (VARIABLE.match(word) and out[-1][1]):
                out[-1][1].append(word)
        return out


def inlined(file, depth=0):
    """The text with the scripts in it that it reads from beside itself, and the place of each line."""
    lines, places = [], []
    for number_of, line in enumerate(file.read_text().splitlines(), 1):
        found = re.match(r"^\s*((?:\w+=\S*\s+)*)(?:source|\.)\s+[\"']?(?:\$\{?\w+\}?|\$\(.*\))?/?([\w./-]+\.sh)[\"']?\s*$", line)
        other = found and beside(file, found[2])
        if other and depth < 4:
            text, more = inlined(other, depth + 1)
            given = found[1].split()
            lines += given
            places += [f"{file}:{number_of}"] * len(given)
            lines += text.splitlines()
            places += more
        else:
            lines.append(line)
            places.append(f"{file}:{number_of}")
    return "\n".join(lines) + "\n", places


def beside(file, name):
    """The script of that name: beside the file, or in a folder above it, whose path elsewhere begins otherwise (/root/slime/scripts/...)."""
    for p in (file.parent / name, file.parent.parent / name):
        if p.is_file():
            return p
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    ends = ["/".join(parts[at:]) for at in range(len(parts) - 1)]
    return next((above / end for end in ends for above in file.resolve().parents if (above / end).is_file()), None)


SWIFT_NAMES = {"max_length": "seq-length", "output_dir": "save", "save": "save", "save_steps": "save-interval", "eval_steps": "eval-interval",
               "logging_steps": "log-interval", "dataloader_num_workers": "num-workers", "save_interval": "save-interval",
               "eval_interval": "eval-interval", "log_interval": "log-interval", "max_epochs": "num_train_epochs"}
SWIFT_DEFAULTS = {"micro-batch-size": 1, "global-batch-size": 16, "lr-decay-style": "cosine", "min-lr": 0, "weight-decay": 0.1,
                  "adam-beta1": 0.9, "adam-beta2": 0.95, "clip-grad": 1.0, "seed": 42, "save-interval": 500, "log-interval": 5,
                  "moe-aux-loss-coeff": 0, "moe-router-dtype": "fp32", "expert-tensor-parallel-size": 1, "use-distributed-optimizer": True}


def swift(script, config):
    out, flags = Settings("ms-swift", script.file), script.flags()
    given = {name: values for name, values, _ in flags}
    first = {name: " ".join(values) for name, values in given.items()}
    verb = script.program.split()[-1]
    kind = first.get("rlhf_type", "dpo" if verb == "rlhf" else "")
    if kind not in ("", "dpo"):
        raise Fault(f"{script.file}: ms-swift's, {kind.upper()}: of `megatron rlhf` only dpo is read")
    if first.get("task_type", "causal_lm") != "causal_lm":
        raise Fault(f"{script.file}: ms-swift's, {first['task_type']}: only models that write text are supported")
    model = first.get("model") or first.get("mcore_model") or first.get("load") or "no model"
    refuse_sight("ms-swift", script.file, model, "freeze_vit" in given)
    line = next((at for name, _, at in flags if name in ("model", "load")), 1)
    give_model(out, model, script.place(line), config)
    adapters = first.get("tuner_type") == "lora" or first.get("train_type") == "lora"
    out.give("lr", 1e-4 if adapters else 1e-5, f"lr: {1e-4 if adapters else 1e-5}, ms-swift's default")
    out.give("bf16", True, "the model's own type")
    for flag, value in SWIFT_DEFAULTS.items():
        out.give(flag, value, f"{flag.replace('-', '_')}: {value}, ms-swift's default")
    for name, values, at in flags:
        swift_flag(out, name, values, script.place(at))
    if adapters:
        swift_adapters(out, first)
    if kind == "dpo":
        preference(out, first.get("loss_type", "sigmoid"), first.get("beta", 0.1), first.get("label_smoothing", 0))
        if number(first.get("rpo_alpha"), 0):
            out.refuse(f"--rpo_alpha {first['rpo_alpha']}", str(script.file), "a likelihood beside the loss of pairs is not supported")
    if not out.has("train-iters"):
        out.stand_in("train-iters", 1000, "train.steps", f"{first.get('num_train_epochs') or first.get('max_epochs') or 3} epochs of the data: their tokens, over "
                     "sequence times global_batch, times as many")
    out.default("seq-length", 2048, "max_length")
    what = "text" if verb == "pt" else "pairs of answers" if kind else "questions whose answers alone are learned"
    out.hole("data.train", f"--dataset {first.get('dataset', '')}: {what}; `troupe data build FILE{'' if verb == 'pt' else ' --format chat'} "
             "-o DATA` makes token files of them")
    return out


def swift_adapters(out, first):
    rank, alpha = int(first.get("lora_rank", 8)), number(first.get("lora_alpha", 32))
    out.set("model.lora.rank", rank, f"--lora_rank {rank}")
    out.set("model.lora.alpha", alpha, f"--lora_alpha {alpha}")
    targets = ["attention", "experts"] if out.has("num-experts") else ["attention", "ffn"]
    if out.has("moe-shared-expert-intermediate-size"):
        targets.append("shared")
    out.set("model.lora.targets", targets, f"--target_modules {first.get('target_modules', 'all-linear')}")
    if first.get("target_modules", "all-linear") not in ("all-linear",) and "router" in first["target_modules"]:
        out.note("--target_modules names all-router too: add router to model.lora.targets")
    dropout = number(first.get("lora_dropout"), 0.05)
    if dropout:
        out.set("model.lora.dropout", dropout, f"--lora_dropout {dropout:g}" if "lora_dropout" in first else "lora_dropout: 0.05, ms-swift's default")
    if plain(first.get("use_rslora", "")) is True:
        out.set("model.lora.rslora", True, "--use_rslora true")
    for flag in ("moe-router-bias-update-rate",):
        if out.has(flag):
            out.give(flag, 0, "a frozen router's bias does not move")


def swift_flag(out, name, values, place):
    theirs, text = flag_said(name, values), " ".join(values)
    if name in ("model", "mcore_model", "load", "dataset", "num_train_epochs", "max_epochs", "tuner_type", "train_type", "rlhf_type", "beta",
                "rpo_alpha", "loss_type", "label_smoothing", "task_type", "mcore_adapter", "adapters", "ref_load", "lora_rank", "lora_alpha",
                "lora_dropout", "target_modules", "use_rslora", "lora_bias"):
        return
    if SWIFT_IGNORED.match(name):
        out.ignore(theirs, "speed, memory, logs, or how its data are read")
        return
    if name == "moe_router_load_balancing_type" and text == "none":
        out.give("moe-router-load-balancing-type", "none", theirs, place)
        return
    value = plain(text) if values else True
    give(out, SWIFT_NAMES.get(name, name), value, theirs, place)


# Of rollouts, rewards and losses of reinforcement learning, and of the engines that answer prompts.
SLIME_OWN = re.compile(
    r"^(actor_|critic_|colocate|hf_checkpoint|ref_load|ref_ckpt|prompt_data|input_key|label_key|apply_chat_template|rollout|rm_|num_rollout|"
    r"n_samples|balance_data|advantage|use_kl|kl_|entropy|eps_clip|use_dynamic_batch|max_tokens_per_gpu|eval_|sglang|num_gpus|num_epoch|"
    r"reward|custom_|dynamic_sampling|over_sampling|partial_rollout|use_tis|tis_|use_rollout|use_slime|update_weight|offload|"
    r"num_steps_per|metadata_key|tool_key|multimodal|disable_compute|calculate_per|use_fault|keep_old|loss_type|loss_mask|normalize|"
    r"gamma|lambd|debug_|save_debug|load_debug|use_opsm|opsm|mask_offpolicy|use_routing|prefill|router_|http|train_backend|megatron_to_hf|"
    r"log_probs|use_wandb|wandb|tensorboard_project|use_tensorboard|only_train|train_env|model_name|qkv_format|start_rollout|spec_name|"
    r"sft|log_multi|record_memory|memory_snapshot|chunked|release_train|group_rm|fully_async|enable_mtp_training|log_passrate|ci_|global_dataset|allgather_cp|"
    r"train_memory|delta_|p2p|data_pad|get_mismatch|megatron_config|use_unbiased|use_dynamic|check_weight|use_distributed_post|int4|fp8_param)")


# What says that a --spec of Qwen3-Next is the 80B, and the flags of its sizes.
NEXT = {("num_layers", "48"), ("hidden_size", "2048"), ("num_experts", "512"), ("moe_ffn_hidden_size", "512"), ("moe_router_topk", "10")}
MODEL_OWN = re.compile(
    r"^(num_layers|hidden_size|ffn_hidden|num_attention_heads|num_query|group_query|kv_channels|num_experts|moe_ffn|moe_router_topk|"
    r"moe_router_score|moe_shared_expert_(inter|gate)|moe_layer_freq|use_gated_attention|attention_output_gate|apply_layernorm_1p|"
    r"normalization|position_embedding|norm_epsilon|rotary_|swiglu|untie_|vocab_size|qk_layernorm|disable_bias|make_vocab)")


def slime(script, config):
    del config
    out, flags = Settings("slime", script.file), script.flags()
    own, preset = [], False
    names = [name for name, _, _ in flags]
    if script.program and "num_layers" not in names:
        raise Fault(f"{script.file}: slime's, and the command that trains gets no --num-layers: a line before them ends without a backslash, "
                    "or a variable names a model's script that is not here")
    for name, values, line in flags:
        theirs = flag_said(name, values)
        if name in ("eval_interval", "eval_iters") or SLIME_OWN.match(name):
            own.append(name)
            out.leave_out(theirs, "of its rollouts and rewards")
        elif name == "spec" and "qwen3_next" in theirs and NEXT <= {(n, " ".join(v)) for n, v, _ in flags}:
            give_preset(out, "qwen3-next-80b-a3b", "Qwen3-Next-80B-A3B of the --spec", script.place(line))
            preset = True
        elif name == "spec" and "qwen3_5" in theirs:
            raise Fault(f"{script.file}: slime's, of Qwen3.5, which sees ({theirs}): decoders of text are supported")
        elif name == "spec" and "glm5" in theirs:
            raise Fault(f"{script.file}: slime's, of GLM-5, with sparse attention ({theirs}): softmax attention alone is supported")
        elif preset and MODEL_OWN.match(name):
            out.ignore(theirs, "of the preset")
        elif name == "spec":
            out.refuse(theirs, script.place(line), "a layer of its own Python, which is not run")
        else:
            value = " ".join(values)
            if name == "moe_layer_freq":
                value = re.sub(r"[ ,]+", ", ", value) if value.startswith("[") and "*" not in value else value
            give(out, name, plain(value) if values else True, theirs, script.place(line))
    if own:
        out.hole("data.train", "prompts that its rollouts answer, and rewards; the recipe trains on tokens (`troupe data build --format chat`)")
        if not out.has("train-iters"):
            out.stand_in("train-iters", 1000, "train.steps", "--num-rollout counts rollouts there")
    if "multi_latent_attention" in names and "rope_type" not in names:
        out.default("rope-type", "yarn")
    if out.has("multi-latent-attention") and out.has("add-qkv-bias"):
        out.ignore(out.flags.pop("add-qkv-bias").theirs, "latent attention has no biases in Megatron-LM either")
    batch(out)
    return out


VERL_MODEL, VERL_OPTIM, VERL_RANKS = "actor_rollout_ref.model.path", "actor_rollout_ref.actor.optim", "actor_rollout_ref.actor.megatron"
VERL_OPTIM_NAMES = {"lr": "lr", "min_lr": "min-lr", "lr_warmup_steps": "lr-warmup-iters", "weight_decay": "weight-decay",
                    "clip_grad": "clip-grad", "lr_decay_style": "lr-decay-style", "lr_decay_steps": "lr-decay-iters",
                    "lr_warmup_steps_ratio": "lr-warmup-fraction"}


def verl(script, config):
    out, said = Settings("verl", script.file), {}
    for word, line in script.words:
        name, sign, value = word.partition("=")
        if sign and re.match(r"^[+~]*[A-Za-z_][\w.]*$", name):
            said[name.lstrip("+~")] = (value.strip("'\""), line)
    if re.search(r"main_(generation|eval)", script.program):
        raise Fault(f"{script.file}: verl's {script.program}: it generates or evaluates, and trains nothing")
    sft = "sft" in script.program
    root = "model.path" if "model.path" in said else "model.partial_pretrain" if "model.partial_pretrain" in said else VERL_MODEL
    if root not in said:
        raise Fault(f"{script.file}: verl's, and it names no {VERL_MODEL}: it generates or evaluates")
    model = said[root][0]
    refuse_sight("verl", script.file, model)
    give_model(out, model, script.place(said[root][1]), config)
    own = {root}

    def take(name, flag, otherwise=None):
        if name in said:
            own.add(name)
            value, line = said[name]
            give(out, flag, plain(value), f"{name}={value}", script.place(line))
        elif otherwise is not None:
            out.default(flag, otherwise, name)

    optim = "optim" if sft else VERL_OPTIM
    for name, flag in VERL_OPTIM_NAMES.items():
        take(f"{optim}.{name}", flag, {"lr": 1e-5 if sft else 1e-6, "weight_decay": 0.01, "clip_grad": 1.0,
                                       "lr_decay_style": "constant"}.get(name))
    if number(out.value("lr-warmup-iters"), 0) < 0:
        out.flags.pop("lr-warmup-iters")
    if out.value("lr-decay-style") == "constant":
        out.flags.pop("min-lr", None)
        out.flags.pop("lr-decay-iters", None)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
                 "expert_tensor_parallel_size"):
        take(f"{VERL_RANKS}.{name}", name)
    transformer = f"{VERL_RANKS}.override_transformer_config."
    for name in [name for name in said if name.startswith(transformer)]:
        take(name, name[len(transformer):])
    verl_batch(out, said, own, sft)
    project, run = (said.get(f"trainer.{one}_name", (otherwise, 0))[0] for one, otherwise in (("project", "verl_examples"), ("experiment", "gsm8k")))
    take("trainer.default_local_dir", "save", f"checkpoints/{project}/{run}")
    if "actor_rollout_ref.actor.optim.betas" in said:
        text, line = said["actor_rollout_ref.actor.optim.betas"]
        own.add("actor_rollout_ref.actor.optim.betas")
        for flag, value in zip(("adam-beta1", "adam-beta2"), text.strip("[]()").split(",")):
            out.give(flag, value.strip(), f"actor_rollout_ref.actor.optim.betas={text}", script.place(line))
    take("trainer.save_freq", "save-interval")
    if number(out.value("save-interval"), 1) <= 0:
        out.flags.pop("save-interval")
    out.give("bf16", True, "the model's own type")
    rank = next((said[n][0] for n in ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank", "model.lora_rank") if n in said), 0)
    if number(rank, 0):
        verl_adapters(out, said, own, rank)
    out.stand_in("train-iters", 1000, "train.steps", f"trainer.total_epochs={said.get('trainer.total_epochs', ('its default', 0))[0]} of the data")
    out.hole("data.train", ("questions whose answers alone are learned" if sft else "prompts that its rollouts answer, and rewards; the recipe "
                            "trains on tokens") + ": `troupe data build FILE --format chat -o DATA`")
    for name, (value, _) in said.items():
        if name not in own:
            out.leave_out(f"{name}={value}", "of its rollouts, rewards, data or engines")
    return out


def verl_adapters(out, said, own, rank):
    names = [n for n in said if re.search(r"model\.lora[._](rank|alpha|dropout|target_modules)$", n) or n.endswith(".target_modules")]
    own.update(names)
    alpha = next((said[n][0] for n in names if n.endswith("alpha")), 32 if "actor_rollout_ref.model.lora.rank" in said else 16)
    if dropout := next((number(said[n][0]) for n in names if n.endswith("dropout")), 0):
        out.set("model.lora.dropout", dropout, f"lora.dropout={dropout:g}")
    out.set("model.lora.rank", int(number(rank)), f"lora_rank={rank}")
    out.set("model.lora.alpha", number(alpha), f"lora_alpha={alpha}")
    modules = next((said[n][0] for n in names if n.endswith("target_modules")), "all linear layers")
    everything = not re.search(r"linear_|_proj", modules)
    targets = ["attention"] if everything or re.search(r"qkv|linear_proj|[qkvo]_proj", modules) else []
    if everything or re.search(r"fc[12]|up_proj|down_proj|gate_proj", modules):
        targets.append("experts" if out.has("num-experts") else "ffn")
    out.set("model.lora.targets", targets, f"target_modules: {modules}")


def verl_batch(out, said, own, sft):
    def of(name, otherwise):
        own.add(name)
        return number(said.get(name, (otherwise, 0))[0])

    if sft:
        whole, length = of("data.train_batch_size", 256), of("data.max_length", 1024)
        theirs = f"data.train_batch_size={whole:g}"
        micro = of("data.micro_batch_size_per_gpu", 4)
    else:
        pieces, answers = of("actor_rollout_ref.actor.ppo_mini_batch_size", 256), of("actor_rollout_ref.rollout.n", 1)
        whole = pieces * answers if pieces and answers else None
        theirs = f"actor_rollout_ref.actor.ppo_mini_batch_size={pieces}, actor_rollout_ref.rollout.n={answers}"
        prompt, answer = of("data.max_prompt_length", 512), of("data.max_response_length", 512)
        length = prompt + answer if prompt and answer else None
        micro = of("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 1)
    if whole:
        out.give("global-batch-size", int(whole), theirs)
    if length:
        out.give("seq-length", int(length), "data.max_length" if sft else "data.max_prompt_length and data.max_response_length")
    else:
        batch(out)
    out.give("micro-batch-size", int(micro or 1), "a microbatch of one GPU")


def kind_of(script):
    names = {name for name, _, _ in script.flags()}
    if script.program.startswith(("megatron ", "swift ")):
        return "ms-swift" if script.program.startswith("megatron ") else "ms-swift of transformers"
    if "verl" in script.program:
        return "verl"
    if is_pai(names):
        return "Pai-Megatron-Patch"
    own = {"rollout_batch_size", "num_rollout", "hf_checkpoint", "actor_num_nodes", "rollout_function_path"}
    text = inlined(script.file)[0]
    if own & names or "slime" in text or "MODEL_ARGS=(" in text:
        return "slime"
    if "mindspeed" in text.lower() or "NPUS_PER_NODE" in text or {"tokenizer_name_or_path", "handler_name"} & names:
        return "MindSpeed-LLM"
    return None


PROJECTS = ("ms-swift", "slime", "verl", "MindSpeed-LLM", "Pai-Megatron-Patch")
READERS = {"ms-swift": swift, "ms-swift of transformers": swift_sft, "slime": slime, "verl": verl, "MindSpeed-LLM": mindspeed,
           "Pai-Megatron-Patch": pai}


def asked_for(script):
    """Variables without which the script ends early: as the notes say, or by a test of its own with an exit behind it."""
    noted = {name for note in script.notes for name in re.findall(r"--variable (\w+)=VALUE", shown(note))} - {"NAME"}
    test = r"-z [\"']?\$\{?(\w+)[^\n]*\bthen\n(?:(?!\s*fi\b)[^\n]*\n){0,3}?\s*exit\b"
    return noted | set(re.findall(test, script.file.read_text()))


def read(file, troupe, variables, config):
    script = Script(file, troupe, variables)
    kind = kind_of(script)
    whose = (kind or "").split(" ")[0]
    if kind is None:
        raise Fault(f"{file}: is a script of none of {', '.join(PROJECTS)}: `troupe convert recipe` reads Megatron-LM's")
    ends = sorted(asked_for(script) - {one.partition("=")[0] for one in variables})
    if not script.program and ends and not any(word.startswith("--num-layers") for word, _ in script.words):
        raise Fault(f"{file}: {whose}'s, and without them it ends before it trains: give " + " ".join(f"--variable {one}=VALUE" for one in ends))
    if not script.words:
        raise Fault(f"{file}: {whose}'s, and it passes no flags to a program that trains")
    out = READERS[kind](script, config)
    for note in script.notes:
        out.note(shown(note))
    return out
