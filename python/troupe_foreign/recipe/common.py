"""What several readers share: switches that are off, the model that a file names, YAML with its lines."""
import json
import pathlib
import re

from . import hub_models
from .settings import STAND_IN, Fault

# What Megatron-LM has switched on, and a flag switches off.
OFF = {
    "add_bias_linear": "disable-bias-linear", "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "apply_rope_fusion": "no-rope-fusion", "masked_softmax_fusion": "no-masked-softmax-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion", "bias_dropout_fusion": "no-bias-dropout-fusion",
    "bias_gelu_fusion": "no-bias-gelu-fusion", "use_flash_attn": None, "overlap_p2p_comm": "no-overlap-p2p-communication",
    "check_for_nan_in_loss_and_grad": "no-check-for-nan-in-loss-and-grad", "load_optim": "no-load-optim", "load_rng": "no-load-rng",
    "save_optim": "no-save-optim", "save_rng": "no-save-rng", "mmap_bin_files": "no-mmap-bin-files",
}
ON_ALREADY = set(OFF) | {"bias_activation_fusion", "ckpt_fully_parallel_save", "perform_initialization", "align_grad_reduce",
                         "align_param_gather", "enable_gloo_process_groups", "gradient_reduce_div_fusion", "manual_gc_eval",
                         "create_attention_mask_in_dataloader", "clone_scatter_output_in_embedding", "barrier_with_L1_time",
                         "async_tensor_model_parallel_allreduce", "use_tokenizer_model_from_checkpoint_args", "pin_cpu_grads",
                         "pin_cpu_params", "exit_on_missing_checkpoint", "scatter_gather_tensors_in_pipeline", "data_sharding",
                         "bert_binary_head", "fp8_wgrad", "add_position_embedding", "use_mcore_models", "persist_layer_norm", "tp_comm_bulk_wgrad",
                         "tp_comm_bulk_dgrad", "tp_comm_overlap_ag", "tp_comm_overlap_rs", "tp_comm_split_ag", "tp_comm_split_rs"}
RENAMED = {"fp8": "fp8-format", "fp4": "fp4-format", "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32",
           "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers", "num_moe_experts": "num-experts",
           "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers"}


def give(settings, name, value, theirs, place="", soft=False):
    """A setting of Megatron-LM's under the name that its Python has: "add_bias_linear: false" is --disable-bias-linear."""
    key = name.replace("-", "_")
    flag = RENAMED.get(key, key.replace("_", "-"))
    if value is True and key in ON_ALREADY:
        if OFF.get(key):
            settings.flags.pop(OFF[key], None)
        settings.ignore(theirs, "on by default in Megatron-LM")
    elif value is False and OFF.get(key):
        settings.give(OFF[key], True, theirs, place, soft)
    else:
        settings.give(flag, value, theirs, place, soft)


SEES = re.compile(r"VL|Omni|InternVL|Ovis|GLM-4\.\dV|Kimi-VL|vl-|Qwen3\.[56]|[Ll]lama-4|[Gg]emma-?4|diffusion|OCR|Mistral-Small-4")


def refuse_sight(whose, file, model, said=False):
    """Models that see, whose texts are not trained alone either: their layers are others. By the name, or where a setting has `said` so."""
    if said or SEES.search(model):
        raise Fault(f"{file}: {whose}'s, of a model that sees or hears ({model}): decoders of text are supported")


def give_model(settings, name, place, config=None, weights=True):
    """The flags of the model that a hub's name or a path says, or all of `model` to be filled in."""
    if not config and hub_models.preset_of(name):
        give_preset(settings, hub_models.preset_of(name), name, place)
        return
    facts = json.loads(config.read_text()) if config else hub_models.MODELS.get(hub_models.known_name(name) or "")
    flags = hub_models.flags_of(facts) if facts else None
    if facts and facts.get("model_type") == "deepseek_v2" and facts.get("n_group", 1) > 1:
        for key, value in (("groups", facts["n_group"]), ("keep", facts["topk_group"]), ("top", 1)):
            settings.set(f"model.moe.router.limit.{key}", value, f"group_limited_greedy, of {name}")
    if flags is None:
        settings.model_open = True
        name = name or "a name that the file leaves empty"
        settings.hole("model", f"{name} is not a model that is known here: --config config.json reads its sizes, or take the `model:` "
                      "that `troupe import FOLDER RUN` writes")
        flags = hub_models.flags_of(hub_models.MODELS["qwen3-0.6b"])
    for flag, value in flags:
        if not settings.has(flag):
            settings.give(flag, value, f"{flag.replace('-', '_')}: {value}, of {name}", place)
    if weights:
        weights_of(settings, name)


