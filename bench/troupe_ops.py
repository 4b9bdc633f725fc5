"""Troupe's operators as one layer, for the benches: router, plan, experts."""
import glob
import os
import pathlib

import torch
import torch.nn.functional as F


def load(library=None):
    """Loads libtroupe.so: the one named, of $TROUPE_BUILD, or the newest under build/."""
    if library is None and "TROUPE_BUILD" in os.environ:
        library = os.path.join(os.environ["TROUPE_BUILD"], "libtroupe.so")
    if library is None:
        root = pathlib.Path(__file__).resolve().parent.parent
        found = sorted(glob.glob(str(root / "build/*/libtroupe.so")), key=os.path.getmtime)
        if not found:
            raise SystemExit("no libtroupe.so under build/: run ./dev build")
        library = found[-1]
    torch.ops.load_library(os.path.abspath(library))


class RouterProduct(torch.autograd.Function):
    """z = x W^T with fp32 sums and results, operands as stored (rule R1)."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        if x.is_cuda and x.dtype != torch.float32:
            return torch.mm(x, gate.t(), out_dtype=torch.float32)
        return F.linear(x.float(), gate.float())

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        grad = grad.to(x.dtype)
        return grad @ gate, grad.t() @ x


class JoinedRouterProduct(RouterProduct):
    """And x for its other reader, whose gradient is added to the product's own in place, as
    nn/moe/routers/gate.h has it."""

    @staticmethod
    def forward(ctx, x, gate):
        return RouterProduct.forward(ctx, x, gate), x

    @staticmethod
    def backward(ctx, grad, grad_x):
        x, gate = ctx.saved_tensors
        grad = grad.to(x.dtype)
        return grad_x.addmm_(grad, gate), grad.t() @ x  # grad_x: moe_ffn made it, for us alone


class Layer:
    """order: "after" (softmax over the chosen) or "before" (of all). bias [E]: added to the logits."""

    def __init__(self, gate, w1, w2, k, order, bias=None):
        self.gate, self.k, self.bias = gate, k, bias
        self.experts = [w1, w2]
        self.weighting = "chosen" if order == "after" else "raw"

    def __call__(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        logits, tokens = JoinedRouterProduct.apply(tokens, self.gate)
        if self.bias is not None:
            logits = logits + self.bias
        ids, weights = torch.ops.troupe.route(logits, self.k, weighting=self.weighting)[:2]
        plan = torch.ops.troupe.routing_plan(ids, self.gate.shape[0])
        y = torch.ops.troupe.moe_ffn(tokens, weights, *self.experts, list(plan))
        return y.view_as(x)
