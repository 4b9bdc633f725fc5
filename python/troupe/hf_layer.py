"""A transformers MoE block as a troupe.MoE, and its state dict back.

    moe = troupe.MoE.from_hf(model.model.layers[3].mlp)       # its numbers, in a layer with losses, counters, recompute
    moe = troupe.MoE.from_hf(config)                          # its form alone, with initial values of ours
    block.load_state_dict(moe.to_hf_state_dict())

The gate's activation is found as troupe.hf finds it. What the router computes is found by numbers too: the first of the rules
below whose layer has the block's output on 32 rows, to 1e-4 of the largest, in f32.

    a balance bias    sigmoid or sqrtsoftplus scores, with and without their norm, scale and groups of the configuration
    none              softmax of the chosen logits; scores of all experts, plain or normalized, times the scale

A block that none fits, and a tensor of it that has no place in the layer, raise Unsupported; nothing is left out. A balance loss is
off unless the options say so: transformers' is the model's, over all layers."""
import copy
import importlib
import itertools
from typing import NamedTuple

import torch

from . import hf
from .checks import Unsupported
from .functional import _halves
from .layouts import check_whole
from .routers import Router

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Names(NamedTuple):
    """Where the layer's tensors are in the block, and how its experts' lie there."""

    block: str
    theirs: dict  # our name -> the block's
    shapes: dict  # the block's shapes, by name, of the tensors that our layout flattens
    columns: bool
    interleaved: bool


def _block_of(config):
    """A block of the configuration's model: the first module class of its file that holds experts."""
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    module = importlib.import_module(name)
    for kind in list(vars(module).values()):
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind.__module__ == name):
            continue
        if kind.__name__.endswith(("Block", "MoE", "Moe", "MLP", "Mlp")):
            try:
                made = kind(config)
            except (TypeError, AttributeError):  # of other arguments
                continue
            if hf.is_decorated(getattr(made, "experts", None)):
                with torch.no_grad():
                    for p in made.parameters():
                        p.normal_(std=0.3)
                return made
    raise Unsupported(f"from_hf: no class of {name} holds experts that ask transformers' registry")


def _names(block, binding):
    have = set(block.state_dict())
    gate = next((n for n in ("gate", "router") if f"{n}.weight" in have), None)
    if gate is None:
        raise Unsupported(f"from_hf: {type(block).__name__} has neither gate.weight nor router.weight; it has "
                          f"{', '.join(sorted(have))}. troupe.patch computes its experts as they are")
    up, down = hf.weight_names(block.experts)
    theirs = {f"gate.{n}": f"{gate}.{n}" for n in ("weight", "bias")}
    theirs |= {f"experts.{n}{end}": f"experts.{n}{end}" for n in (up, down) for end in ("", "_bias")}
    theirs["shared_expert_gate.weight"] = "shared_expert_gate.weight"
    for name in have:
        if name.endswith("e_score_correction_bias"):
            theirs["gate.e_score_correction_bias"] = name
        for p in PROJECTIONS:
            if name.startswith("shared_expert") and name.endswith(f".{p}.weight"):
                theirs[f"shared_experts.{p}.weight"] = name
    theirs = {ours: name for ours, name in theirs.items() if name in have}
    left = sorted(have - set(theirs.values()))
    if left:
        raise Unsupported(f"from_hf: {type(block).__name__} has tensors without a place in troupe.MoE: {', '.join(left)}. "
                          "troupe.patch computes its experts as they are")
    gate_of = binding.gate
    bias = theirs.get("gate.e_score_correction_bias")
    shapes = {} if bias is None else {bias: block.state_dict()[bias].shape}
    return Names(type(block).__name__, theirs, shapes, binding.columns, bool(gate_of and gate_of.interleaved))


def _turned(t, names):
    """An experts' tensor of theirs as [E, out, in], gate rows first."""
    if t.dim() == 3 and names.columns:
        t = t.transpose(1, 2)
    return t


def _state(block, names):
    """The block's tensors under our names."""
    theirs, out = block.state_dict(), {}
    for ours, name in names.theirs.items():
        t = theirs[name]
        if ours.startswith("experts."):
            t = _turned(t, names)
            t = _halves(t) if names.interleaved and "gate_up_proj" in ours else t
        out[ours] = (t.flatten() if name in names.shapes else t).contiguous()
    return out


def _rules(config, names):
    """Options of Router, likeliest first."""
    scales = [*dict.fromkeys([float(getattr(config, "routed_scaling_factor", None) or 1.0), 1.0])]
    groups, keep = getattr(config, "n_group", None) or 1, getattr(config, "topk_group", None) or 1
    if "gate.e_score_correction_bias" in names.theirs:
        limits = [(groups, keep, 2), None] if groups > 1 else [None]
        for score, scale, norm, limit in itertools.product(("sigmoid", "sqrtsoftplus"), scales, (True, False), limits):
            yield {"kind": "sigmoid_bias", "score": score, "norm_topk": norm, "scale": scale, "groups": limit}
        return
    for scale in scales:
        for order, norm in (("after", None), ("before", None), ("before", True)):
            yield {"order": order, "norm_topk": norm, "scale": scale}