def weights_of(settings, name):
    settings.hole("checkpoint.init_from", f"the weights of {name}: `troupe import FOLDER RUN` makes RUN/step-000000 of them")


def give_preset(settings, preset, name, place):
    """A model that is a preset of the program. The flags of another mixture stand in for its sizes and go with their section."""
    settings.preset = preset
    settings.stood_in = f", in place of {preset}"
    layers, experts, shared, _ = hub_models.PRESETS[preset]
    flags = dict(hub_models.flags_of(hub_models.MODELS["qwen3-30b-a3b"])) | {"num-layers": layers, "num-experts": experts}
    if shared:
        flags["moe-shared-expert-intermediate-size"] = shared
    for flag, value in flags.items():
        settings.give(flag, value, f"{flag}{settings.stood_in}", place)
    settings.set("model.preset", preset, f"the model {name}")
    weights_of(settings, name)


def give_tokenizer(settings):
    """A tokenizer of a hub is no file: its folder is to be filled in."""
    one = settings.flags.get("tokenizer-model")
    if one and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(one.value)) and not re.search(r"\.(model|json)$", one.value) \
            and not pathlib.Path(one.value).exists():
        del settings.flags["tokenizer-model"]
        settings.hole("data.tokenizer", f"{one.theirs}: the folder of its files, where text is read and not token files")


def settle_dropout(settings):
    """Adapters of experts that are over ranks take no dropout here."""
    targets = settings.own.get("model.lora.targets", ([], ""))[0]
    if "experts" in targets and "model.lora.dropout" in settings.own and number(settings.value("expert-model-parallel-size"), 1) > 1:
        dropout, theirs = settings.own.pop("model.lora.dropout")
        settings.note(f"{theirs}: left out, as adapters of experts that are over ranks take none here: `parallel: {{expert: 1, shard: full}}` and "
                      f"`model.lora.dropout: {dropout:g}` have it")


def number(value, otherwise=None):
    try:
        return float(value)
    except (TypeError, ValueError):
        return otherwise


def whole(value):
    """1 of "1", 1.0 and "1.0"; else nothing."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def plain(text):
    """A word of a script or of hydra as what it says: true, a number, a text."""
    if not isinstance(text, str):
        return text
    word = text.strip().strip("'\"")
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("null", "none", ""):
        return None
    return word


def yaml_of(path):
    """(value, {path: line}) of a YAML file; a key's path has its names with dots between."""
    try:
        import yaml
    except ImportError:
        raise Fault("reading YAML needs PyYAML: pip install pyyaml") from None
    text = path.read_text()
    try:
        value, lines = yaml.safe_load(text), {}
        _lines(yaml, yaml.compose(text, Loader=yaml.SafeLoader), "", lines)
    except (yaml.YAMLError, RecursionError) as e:
        raise Fault(f"{path}: is no YAML: {' '.join(str(e).split())}") from None
    return value, lines


def _lines(yaml, node, path, out):
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            out[name] = key.start_mark.line + 1
            _lines(yaml, value, name, out)


def shown(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def flag_said(name, values):
    """A flag as the file has it, with underscores."""
    return "--" + " ".join([name, *values])


def batch(out):
    out.default("micro-batch-size", 1)
    if not out.has("seq-length"):
        out.stand_in("seq-length", 4096, "data.sequence", "the script gives no --seq-length")
    if not out.has("max-position-embeddings"):
        if out.flags["seq-length"].theirs == STAND_IN:
            out.stand_in("max-position-embeddings", 4096, "model.max_positions", "the script gives neither its --max-position-embeddings")
        else:
            out.default("max-position-embeddings", out.value("seq-length"), "seq_length")
    out.default("bf16", True)
