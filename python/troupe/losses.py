"""The auxiliary losses of an MoE layer, as values with gradients.

Over N valid tokens with c_e choices of expert e (the plain top-k of the scores) and P_e, the sum of their scores r_te:

    LB = E / (k N^2) sum_e c_e P_e        1 where all c are equal, and where all r are 1 / E

    aux       a LB                                     seq      a mean over sequences of LB of each
    global    a LB, c over the step's forwards so far  batched  a / L LB: summed over L layers, MegaBlocks' loss
    z         coefficient / N sum_t logsumexp(z_t)^2

The gradient goes through P alone. Counts stay integers until the product, which is in f64, as the layer in C++ has it
(troupe/nn/moe/moe_losses.h). N = 0 gives 0."""
import gc

import torch

from .checks import Unsupported

KINDS = ("aux", "seq", "global", "batched", "none")


def _at_least_one(tokens):
    return tokens.to(torch.float64).clamp_min(1)


def fractions(counts, tokens, k):
    """c / (k N): of [E] counts and a number of tokens, or of [B, E] and [B]."""
    n = _at_least_one(tokens) * float(k)
    return counts.to(torch.float64) / (n.unsqueeze(1) if counts.dim() == 2 else n)


def load_balance(f, scores, tokens):
    """E sum_e f P / N, of each row."""
    return (f * scores.to(torch.float64)).sum(-1) * float(scores.shape[-1]) / _at_least_one(tokens)


def balance_loss(kind, counts, scores, tokens, k, *, layers=1, tracker=None):
    """LB of one of KINDS, without its coefficient; counts and scores [B, E], tokens [B]. tracker: a Fractions, for
    "global"."""
    if kind == "seq":
        return load_balance(fractions(counts, tokens, k), scores, tokens).mean()
    all_tokens, all_counts, all_scores = tokens.sum(), counts.sum(0), scores.sum(0)
    f = tracker.add(all_counts, all_tokens, k) if kind == "global" else fractions(all_counts, all_tokens, k)
    loss = load_balance(f, all_scores, all_tokens)
    return loss / float(layers) if kind == "batched" else loss


def z_loss(lse2, tokens):
    return lse2.to(torch.float64) / _at_least_one(tokens.sum())


class Fractions(torch.nn.Module):
    """f of the forwards since the last end of a step."""

    def __init__(self, experts, device=None):
        super().__init__()
        self.register_buffer("counts", torch.zeros(experts, dtype=torch.float64, device=device), persistent=False)
        self.register_buffer("tokens", torch.zeros((), dtype=torch.float64, device=device), persistent=False)

    def add(self, counts, tokens, k):
        with torch.no_grad():
            self.counts.add_(counts)
            self.tokens.add_(tokens)
            return fractions(self.counts.clone(), self.tokens.clone(), k)

    def forget(self):
        self.counts.zero_()
        self.tokens.zero_()

    def _apply(self, fn, recurse=True):
        return keep_types(self, fn, lambda: super(Fractions, self)._apply(fn, recurse))


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(y, loss, scale):
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, loss, ctx.scale = inputs
        ctx.type = loss.dtype

    @staticmethod
    def backward(ctx, grad):
        if isinstance(ctx.scale, torch.Tensor):
            return grad, ctx.scale.to(grad.device, ctx.type).reshape(()), None
        return grad, torch.full((), ctx.scale, dtype=ctx.type, device=grad.device), None


def attach(y, loss, scale=1.0):
    """y, whose backward hands `loss` the gradient `scale`: as if scale * loss were part of whatever is differentiated. A tensor
    counts as it is now."""
    return _Attach.apply(y, loss, scale.detach().clone() if isinstance(scale, torch.Tensor) else float(scale))


def refuse_unknown_scale():
    """Raises where this process has a GradScaler in use: what it multiplies a loss by is not seen from inside the model."""
    kind = torch.amp.GradScaler
    if any(issubclass(type(o), kind) and o.is_enabled() for o in gc.get_objects()):
        raise Unsupported('losses="attach": this process has a GradScaler, whose scale a layer cannot see: its balance loss would count '
                          "1/scale of what it should. Call troupe.set_loss_scale(model, scaler.get_scale) once, divided by the "
                          "microbatches of a step; give 1.0 if the scaler is another model's. Or take losses=\"return\"")


def in_backward():
    """Whether this forward is a checkpoint's, repeated inside a backward: what it would count is counted already."""
    return torch._C._current_graph_task_id() != -1


def keep_types(module, fn, apply):
    """Runs a module's _apply, after which its own buffers have the types and values that they had (module.to(bf16) moves
    them and rounds nothing)."""
    before = dict(module._buffers)
    apply()
    for name, old in before.items():
        new = module._buffers[name]
        if old is not None and new.dtype != old.dtype:
            module._buffers[name] = old.to(new.device)
    return module
