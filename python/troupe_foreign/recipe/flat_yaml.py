"""Settings of Megatron-LM as YAML of one's own layout: Primus (a model's file, a trainer's, and what an experiment overrides) and
FlagScale (an experiment's file, and the one of `defaults` that has system, model and data)."""
import pathlib
import re

from .common import give, number, shown, weights_of, yaml_of
from .settings import Fault, Settings

DEPTH = 12
# Of Primus alone, or of its patches of Megatron-LM: how fast it runs, and what it logs.
PRIMUS_SPEED = re.compile(
    r"^(use_turbo_|enable_primus_turbo|turbo_|primus_turbo|enable_turbo|moe_use_fused_router|use_deprecated_|fused_padded_mla|"
    r"patch_|disable_wgrad|pp_warmup|recompute_layer_ids|dump_pp_data|use_rocm_mem_info|disable_tensorboard|disable_wandb|"
    r"disable_mlflow|mlflow|stderr_sink|file_sink|trace_|enable_torch_compile|torch_compile|precise_|profile|disable_compile|"
    r"disable_profiler|torch_profiler|pytorch_profiler|no_fp8_weight_transpose|overlap_grad_|disable_primus_topk|moe_tp_|log_|auto_continue_train|"
    r"disable_last_saving|use_legacy_models|deprecated_|cross_entropy_|enable_experimental|zero_|patch|gemm_|use_te_|vp_|"
    r"moe_deepep|deepep|manual_gc|num_workers|distributed_|nccl_|sync_free|fp8_dispatch|offload|attn_warmup|decoder_pipeline_manual|"
    r"pipeline_model_parallel_comm|ddp_|tokenizer_hf|wandb_|tensorboard_|barrier_|hip_|ck_|aiter|warmup_attn|"
    r"disable_delayed|enable_odc$|odc_)")
# Its base files have the settings of every program of Megatron-LM: these of BERT, T5, retrievers and models that see.
OTHER_PROGRAMS = re.compile(r"^(vision_|retriever_|ict_|bert_|biencoder|img_|num_classes|num_channels|patch_|dino_|iter_per_epoch|"
                            r"classes_fraction|mask_|short_seq|block_data|embedding_path|indexer|query_in|titles|use_one_sent|swin|"
                            r"encoder_|decoder_seq|decoder_num_layers|sample_rate|hybrid_|mamba_|inference_|retro_|vocab_extra_ids)")
# How it renders and packs chats; variables of its environment are in capitals.
PRIMUS_DATA = re.compile(r"^(sft_(dataset|conversation|bridge)|enable_packed_sequences|use_packed_attention)")
SINKS = ("use_sink_attention", "sink_sliding_window", "sink_window_even_layers_only")
PRIMUS_RUN = {"trainable", "framework", "config", "model", "name", "model_type", "yaml_cfg", "batch_size"}


def filled(value, environment):
    """${NAME:default} and ${NAME}: of the environment that was given; nothing where neither says one."""
    if not isinstance(value, str):
        return value
    found = re.sub(r"\$\{([A-Za-z_]\w*):?-?([^}]*)\}", lambda m: environment.get(m[1], m[2]), value)
    if found == value:
        return value
    if found in ("", "null", "None"):
        return None
    return {"true": True, "false": False}.get(found, found)


def with_base(path, depth=0):
    """A Primus file over those that it extends: {key: (value, place, whether it is the file's own)}."""
    if depth > DEPTH:
        raise Fault(f"{path}: extends itself")
    content, lines = yaml_of(path)
    out = {}
    content = content or {}
    for base in [*content.get("extends", []), *content.get("bases", []), *content.get("includes", [])]:
        if (path.parent / base).is_file():
            out.update(with_base(path.parent / base, depth + 1))
    out.update({k: (v, f"{path.name}:{lines.get(k, 1)}") for k, v in content.items() if k not in ("extends", "bases", "includes")})
    return out


def above(file, inside):
    """The folder that has `inside`, of those around the file."""
    return next((p / inside for p in file.resolve().parents if (p / inside).is_dir()), None)


