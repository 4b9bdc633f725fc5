"""transformers: experts_implementation="troupe".

transformers calls a function of its registry for each decorated experts class (5.0 and later):

    experts(module, hidden_states [T, D], top_k_index [T, K], top_k_weights [T, K]) -> [T, D]

The weights are read from the module by name at each call and stay where they are. What a module's gate computes is found
once (troupe.gates); then a call is `fused`, troupe.functional.moe_ffn, or `products`: our grouped products with the module's
own gate or norm between them. Ids outside [0, E) have no row, which is what transformers' expert parallelism expects."""
from typing import NamedTuple

import torch

from . import functional, gates, lora
from .checks import Unsupported

NAME = "troupe"


class Binding(NamedTuple):
    path: str                # "fused" or "products"
    why: str                 # why it is not fused
    gated: bool
    columns: bool            # weights are [E, in, out]
    gate: gates.Gate | None  # none: the module's own


def place(module):
    """What messages call the module: its path in the model where troupe.patch has named it."""
    return getattr(module, "_troupe_place", None) or type(module).__name__


def weight_names(module):
    up = "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"
    return up, "down_proj"


def is_decorated(module):
    """Whether transformers asks its registry for this module's forward."""
    return hasattr(type(module), "_apply_gate") and hasattr(module, "has_bias") and hasattr(module, "config")


def default_gate(module):
    return getattr(type(module)._apply_gate, "__name__", "") == "_default_apply_gate"


def _check_class(module):
    for name in weight_names(module):
        stored = getattr(module, "parametrizations", None)
        held = stored[name].original if stored is not None and name in stored else module._parameters.get(name)
        if held is None:
            held = getattr(module, name, None)
        if not isinstance(held, torch.Tensor):
            raise Unsupported(f"{place(module)} ({type(module).__name__}) has no tensor {name}: its weights are of another "
                              "kind. Use the experts_implementation that its quantization was made for.")
        dims = len(getattr(held, "ds_shape", held.shape))  # DeepSpeed's ZeRO-3 keeps the whole elsewhere between calls
        if held.dtype not in functional.FLOATS or dims != 3:
            raise Unsupported(f"{place(module)}.{name} is {held.dtype} of {dims} dimensions; it must be f32, bf16, f16 "
                              "or f64 of 3. Load the model without quantization, or keep experts_implementation="
                              '"grouped_mm".')


def bind(module):
    """Finds what the module computes and remembers it; raises Unsupported where that is nothing we compute."""
    _check_class(module)
    gated, columns = getattr(module, "has_gate", True), bool(getattr(module, "is_transposed", False))
    act = getattr(module, "act_fn", None)
    if getattr(module, "has_post_expert_norm", False):
        binding = Binding("products", "a norm follows each expert", gated, columns, None)
    elif not gated:
        name = gates.known(act) or gates.probe_plain(act)
        why = "" if name else f"its activation {type(act).__name__} is none of ours"
        binding = Binding("fused" if name else "products", why, False, columns, gates.Gate(name) if name else None)
    elif default_gate(module) and gates.known(act) and getattr(module, "is_concatenated", True):
        binding = Binding("fused", "", True, columns, gates.Gate(gates.known(act)))
    else:
        gate = gates.probe_gate(module._apply_gate, module, act, getattr(module, "config", None))
        if gate is not None and hasattr(module, "is_concatenated") and gate.interleaved == module.is_concatenated:
            raise Unsupported(f"{place(module)} ({type(module).__name__}) declares is_concatenated="
                              f"{module.is_concatenated}, but its gate reads gate and up "
                              f"{'in turns' if gate.interleaved else 'as halves'}. Report this to the model's authors.")
        why = "" if gate else "its gate is none of ours"
        binding = Binding("fused" if gate else "products", why, True, columns, gate)
    if binding.path == "products":
        own = module._apply_gate if gated else act
        columns_in = getattr(module, weight_names(module)[0]).shape[2 if columns else 1]
        if not gates.rowwise(own, columns_in):
            raise Unsupported(f"{place(module)} ({type(module).__name__}): its gate mixes rows. Keep "
                              'experts_implementation="eager".')
    module._troupe_binding = binding
    return binding