def _output(module, x):
    with torch.no_grad():
        y = module(x)
    return y[0] if isinstance(y, tuple) else y


def _fitting(moe, block, config, names):
    """The router of ours with which the layer has the block's output, as options."""
    plain, theirs = copy.deepcopy(moe).float().eval(), copy.deepcopy(block).float().eval()
    device = plain.gate.weight.device
    x = torch.randn(1, 32, plain.gate.weight.shape[1], generator=torch.Generator().manual_seed(1)).to(device)
    want, nearest = _output(theirs, x), float("inf")
    weights, o = _state(theirs, names), moe.options
    for rule in _rules(config, names):
        if rule.get("order") == "after" and o.top_k == 1 and o.experts > 1:
            continue
        plain.gate = Router(x.shape[-1], o.experts, o.top_k, bias="gate.bias" in names.theirs, device=device, **rule)
        plain.load_state_dict(weights)
        far = ((_output(plain, x) - want).abs().max() / want.abs().max()).item()
        if far < 1e-4:
            return rule
        nearest = min(nearest, far)
    raise Unsupported(f"from_hf: no router of troupe.MoE gives the output of {names.block}; the nearest is {nearest:.1e} of the "
                      "largest away. troupe.patch computes its experts as they are")


def from_hf(kind, source, options):
    """The MoE of class `kind` that computes what a block does, or that a configuration describes."""
    block = source if isinstance(source, torch.nn.Module) else _block_of(source)
    experts = getattr(block, "experts", None)
    if not hf.is_decorated(experts):
        raise Unsupported(f"from_hf: {type(block).__name__} holds no experts that ask transformers' registry")
    if next(block.parameters()).device.type == "meta":
        raise Unsupported("from_hf: the block is on the meta device; what it computes is found by its numbers. Load it first")
    config, binding = experts.config, hf.bind(experts)
    if binding.path != "fused":
        raise Unsupported(f"from_hf: {type(experts).__name__}: {binding.why}. troupe.patch computes it as it is")
    names = _names(block, binding)
    state = _state(block, names)
    down, shared = state["experts.down_proj"], state.get("shared_experts.down_proj.weight")
    form = {"activation": binding.gate.activation, "gated": binding.gated, "clamp": binding.gate.clamp, "offset": binding.gate.offset,
            "bias": "experts.down_proj_bias" in state}
    if shared is not None:
        form |= {"shared": 1, "shared_hidden": shared.shape[1], "shared_gate": "shared_expert_gate.weight" in state}
    place = {"device": down.device, "dtype": down.dtype}
    gate = getattr(block, names.theirs["gate.weight"].split(".")[0])
    top_k = getattr(gate, "top_k", None) or getattr(config, "num_experts_per_tok", None)
    if top_k is None:
        raise Unsupported(f"from_hf: neither the gate of {names.block} nor its configuration says how many experts a token takes "
                          "(top_k, num_experts_per_tok)")
    made = {"width": down.shape[1], "experts": down.shape[0], "top_k": top_k, "hidden": down.shape[2], **form, **place}
    router = "sigmoid_bias" if "gate.e_score_correction_bias" in state else "topk_softmax"
    common = {"router": router, "router_bias": "gate.bias" in state, "balance": "none"}
    first = {"order": "before"} if router == "topk_softmax" else {}
    rule = _fitting(kind(**made, **common, **first), block, config, names)
    rule.pop("kind", None)
    moe = kind(**{**made, **common, **rule, **options})
    if source is block:
        moe.load_state_dict(state)
        moe.train(block.training)
    moe.hf_names = names
    return moe


def to_hf_state_dict(moe):
    """A layer's tensors under the names, and in the order, of the block that it came from."""
    names = getattr(moe, "hf_names", None)
    if names is None:
        raise Unsupported("to_hf_state_dict: this layer came from no transformers block; troupe.state_dict(moe, layout) writes the "
                          "names of model files")
    check_whole(moe, "to_hf_state_dict")
    own, out = moe.state_dict(), {}
    left = sorted(set(own) - set(names.theirs))
    if left:
        raise Unsupported(f"to_hf_state_dict: {names.block} has no place for {', '.join(left)}")
    for ours, name in names.theirs.items():
        t = own[ours]
        if ours.startswith("experts."):
            if names.interleaved and "gate_up_proj" in ours:
                t = torch.stack(t.chunk(2, 1), 2).flatten(1, 2)
            t = _turned(t, names)
        out[name] = t.reshape(names.shapes.get(name, t.shape)).contiguous()
    return out