def primus(file, troupe, variables, config):
    del troupe, config
    environment = dict(one.split("=", 1) for one in variables)
    content, lines = yaml_of(file)
    modules = content.get("modules") or {}
    name = next((n for n in ("pre_trainer", "sft_trainer", "post_trainer") if n in modules), None)
    if name is None:
        raise Fault(f"{file}: Primus's, of the modules {', '.join(modules) or 'none'}: only pre_trainer and sft_trainer of Megatron are read")
    module = modules[name]
    framework = module.get("framework")
    if framework != "megatron":
        raise Fault(f"{file}: Primus's, for {framework}: only its Megatron settings are read")
    configs = above(file, "primus/configs")
    model = str(filled(module.get("model"), environment))
    if configs is None or not (configs / "models/megatron" / model).is_file():
        raise Fault(f"{file}: Primus's; the model's file primus/configs/models/megatron/{model} is not in a folder around it")
    out = Settings("Primus", file)
    base = with_base(configs / "models/megatron" / model)
    trainer = configs / "modules/megatron" / str(module.get("config"))
    if trainer.is_file():
        base = with_base(trainer) | base
    own = {k: (v, f"{file}:{lines.get(f'modules.{name}.overrides.{k}', 1)}") for k, v in (module.get("overrides") or {}).items()}
    merged = {key: (filled(value, environment), place) for key, (value, place) in (base | own).items()}
    refuse_kinds(file, {key: value for key, (value, _) in merged.items()})
    for key, (value, place) in merged.items():
        primus_setting(out, key, value, place, soft=key not in own)
    if name == "sft_trainer":
        out.hole("data.train", "questions whose answers alone are learned: `troupe data build --format chat` makes token files of them")
    give_sinks(out, {key: value for key, (value, _) in merged.items() if value is not None})
    own_defaults(out)
    return out


def refuse_kinds(file, merged):
    kind = str(merged.get("model_type", "gpt"))
    if kind not in ("gpt", "None"):
        raise Fault(f"{file}: Primus's, of a {kind} model: no recipe is made of it")
    if merged.get("lfm_layer_types"):
        raise Fault(f"{file}: Primus's, of LFM2: layers of convolutions are not supported")
    for key in ("final_logit_softcapping", "attn_logit_softcapping", "router_logit_softcapping"):
        if merged.get(key):
            raise Fault(f"{file}: Primus's, of Grok: {key} is not supported")


def own_defaults(out):
    """What Megatron-LM takes from other settings, and Primus writes as null."""
    if out.value("max-position-embeddings") is None and out.has("seq-length"):
        out.give("max-position-embeddings", out.value("seq-length"), "seq_length, for max_position_embeddings: null")
    if out.has("bf16"):
        out.flags.pop("fp16", None)
    if not out.has("multi-latent-attention"):  # whose sizes its base files always have
        for flag in ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim", "mscale", "mscale-all-dim",
                     "rotary-scaling-factor", "original-max-position-embeddings"):
            out.flags.pop(flag, None)
    if not out.has("num-experts"):
        for flag in [flag for flag in out.flags if flag.startswith("moe-")]:
            out.flags.pop(flag)
    if not out.has("use-rope-scaling"):
        out.flags.pop("rope-scaling-factor", None)
    if out.value("optimizer", "adam") not in ("muon", "dist_muon"):
        for flag in [flag for flag in out.flags if flag.startswith("muon-")]:
            out.flags.pop(flag)
    if not out.has("fp8-format"):
        for flag in [flag for flag in out.flags if flag.startswith("fp8-")]:
            out.flags.pop(flag)
    if not out.has("fp16"):
        for flag in ("initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"):
            out.flags.pop(flag, None)
    if out.value("lr-decay-style") != "WSD":
        out.flags.pop("lr-wsd-decay-style", None)
    if float(out.value("lr-warmup-fraction", 0) or 0):
        out.flags.pop("lr-warmup-iters", None)
    for flag in ("lr-warmup-samples",):
        if out.value(flag) in (0, "0"):
            out.flags.pop(flag, None)


def give_sinks(out, said):
    """Primus's own attention of gpt-oss: a learned sink of each head, and a window in all layers or in every second."""
    if not said.get("use_sink_attention"):
        return
    out.set("model.sinks", True, f"use_sink_attention: {shown(said['use_sink_attention'])}")
    if (window := number(said.get("sink_sliding_window"), 0)) > 0:
        out.set("model.window", int(window), f"sink_sliding_window: {shown(said['sink_sliding_window'])}")
        out.set("model.window_layers", "2" if said.get("sink_window_even_layers_only", True) else "1", "sink_window_even_layers_only")


