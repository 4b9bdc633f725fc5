"""PEFT's LoRA on experts without a gradient of the weights.

PEFT adds an adapter to a parameter by a parametrization for the time of one call, W + s L R, and a layer that reads the
sum makes its whole gradient, which autograd then contracts with L and R. Where exactly one adapter lies on a frozen
weight, the same product is

    x (W + s L R)^T = x W^T + s (x R^T) L^T

of which W takes no part in backward. Two adapters, merged or disabled ones are read as the sum that PEFT makes."""
from typing import NamedTuple

import torch


class Adapted(NamedTuple):
    weight: torch.Tensor  # frozen
    lhs: torch.Tensor     # [E, out, r]  or [E, in, r]    weight + scaling lhs rhs
    rhs: torch.Tensor     # [E, r, in]   or [E, r, out]
    scaling: float


def adapted(module, name):
    """The frozen weight and its one adapter, or None: then module.<name> is to be read as it is."""
    lists = getattr(module, "parametrizations", None)
    if lists is None or name not in lists:
        return None
    found = lists[name]
    if len(found) != 1 or type(found[0]).__name__ != "_LoraFactorsProxy" or found.original.requires_grad:
        return None
    proxy = found[0]
    return Adapted(found.original, proxy.lhs, proxy.rhs, proxy.scaling)


def grouped(rows, weight, offset, columns):
    """rows times each expert's weight; `weight` is a tensor or Adapted, [E, in, out] if columns, else [E, out, in]."""
    product = torch.ops.troupe.grouped_gemm
    if not isinstance(weight, Adapted):
        return product(rows, weight.to(rows.dtype), offset, not columns)
    base = product(rows, weight.weight.to(rows.dtype), offset, not columns)
    first, second = (weight.lhs, weight.rhs) if columns else (weight.rhs, weight.lhs)
    low = product(rows, first.to(rows.dtype).contiguous(), offset, not columns)
    return base + weight.scaling * product(low, second.to(rows.dtype).contiguous(), offset, not columns)
