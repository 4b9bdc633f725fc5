"""Low-rank adapters (LoRA) on experts, their factors multiplied apart from the weight:

    x (W + s L R)^T = x W^T + s (x R^T) L^T        L [E, out, r], R [E, r, in]; without the transposes where W is [E, in, out]

W + s L R, which is as large as all experts, is made nowhere, and of a frozen W no gradient. Of several adapters the sum is taken.
Products are C++'s (troupe/nn/moe/lora_ffn.h): the same bits."""
import math
from typing import NamedTuple

import torch


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