def primus_setting(out, key, value, place, soft):
    theirs = f"{key}: {shown(value)}"
    if key in PRIMUS_RUN or value is None or isinstance(value, (dict,)) or value in ([], {}):
        return
    if soft and OTHER_PROGRAMS.match(key):
        return
    if PRIMUS_SPEED.match(key):
        out.flags.pop(key.replace("_", "-"), None)
        if value and not soft:
            out.ignore(theirs, "speed, memory or logs of Primus")
        return
    if key == "stage" and value == "sft" or PRIMUS_DATA.match(key) or key.isupper():
        out.ignore(theirs, "a variable of its environment" if key.isupper() else "of its data: `troupe data build --format chat` has what it means")
        return
    if key == "hf_path":
        weights_of(out, str(value))
        return
    if key == "virtual_pipeline_model_parallel_size":
        out.give("num-virtual-stages-per-pipeline-rank", value if number(value, 2) > 1 else None, theirs, place)
        return
    if key in SINKS:
        return  # give_sinks reads them together
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if key in ("bf16", "fp16") and value is True:
        out.flags.pop({"bf16": "fp16", "fp16": "bf16"}[key], None)
    give(out, key, value, theirs, place, soft)


FLAGSCALE_NAMES = {"tokenizer_path": "tokenizer-model", "no_shared_fs": None, "wandb_mode": None, "wandb_log_model": None,
                   "wandb_log_model_interval": None, "special_tokens_file": None, "no_initialization_for_load": None}


def interpolated(value, whole, depth=0):
    """${a.b.c}, and ${now:...} and the like left as they are."""
    if not isinstance(value, str) or depth > DEPTH:
        return value
    if found := re.fullmatch(r"\$\{([\w.]+)\}", value):
        at = whole
        for part in found[1].split("."):
            at = at.get(part) if isinstance(at, dict) else None
        return interpolated(at, whole, depth + 1)
    return value


def flattened(content, path=""):
    """(path, value) of each leaf."""
    for key, value in content.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict):
            yield from flattened(value, name)
        else:
            yield name, value


def flagscale(file, troupe, variables, config):
    del troupe, variables, config
    content, _ = yaml_of(file)
    experiment = content.get("experiment") or {}
    part = file
    if "system" not in content or "model" not in content:
        part = named_part(file, content)
    settings, lines = yaml_of(part)
    around = next((yaml_of(p)[0] for p in sorted(part.parent.parent.glob("train*.yaml")) if p != part and "defaults" in (yaml_of(p)[0] or {})
                   and part.stem in str(yaml_of(p)[0]["defaults"])), {}) if not experiment else content
    whole = dict(around or {}, **{k: settings[k] for k in ("system", "model", "data") if k in settings})
    task = (whole.get("experiment") or {}).get("task") or {}
    if task.get("type", "train") != "train" or task.get("backend", "megatron") != "megatron":
        raise Fault(f"{file}: FlagScale's, {task.get('type')} by {task.get('backend')}: only Megatron's training is read")
    if (settings.get("system") or {}).get("hetero", {}).get("enable_hetero"):
        raise Fault(f"{file}: FlagScale's, over machines of several kinds (hetero): each rank has its own layout there")
    out = Settings("FlagScale", file)
    for name, value in flattened({k: settings.get(k) or {} for k in ("system", "model", "data")}):
        flagscale_setting(out, name, interpolated(value, whole), f"{part}:{lines.get(name, 1)}")
    if not out.has("save") and (directory := experiment.get("exp_dir")) and "$" not in str(directory):
        out.give("save", f"{directory}/checkpoints", f"experiment.exp_dir: {directory}")
    if not out.has("seed") and (seed := (whole.get("experiment") or {}).get("seed")) is not None:
        out.give("seed", seed, f"experiment.seed: {seed}")
    return out


def named_part(file, content):
    """The file of `defaults: [train: NAME]`."""
    for one in content.get("defaults") or []:
        if isinstance(one, dict) and "train" in one and (path := file.parent / "train" / f"{one['train']}.yaml").is_file():
            return path
    kinds = ", ".join(str(k) for one in content.get("defaults") or [] if isinstance(one, dict) for k in one)
    raise Fault(f"{file}: FlagScale's, of {kinds or 'no'} settings: only those of `train` that stand beside it are read")


def flagscale_setting(out, name, value, place):
    key, theirs = name.split(".")[-1], f"{name}: {shown(value)}"
    if key in FLAGSCALE_NAMES and FLAGSCALE_NAMES[key] is None:
        out.ignore(theirs, "how FlagScale runs and logs")
        return
    if value in (None, "None", "null", []):
        return
    if name.startswith("data.tokenizer.") and key == "tokenizer_type":
        out.ignore(theirs, "the tokenizer's file says what it is")
        return
    if isinstance(value, str) and value.startswith("<"):
        value = f"${key.upper()}"
    if key == "split" and str(value) == "1":
        out.give("split", "1,0,0", theirs, place)
        return
    if isinstance(value, list):
        value = " ".join(map(str, value))
    give(out, FLAGSCALE_NAMES.get(key) or key, value, theirs, place)
