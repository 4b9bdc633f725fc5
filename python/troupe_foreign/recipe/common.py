"""What several readers share: switches that are off, the model that a file names, YAML with its lines."""
import json

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
                         "bert_binary_head", "fp8_wgrad", "add_position_embedding", "use_mcore_models", "tp_comm_bulk_wgrad",
                         "tp_comm_bulk_dgrad", "tp_comm_overlap_ag", "tp_comm_overlap_rs", "tp_comm_split_ag", "tp_comm_split_rs"}
RENAMED = {"fp8": "fp8-format", "fp4": "fp4-format", "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32"}


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


def give_model(settings, name, place, config=None, weights=True):
    """The flags of the model that a hub's name or a path says, or all of `model` to be filled in."""
    facts = json.loads(config.read_text()) if config else hub_models.MODELS.get(hub_models.known_name(name) or "")
    flags = hub_models.flags_of(facts) if facts else None
    if flags is None:
        settings.model_open = True
        settings.hole("model", f"{name} is not a model that is known here: --config config.json reads its sizes, or take the `model:` "
                      "that `troupe import FOLDER RUN` writes")
        flags = hub_models.flags_of(hub_models.MODELS["qwen3-0.6b"])
    for flag, value in flags:
        if not settings.has(flag):
            settings.give(flag, value, f"{flag.replace('-', '_')}: {value}, of {name}", place)
    if weights:
        settings.hole("checkpoint.init_from", f"the weights of {name}: `troupe import FOLDER RUN` makes RUN/step-000000 of them")


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
