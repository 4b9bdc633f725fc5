"""State dicts of an MoE layer under other frameworks' names and shapes.

    moe.load_state_dict(theirs)                       # any layout below, recognized by its names
    troupe.state_dict(moe, layout="hf_each")          # and back, the same bytes

    hf               experts.gate_up_proj [E, 2F, D], experts.down_proj [E, D, F]: in memory here and in transformers
    hf_each          experts.{e}.gate_proj.weight, .up_proj, .down_proj: files of Qwen, OLMoE, DeepSeek
    mixtral_each     experts.{e}.w1, .w3, .w2: files of Mixtral
    gpt_oss          experts.gate_up_proj [E, D, 2F] in turns, down_proj [E, F, D], biases; router.weight, .bias
    megablocks       experts.mlp.w1, v1, w2 [E F, D]; router.layer.weight; experts.bias
    megablocks_mlp   the same of its class MLP: w1 [E, D, F], w2 [E, F, D]
    titan            experts.w1_EFD, w3_EFD, w2_EDF; router.gate.weight
    megatron         experts.local_experts.{e}.linear_fc1.weight, .linear_fc2; router.weight
    megatron_te      experts.linear_fc1.weight{e}, .linear_fc2
    megatron_grouped experts.weight1 [D, E 2F], weight2 [E F, D]

hf and gpt_oss have names in common; router.weight or gate.weight tells them apart, never the sizes."""
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from .checks import Unsupported
from .functional import _halves

if TYPE_CHECKING:
    from .layers import MoE

GATE = {"gpt_oss": "router.", "megablocks": "router.layer.", "megablocks_mlp": "router.layer.", "titan": "router.gate.",
        "megatron": "router.", "megatron_te": "router.", "megatron_grouped": "router."}
LAYOUTS = ("hf", "hf_each", "mixtral_each", *GATE)
Names: TypeAlias = Literal["hf", "hf_each", "mixtral_each", "gpt_oss", "megablocks", "megablocks_mlp", "titan", "megatron", "megatron_te",
                           "megatron_grouped"]


class _Shape:
    """What a layout needs to know of a layer."""

    def __init__(self, module):
        e = module.experts
        self.E, self.D, self.F, self.gated = e.experts, e.width, e.hidden, e.form["gated"]
        self.first = "gate_up_proj" if self.gated else "up_proj"
        self.G = 2 * self.F if self.gated else self.F


def _turns(t):
    """[E, 2F, ...] halves -> in turns."""
    return torch.stack(t.chunk(2, 1), 2).flatten(1, 2)


