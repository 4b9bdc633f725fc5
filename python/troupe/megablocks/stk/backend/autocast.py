"""Decorators of a torch.autograd.Function whose operands are cast by autocast."""
import functools

import torch


def _cast(value, dtype, kind):
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.device.type == kind and value.dtype != torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype, kind) for v in value)
    return value


def _kind(arguments):
    return next((a.device.type for a in arguments if isinstance(a, torch.Tensor)), "cuda")


def custom_fwd(forward):
    @functools.wraps(forward)
    def run(ctx, *arguments):
        kind = _kind(arguments)
        if not torch.is_autocast_enabled(kind):
            return forward(ctx, *arguments)
        cast = _cast(arguments, torch.get_autocast_dtype(kind), kind)
        with torch.autocast(kind, enabled=False):
            return forward(ctx, *cast)
    return run


def custom_bwd(backward):
    @functools.wraps(backward)
    def run(ctx, *grads):
        with torch.autocast(_kind(grads), enabled=False):
            return backward(ctx, *grads)
    return run
