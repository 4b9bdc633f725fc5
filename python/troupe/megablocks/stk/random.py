"""Random block-sparse matrices."""
import math

import torch

from . import ops


@torch.no_grad()
def dense_mask(rows, cols, sparsity, blocking=1):
    """Ones in a random share 1 - sparsity of the blocks, zeros elsewhere."""
    if not 0 <= sparsity <= 1 or rows % blocking or cols % blocking:
        raise ValueError(f"dense_mask: sparsity {sparsity} must be in [0, 1], {rows} x {cols} divisible by {blocking}")
    blocks = (rows // blocking, cols // blocking)
    kept = round(math.prod(blocks) * (1 - sparsity))
    out = torch.zeros(math.prod(blocks))
    out[torch.randperm(len(out))[:kept]] = 1.0
    return out.view(blocks).repeat_interleave(blocking, 0).repeat_interleave(blocking, 1)


@torch.no_grad()
def mask(m, n, sparsity, blocking=1):
    return ops.to_sparse(dense_mask(m, n, sparsity, blocking).half(), blocking)


@torch.no_grad()
def randn(shape, sparsity, blocking=1):
    out = mask(math.prod(shape[:-1]), shape[-1], sparsity, blocking)
    out.data.copy_(torch.randn(out.data.shape))
    return out.view(*shape)
