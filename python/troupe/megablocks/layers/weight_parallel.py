"""Products with weights of which each rank of a group holds some rows (MegaBlocks to 0.5.1; Nanotron's experts under tensor
parallelism). The rows are gathered for a product; their gradients are the mean over the group, summed in f32."""
import torch
import torch.distributed as dist

from .. import stk


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, in rank order."""

    @staticmethod
    def forward(ctx, w, group):
        ctx.group = group
        out = w.new_empty((w.shape[0] * dist.get_world_size(group), *w.shape[1:]))
        dist.all_gather_into_tensor(out, w.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        ranks = dist.get_world_size(ctx.group)
        mean = grad.to(torch.promote_types(grad.dtype, torch.float32)).contiguous() / ranks
        own = mean.new_empty((grad.shape[0] // ranks, *grad.shape[1:]))
        dist.reduce_scatter_tensor(own, mean, group=ctx.group)
        return own.to(grad.dtype), None


def gathered(w, group):
    return w if dist.get_world_size(group) == 1 else _Gathered.apply(w, group)


def sdd_nt(a, b, topo, group):
    """a b^T where topo stores a block; b's rows are over the group."""
    return stk.ops.sdd(a, gathered(b, group).t(), topo)


def dsd_nn(a, b, group):
    """The block-sparse a times b, whose rows are over the group."""
    return stk.ops.dsd(a, gathered(b, group))
