"""An activation on the blocks of a block-sparse matrix, and which of Troupe's a function is."""
import functools

import torch

from ... import gates
from ..stk.matrix import Matrix


def act_fn(x, function, return_grad_fn=False, **kwargs):
    if not isinstance(x, Matrix):
        raise TypeError(f"act_fn takes a stk.Matrix; it was given a {type(x).__name__}")
    with torch.set_grad_enabled(torch.is_grad_enabled() or return_grad_fn):
        if return_grad_fn:
            x.data.requires_grad = True
        values = function(x.data, **kwargs)
        y = x.with_data(values)
        return (y, values.backward) if return_grad_fn else y


_probe = functools.lru_cache(maxsize=64)(gates.probe_plain)


def name_of(function):
    """The name of Troupe's activation that agrees with the function's numbers, or None."""
    try:
        return _probe(function)
    except TypeError:  # it has no hash
        return gates.probe_plain(function)