def binding_of(module):
    found = getattr(module, "_troupe_binding", None)
    if found is not None:
        return found
    if torch.compiler.is_compiling() and not (default_gate(module) and gates.known(getattr(module, "act_fn", None))):
        raise Unsupported(f"{place(module)} ({type(module).__name__}) has a gate of its own, which a traced forward cannot "
                          "probe. Call troupe.patch(model) before torch.compile.")
    return bind(module)


def _check_plain(module, name, weight):
    if torch.compiler.is_compiling() or type(weight) in (torch.Tensor, torch.nn.Parameter):
        return
    raise Unsupported(f"{place(module)}.{name} is a {type(weight).__name__}. Experts' weights must be plain tensors where they "
                      "are used: inside FSDP's or transformers' local region, or after .to_local().")


def _work_dtype(x, weight):
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def products(module, binding, x, ids, weights, up, down):
    """Grouped products with what lies between them, unweighted rows, and the weighted sum."""
    ops = torch.ops.troupe
    E = lora.weight_of(down).shape[0]
    plan = functional.plan(ids, E)
    biased = getattr(module, "has_bias", False)
    rows = ops.permute(x, None, list(plan))
    h = lora.grouped(rows, up, plan.expert_offset, binding.columns)
    if biased:
        bias = getattr(module, weight_names(module)[0] + "_bias")
        h = ops.group_bias(h, bias.to(h.dtype), plan.expert_offset, None)
    u = (module._apply_gate(h) if binding.gated else module.act_fn(h)).to(h.dtype)
    y = lora.grouped(u, down, plan.expert_offset, binding.columns)
    if biased:
        y = ops.group_bias(y, module.down_proj_bias.to(y.dtype), plan.expert_offset, None)
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y).to(x.dtype)
    return ops.combine(y, weights.to(functional.wide(x.dtype)), None, list(plan))


def experts(module, hidden_states, top_k_index, top_k_weights):
    """The backend that transformers calls."""
    keep = getattr(module, "_troupe_keep", None)
    if keep is not None:  # troupe.patch(strict=False) left this module as it was
        return keep(module, hidden_states, top_k_index, top_k_weights)
    if hidden_states.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"{place(module)} is on {hidden_states.device}: Troupe computes on cpu and cuda. Keep "
                          'experts_implementation="eager".')
    binding = binding_of(module)
    names = weight_names(module)
    factors = [lora.adapted(module, name) for name in names]
    up, down = (f or getattr(module, name) for f, name in zip(factors, names, strict=True))
    for w, name in ((up, names[0]), (down, names[1])):
        _check_plain(module, name, lora.weight_of(w))
    x = hidden_states.to(_work_dtype(hidden_states, lora.weight_of(down)))
    if any(factors) or binding.path == "products":
        return products(module, binding, x, top_k_index, top_k_weights, up, down).to(hidden_states.dtype)
    layout, gate = "columns" if binding.columns else "rows", binding.gate
    biased = getattr(module, "has_bias", False)
    y = functional.moe_ffn(
        x, top_k_index, top_k_weights, up, down, gate_up_bias=getattr(module, names[0] + "_bias") if biased else None,
        down_bias=module.down_proj_bias if biased else None, activation=gate.activation, gated=binding.gated, clamp=gate.clamp,
        offset=gate.offset, up_layout=layout, down_layout=layout, interleaved=gate.interleaved)
    return y.to(hidden_states.dtype)


def registries():
    """transformers' registries of experts; two where use_experts_implementation was copied (axolotl)."""
    try:
        from transformers.integrations import moe
    except ImportError:
        import transformers
        raise Unsupported(f"transformers {transformers.__version__} keeps experts as lists of modules and has no registry of "
                          "implementations. Use 5.0 or later for troupe.patch, 5.7 for the argument") from None
    found = [moe.ALL_EXPERTS_FUNCTIONS]
    default = (getattr(moe.use_experts_implementation, "__kwdefaults__", None) or {}).get("experts_interface")
    return found if default is None or default is found[0] else [*found, default]


def register():
    """Makes the name known to the transformers that is loaded."""
    for registry in registries():
        type(registry).register(NAME, experts)
