"""all_to_all_single with a gradient."""
import torch
import torch.distributed as dist

from ... import peers


class AllToAllOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, output_split_sizes, input_split_sizes, group, async_op):
        ctx.shape, ctx.splits, ctx.group = x.shape, (input_split_sizes, output_split_sizes), group
        out = x.new_empty((sum(output_split_sizes), *x.shape[1:]))
        with peers.named(group):
            handle = dist.all_to_all_single(out, x.contiguous(), output_split_sizes, input_split_sizes, group=group,
                                            async_op=async_op)
        return out, handle

    @staticmethod
    def backward(ctx, grad, _):
        out = grad.new_empty(ctx.shape)
        with peers.named(ctx.group):
            dist.all_to_all_single(out, grad.contiguous(), *ctx.splits, group=ctx.group)
        return out, None, None, None, None


def all_to_all(x, output_split_sizes, input_split_sizes, group, async_op=False):
    """(the received rows, the handle to wait for where async_op, else None)."""
    return AllToAllOp.apply(x, output_split_sizes, input_split_sizes, group, async_op)
