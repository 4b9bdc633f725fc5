"""Low-rank adapters (LoRA) on experts, their factors multiplied apart from the weight:

    x (W + s L R)^T = x W^T + s (x R^T) L^T        L [E, out, r], R [E, r, in]; without the transposes where W is [E, in, out]

W + s L R, which is as large as all experts, is made nowhere, and of a frozen W no gradient. Of several adapters the sum is taken.
Products are C++'s (troupe/nn/moe/lora_ffn.h): the same bits."""
import math
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from . import gates
from .checks import Unsupported, check_beside, check_tensor


class Factors(NamedTuple):
    lhs: torch.Tensor     # [E, out, r]  or [E, in, r]    weight + scaling lhs rhs
    rhs: torch.Tensor     # [E, r, in]   or [E, r, out]
    scaling: float
    dropout: float = 0.0  # of the rows that the factors see


class Adapted(NamedTuple):
    weight: torch.Tensor
    factors: tuple


def scaling(rank, alpha, rslora=False):
    return alpha / (math.sqrt(rank) if rslora else rank)


def adapted(module, name):
    """The weight and the factors that troupe.hf_lora has left for this call, or None: then module.<name> is all there is."""
    factors = module.__dict__.get("_troupe_lora", {}).get(name)
    return None if factors is None else Adapted(getattr(module, name), factors)


def weight_of(w):
    return w.weight if isinstance(w, Adapted) else w


def grouped(rows, weight, offset, columns):
    """rows times each expert's weight; `weight` is a tensor or Adapted, [E, in, out] if columns, else [E, out, in]."""
    def product(x, w):
        return torch.ops.troupe.grouped_gemm(x, w.to(x.dtype).contiguous(), offset, not columns)

    y = product(rows, weight_of(weight))
    for f in weight.factors if isinstance(weight, Adapted) else ():
        first, second = (f.lhs, f.rhs) if columns else (f.rhs, f.lhs)
        seen = torch.nn.functional.dropout(rows, f.dropout) if f.dropout else rows
        y = y + product(product(seen, first) * f.scaling, second)
    return y


def check(pair, w1, w2, layout, up, recompute, quantize):
    """Raises where moe_ffn does not take `lora`, factors of gate_up and of down."""
    if up is not None or layout["interleaved"]:
        raise Unsupported("lora: gate and up are one tensor, gate rows before up rows: pass torch.cat([gate, up], 1)")
    if recompute == "expert" or tuple(quantize) != (-1, -1):
        raise Unsupported("lora: backward reads H and x as they are: recompute must be none or act, and quantize left out")
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError("lora must be (factors of gate_up, factors of down), each a troupe.lora.Factors or None")
    for name, f, w in (("gate_up", pair[0], w1), ("down", pair[1], w2)):
        if f is None:
            continue
        for side, t in (("lhs", f.lhs), ("rhs", f.rhs)):
            check_tensor(f"lora: {name}'s {side}", t)
            check_beside(f"lora: {name}'s {side}", t, name, w)
        E, rows, columns = w.shape
        if f.lhs.shape[:2] != (E, rows) or f.rhs.shape != (E, f.lhs.shape[-1], columns):
            raise ValueError(f"lora: {name} is {list(w.shape)}; its factors must be [{E}, {rows}, r] and [{E}, r, {columns}], and are "
                             f"{list(f.lhs.shape)} and {list(f.rhs.shape)}")


def units(h, gated, activation, clamp, offset):
    """act(g) (v + offset) of the halves g and v of h [R, 2F]; without a gate act(h)."""
    g, v = h.chunk(2, 1) if gated else (h, None)
    act = gates.ACTIVATIONS[activation](g if clamp is None else g.clamp(max=clamp))
    return act if v is None else act * ((v if clamp is None else v.clamp(-clamp, clamp)) + offset)


def experts_ffn(x, weights, plan, experts, pair, activation, clamp, offset, recompute):
    """moe_ffn by grouped products; experts as troupe.functional has them."""
    ops, ends, plan = torch.ops.troupe, plan.expert_offset, list(plan)
    up, down = (w if f is None else Adapted(w, (f,)) for w, f in zip((experts.w1, experts.w2), pair, strict=True))
    columns, down_columns = experts.layout["up_columns"], experts.layout["down_columns"]
    gated = experts.w1.shape[2 if columns else 1] != experts.w2.shape[1 if down_columns else 2]

    def below(h):
        return grouped(units(h, gated, activation, clamp, offset), down, ends, down_columns)

    h = grouped(ops.permute(x, None, plan), up, ends, columns)
    if experts.b1 is not None:
        h = ops.group_bias(h, experts.b1, ends, None)
    y = checkpoint(below, h, use_reentrant=False) if recompute == "act" and torch.is_grad_enabled() else below(h)
    if experts.b2 is not None:
        y = ops.group_bias(y, experts.b2, ends, None)
    return ops.combine(y, weights, None, plan)
