"""Experts that keep the activation's input and compute the activation once more in the backward.

    h = activation(x w1^T) [times x v1^T];  y = h w2

Grouped: x [R, D] sorted by expert, weights [E, F, D]. Block-sparse: weights [E F, D], and h has the blocks of topo.
What needs no gradient gets none. There is no second derivative."""
import torch
from torch.autograd.function import once_differentiable

from .. import stk
from ..grouped_gemm.backend import gmm
from ..stk.backend.autocast import custom_bwd, custom_fwd


def _again(function, *inputs):
    """(the value of function, a function of its gradient that gives those of its inputs)."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = function(*leaves)
    return y.detach(), lambda grad: torch.autograd.grad(y, leaves, grad)


def _where(needed, product):
    return product() if needed else None


def _grouped_backward(ctx, grad, function):
    """The gradients of x, of the weights before the activation and of w2. function: of their products, the activation."""
    x, counts, w2, *saved = ctx.saved_tensors
    weights, products = saved[:len(saved) // 2], saved[len(saved) // 2:]
    needs_x, *needs_weights, needs_w2 = ctx.needs_input_grad[:2 + len(weights)]
    h, back = _again(function, *products)
    grads = back(gmm(grad, w2, counts, trans_b=True)) if needs_x or any(needs_weights) else [None] * len(weights)
    dx = _where(needs_x, lambda: sum(gmm(g, w, counts) for g, w in zip(grads, weights, strict=True)))
    dws = [_where(needed, lambda g=g: gmm(g, x, counts, trans_a=True)) for needed, g in zip(needs_weights, grads, strict=True)]
    return dx, *dws, _where(needs_w2, lambda: gmm(h, grad, counts, trans_a=True)), None, None


class MemoryOptimizedGroupedMLP(torch.autograd.Function):
    """y of x, w1, w2, batch_sizes and activation_fn."""

    @staticmethod
    @custom_fwd
    def forward(ctx, x, w1, w2, batch_sizes, activation_fn):
        h = gmm(x, w1, batch_sizes, trans_b=True)
        ctx.save_for_backward(x, batch_sizes, w2, w1, h)
        ctx.activation_fn = activation_fn
        return gmm(activation_fn(h), w2, batch_sizes)

    @staticmethod
    @once_differentiable
    @custom_bwd
    def backward(ctx, grad):
        return _grouped_backward(ctx, grad.contiguous(), ctx.activation_fn)


class MemoryOptimizedGroupedGLU(torch.autograd.Function):
    """y of x, w1, v1, w2, batch_sizes and activation_fn."""

    @staticmethod
    @custom_fwd
    def forward(ctx, x, w1, v1, w2, batch_sizes, activation_fn):
        gate, up = (gmm(x, w, batch_sizes, trans_b=True) for w in (w1, v1))
        ctx.save_for_backward(x, batch_sizes, w2, w1, v1, gate, up)
        ctx.activation_fn = activation_fn
        return gmm(activation_fn(gate) * up, w2, batch_sizes)

    @staticmethod
    @once_differentiable
    @custom_bwd
    def backward(ctx, grad):
        return _grouped_backward(ctx, grad.contiguous(), lambda gate, up: ctx.activation_fn(gate) * up)


class MemoryOptimizedMLP(torch.autograd.Function):
    """y of x, w1, w2, topo (stk.Matrix) and activation_fn."""

    @staticmethod
    @custom_fwd
    def forward(ctx, x, w1, w2, topo, activation_fn):
        h = stk.ops.sdd(x, w1.t(), topo)
        ctx.save_for_backward(x, w1, w2, h.data)
        ctx.topo, ctx.activation_fn = topo, activation_fn
        return stk.ops.dsd(topo.with_data(activation_fn(h.data)), w2)

    @staticmethod
    @once_differentiable
    @custom_bwd
    def backward(ctx, grad):
        (x, w1, w2, h), topo, needs = ctx.saved_tensors, ctx.topo, ctx.needs_input_grad
        grad = grad.contiguous()
        active, back = _again(ctx.activation_fn, h)
        dh = topo.with_data(*back(stk.ops.sdd(grad, w2.t(), topo).data)) if needs[0] or needs[1] else None
        return (_where(needs[0], lambda: stk.ops.dsd(dh, w1)), _where(needs[1], lambda: stk.ops.dsd(dh.t(), x)),
                _where(needs[2], lambda: stk.ops.dsd(topo.with_data(active).t(), grad)), None, None)


memory_optimized_mlp = MemoryOptimizedMLP.apply
memory_optimized_grouped_mlp = MemoryOptimizedGroupedMLP.apply
memory_optimized_grouped_glu = MemoryOptimizedGroupedGLU.apply
