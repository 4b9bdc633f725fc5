"""Launch scripts of Pai-Megatron-Patch: flags of Megatron-LM, some under other names, and a vocabulary that its tokenizer says. Most scripts
take all their values as arguments, which --arguments gives."""
import re

from .common import flag_said, give, number, plain
from .settings import Fault, Settings

NAMES = {"qk_nope_head_dim": "qk-head-dim", "qk_rope_head_dim": "qk-pos-emb-head-dim", "train_data_path": "data-path",
         "rotary_scale_factor": "rotary-scaling-factor"}
IGNORED = re.compile(r"^(max_padding_length|patch_tokenizer_type|dataset$|valid_data_path|dataloader_type|transformer_type|use_mcore|"
                     r"external_cuda|cuda_graph|te_rng|enable_|moe_layer_recompute|moe_shared_expert_overlap|optimizer_offload|"
                     r"sft_packing|swap_|cross_entropy|moe_(use_)?deepep|moe_flex|context_parallel_algo|num_fewshot|enable_shared_expert$)")
# Tokens that a tokenizer has without --extra-vocab-size: (its kind there, the extra that goes with it) where a kind has several sizes.
TOKENS = {"Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "LLama2Tokenizer": 32000, "MixtralTokenizer": 32000, "LLama3Tokenizer": 128000,
          ("DeepSeekV2Tokenizer", 2400): 100000, ("DeepSeekV2Tokenizer", 467): 128813, ("DeepSeekV2Tokenizer", 0): 163840}
UNSET = re.compile(r"^\$\{?\w*_options?\}?$")  # a group of flags that the script puts in under another condition
OPEN = re.compile(r"\$\{?(\d+)\}?")


def is_pai(names):
    return bool(names & {"patch_tokenizer_type", "extra_vocab_size", "max_padding_length"})


def vocabulary(out, said, place):
    """`padded_vocab_size`, as its tokenizer's code counts."""
    kind, extra = said.get("patch_tokenizer_type", ""), number(said.get("extra_vocab_size", 0))
    if number(said.get("padded_vocab_size"), 0):
        value, theirs = int(number(said["padded_vocab_size"])), f"--padded_vocab_size {said['padded_vocab_size']}"
    elif extra is not None and (tokens := TOKENS.get(kind) or TOKENS.get((kind, int(extra)))):
        value, theirs = tokens + int(extra), f"--extra_vocab_size {int(extra)}, beside {tokens} of the {kind}"
    else:
        out.stand_in("vocab-size", 32000, "model.vocab", f"the tokens of the {kind or 'tokenizer'} at --load, and --extra_vocab_size")
        return
    out.give("vocab-size", value, theirs, place)
    out.default("make-vocab-size-divisible-by", 1)


def given(script):
    """Its flags, without the groups of flags that a condition leaves out."""
    return [(name, [value for value in values if not UNSET.match(value)], line) for name, values, line in script.flags()]


def check_arguments(script, flags):
    """A script whose arguments are not given says no model."""
    missing = sorted({int(found[1]) for _, values, _ in flags for value in values if (found := OPEN.fullmatch(value))})
    sizes = {name: " ".join(values) for name, values, _ in flags}.get("num_layers", "")
    if sizes.startswith("$") or missing:
        count = max((int(n) for n in re.findall(r"\$\{?(\d+)\}?", script.file.read_text())), default=0)
        raise Fault(f"{script.file}: Pai-Megatron-Patch's, and its values are {count} arguments: give them as its README does, "
                    "--arguments \"dlc A3B 1 8 ...\" (or --variable 2=A3B)"
                    + (f"; without a value are {', '.join(f'${n}' for n in missing)}" if missing else f"; without them --num-layers is {sizes}"))


def pai(script, config):
    del config
    out, flags = Settings("Pai-Megatron-Patch", script.file), given(script)
    check_arguments(script, flags)
    said = {name: " ".join(values) for name, values, _ in flags}
    for name, values, line in flags:
        text, place = " ".join(values), script.place(line)
        theirs = flag_said(name, values)
        if name in ("padded_vocab_size", "extra_vocab_size", "train_mode"):
            continue
        if IGNORED.match(name):
            out.ignore(theirs, "speed, memory, or how its data are read")
        elif name == "use_rope_scaling" and "multi_latent_attention" in said:
            out.ignore(theirs, "latent attention has --rope-type in its place")
        elif name in ("moe_router_num_groups", "moe_router_group_topk") and number(said.get("moe_router_num_groups")) == 1:
            out.ignore(theirs, "one group of experts limits nothing")
        elif name == "q_lora_rank" and number(text) == 0:
            out.ignore(theirs, "queries of full rank")
        elif name == "sliding_window" and number(text, 0) >= (number(said.get("seq_length")) or float("inf")):
            out.ignore(theirs, "no sequence is longer")
        else:
            give(out, NAMES.get(name, name), plain(text) if values else True, theirs, place)
    vocabulary(out, said, str(script.file))
    own_layers(out, script)
    own_data(out, said)
    return out


def own_layers(out, script):
    """What its Python of a model adds, without a flag."""
    if script.program.endswith("pretrain_qwen2_moe.py") and out.has("moe-shared-expert-intermediate-size"):
        out.give("moe-shared-expert-gate", True, "the gate of shared experts of pretrain_qwen2_moe.py")
    frequency, layers = number(out.value("moe-layer-freq")), number(out.value("num-layers"))
    if script.program.endswith("pretrain_deepseek.py") and frequency and layers:  # "a layer behind this number", and not "each so many"
        dense = int(frequency)
        out.give("moe-layer-freq", f"([0]*{dense}+[1]*{int(layers) - dense})", f"--moe_layer_freq {dense}: the first are dense in its DeepSeek-V2")
        out.note("its DeepSeek-V2 has a copy of Megatron-LM's latent attention: compare model.rope.mscale and mscale_all_dim with the model's")
    out.default("max-position-embeddings", out.value("seq-length", 4096), "seq_length")


def own_data(out, said):
    if "load" in said:
        out.flags.pop("load", None)
        out.hole("checkpoint.init_from", f"--load {said['load']}: `troupe import FOLDER RUN` makes RUN/step-000000 of a model of Hugging Face")
    if said.get("train_mode") == "finetune" or said.get("dataset", "").startswith("JSON"):
        out.flags.pop("data-path", None)
        out.hole("data.train", "questions whose answers alone are learned: `troupe data build FILE --format chat -o DATA` makes token files of them")