def _each(s, names):
    """Readers and writers of one tensor an expert: names = (first parts of W1, W2), where {e} is the expert."""
    *parts, down = names
    parts = parts if s.gated else parts[-1:]

    def write(w1, w2):
        out = {}
        for e in range(s.E):
            for name, t in zip(parts, w1[e].chunk(len(parts)), strict=True):
                out[name.format(e=e)] = t
            out[down.format(e=e)] = w2[e]
        return out

    def read(get):
        w1 = [torch.cat([get(n.format(e=e), (s.G // len(parts), s.D)) for n in parts]) for e in range(s.E)]
        return torch.stack(w1), torch.stack([get(down.format(e=e), (s.D, s.F)) for e in range(s.E)])

    return write, read


def _whole(s, layout):
    """The same of the layouts that have all experts in a tensor."""
    E, D, F, G = s.E, s.D, s.F, s.G
    if layout == "gpt_oss":
        def write(w1, w2):
            return {"gate_up_proj": _turns(w1).transpose(1, 2), "down_proj": w2.transpose(1, 2)}

        def read(get):
            return (_halves(get("gate_up_proj", (E, D, G)).transpose(1, 2)), get("down_proj", (E, F, D)).transpose(1, 2))
    elif layout == "megablocks":
        def write(w1, w2):
            names = ("mlp.w1", "mlp.v1") if s.gated else ("mlp.w1",)
            halves = {n: t.reshape(E * F, D) for n, t in zip(names, w1.chunk(len(names), 1), strict=True)}
            return {**halves, "mlp.w2": w2.transpose(1, 2).reshape(E * F, D)}

        def read(get):
            parts = [get(n, (E * F, D)).view(E, F, D) for n in (("mlp.w1", "mlp.v1") if s.gated else ("mlp.w1",))]
            return torch.cat(parts, 1), get("mlp.w2", (E * F, D)).view(E, F, D).transpose(1, 2)
    elif layout == "megablocks_mlp":
        def write(w1, w2):
            return {"mlp.w1": w1.transpose(1, 2), "mlp.w2": w2.transpose(1, 2)}

        def read(get):
            return get("mlp.w1", (E, D, F)).transpose(1, 2), get("mlp.w2", (E, F, D)).transpose(1, 2)
    elif layout == "titan":
        def write(w1, w2):
            gate, up = w1.chunk(2, 1)
            return {"w1_EFD": gate, "w3_EFD": up, "w2_EDF": w2}

        def read(get):
            return torch.cat([get("w1_EFD", (E, F, D)), get("w3_EFD", (E, F, D))], 1), get("w2_EDF", (E, D, F))
    elif layout == "megatron_grouped":  # which its own forward views as [E, D, 2F] and [E, F, D]
        def write(w1, w2):
            return {"weight1": w1.transpose(1, 2).reshape(D, E * G), "weight2": w2.transpose(1, 2).reshape(E * F, D)}

        def read(get):
            return (get("weight1", (D, E * G)).contiguous().view(E, D, G).transpose(1, 2),
                    get("weight2", (E * F, D)).view(E, F, D).transpose(1, 2))
    else:  # hf
        def write(w1, w2):
            return {s.first: w1, "down_proj": w2}

        def read(get):
            return get(s.first, (E, G, D)), get("down_proj", (E, D, F))
    return write, read


EACH = {"hf_each": ("{e}.gate_proj.weight", "{e}.up_proj.weight", "{e}.down_proj.weight"),
        "mixtral_each": ("{e}.w1.weight", "{e}.w3.weight", "{e}.w2.weight"),
        "megatron": ("local_experts.{e}.linear_fc1.weight", "local_experts.{e}.linear_fc2.weight"),
        "megatron_te": ("linear_fc1.weight{e}", "linear_fc2.weight{e}")}
GATED_ONLY = ("mixtral_each", "gpt_oss", "titan")


def _of(layout, s):
    """(write, read) of the experts' weights."""
    if layout in GATED_ONLY and not s.gated or layout == "megablocks_mlp" and s.gated:
        raise ValueError(f"layout {layout} is of experts {'without a' if s.gated else 'with a'} gate; these have "
                         f"{'one' if s.gated else 'none'}")
    if layout not in EACH:
        return _whole(s, layout)
    names = EACH[layout]
    if layout.startswith("megatron"):  # gate and up are one tensor there
        return _each_joined(s, names)
    return _each(s, names)


def _each_joined(s, names):
    first, down = names

    def write(w1, w2):
        out = {}
        for e in range(s.E):
            out[first.format(e=e)], out[down.format(e=e)] = w1[e], w2[e]
        return out

    def read(get):
        return (torch.stack([get(first.format(e=e), (s.G, s.D)) for e in range(s.E)]),
                torch.stack([get(down.format(e=e), (s.D, s.F)) for e in range(s.E)]))

    return write, read


def layout_of(names):
    """The layout that these names, below one layer, are of."""
    found = set()
    for name in names:
        if re.match(r"experts\.\d+\.(gate|up|down)_proj\.", name):
            found.add("hf_each")
        elif re.match(r"experts\.\d+\.w[123]\.", name):
            found.add("mixtral_each")
        elif name in ("experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2"):
            found.add("megablocks")
        elif re.match(r"experts\.w\d_E", name):
            found.add("titan")
        elif name.startswith("experts.local_experts."):
            found.add("megatron")
        elif re.match(r"experts\.linear_fc\d\.weight\d+$", name):
            found.add("megatron_te")
        elif name in ("experts.weight1", "experts.weight2"):
            found.add("megatron_grouped")
        elif name in ("experts.gate_up_proj", "experts.up_proj", "experts.down_proj"):
            found.add("gpt_oss" if any(n.startswith("router.") for n in names) else "hf")
    if len(found) > 1:
        raise ValueError(f"the state dict has names of {' and '.join(sorted(found))}: it must be of one layout")
    return found.pop() if found else "hf"


def check_whole(module, what):
    """Raises where this rank has a part of the experts."""
    e = module.experts
    if e.ranks is not None:
        raise Unsupported(f"{what} is of whole experts, and this rank has {e.experts // e.ranks.size} of {e.experts}. Save layout hf "
                          "with torch.distributed.checkpoint (troupe.shard_experts), and load it into a layer without a group")


def state_dict(module: "MoE", layout: Names = "hf") -> dict[str, torch.Tensor]:
    """A layer's tensors under the names of `layout`."""
    from .layers import MoE
    if not isinstance(module, MoE):
        raise TypeError(f"state_dict: a {type(module).__name__}; it must be a troupe.MoE")
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
    own = dict(module.state_dict())
    if layout == "hf":
        return own
    check_whole(module, f"state_dict: layout {layout}")
    if module.experts.lora is not None:
        raise Unsupported(f"state_dict: layout {layout} has no adapters: moe.merge_lora() first, or layout hf")
    s = _Shape(module)
    write, _ = _of(layout, s)
    w1, w2 = own.pop(f"experts.{s.first}"), own.pop("experts.down_proj")
    out = {f"experts.{n}": t.contiguous() for n, t in write(w1, w2).items()}
    if layout == "gpt_oss" and f"experts.{s.first}_bias" in own:
        own[f"experts.{s.first}_bias"] = _turns(own[f"experts.{s.first}_bias"])
    if layout.startswith("megablocks") and "output_bias" in own:
        own["experts.bias"] = own.pop("output_bias")
    return out | {n.replace("gate.", GATE[layout], 1) if n.startswith("gate.") and layout in GATE else n: t
                  for n, t in own.items()}


def adapt(state, prefix, module):
    """Puts this layer's part of `state` into hf's names, in place. One error lists all names that are
    missing, left over or of another shape."""
    theirs = {n[len(prefix):]: t for n, t in state.items() if n.startswith(prefix)}
    layout = layout_of(theirs)
    if layout == "hf":
        return
    s = _Shape(module)
    if layout == "megablocks" and theirs.get("experts.mlp.w1", torch.empty(0)).dim() == 3:
        layout = "megablocks_mlp"
    faults, used = [], set()

    def get(name, shape):
        used.add(f"experts.{name}")
        t = theirs.get(f"experts.{name}")
        if t is None:
            faults.append(f"missing experts.{name} {list(shape)}")
        elif tuple(t.shape) != tuple(shape):
            faults.append(f"experts.{name} is {list(t.shape)}, not {list(shape)}")
        else:
            return t
        return torch.zeros(shape)

    _, read = _of(layout, s)
    w1, w2 = read(get)
    ours = {f"experts.{s.first}": w1, "experts.down_proj": w2}
    gate, expected = GATE.get(layout, "gate."), {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
    for name in theirs.keys() - used:
        own = "gate." + name[len(gate):] if name.startswith(gate) else name
        if own == "experts.bias" and layout.startswith("megablocks"):
            own = "output_bias"
        t = theirs[name]
        if layout == "gpt_oss" and own == f"experts.{s.first}_bias":
            t = _halves(t)
        if own in expected:
            ours[own] = t
        else:
            faults.append(f"left over: {name}")
    if faults:
        raise RuntimeError(f"{prefix or 'MoE: '}a state dict of layout {layout}, with {len(faults)} faults: "
                           + "; ".join(sorted(faults)))
    for name in theirs:
        del state[prefix + name]
    state.update({prefix + n: t for n, t in ours.items()})
