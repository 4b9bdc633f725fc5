"""Routers: which experts a token takes, and what they count. The kinds of `troupe train`, over the same operators."""
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from .checks import check_mapped, full_precision, in_words, wide
from .initial import clear, draw, drawn_seed
from .losses import in_backward, keep_types
from .routing import Routing, route
from .types import Device, Groups, RouterKind, Score

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Routed(NamedTuple):
    """A troupe.Routing of B sequences, and the logits that it was made of."""

    ids: torch.Tensor
    weights: torch.Tensor
    counts: torch.Tensor
    scores: torch.Tensor | None        # [B, E]; None: nothing balances by a loss
    lse2: torch.Tensor
    plain_counts: torch.Tensor | None  # [B, E]
    tokens: torch.Tensor               # [B]
    logits: torch.Tensor               # [T, E] f32


class _Product(torch.autograd.Function):
    """z = x w^T in f32 (f64 beside f64), also under autocast; and x, for whoever else reads it: what flows back into that x
    is added to the product's own gradient as the product is made, rounded once."""

    @staticmethod
    def forward(x, w):
        with full_precision(x):
            if _Product.mixed(x, w):
                return torch.mm(x, w.t(), out_dtype=torch.float32), x.view_as(x)
            return torch.mm(x.to(wide(x.dtype)), w.to(wide(x.dtype)).t()), x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def mixed(x, w):
        """A GPU's product of 16-bit operands is exact before its f32 sum: they need not be widened."""
        return x.is_cuda and x.dtype == w.dtype and x.dtype in (torch.bfloat16, torch.float16)

    @staticmethod
    def backward(ctx, dz, dx):
        x, w = ctx.saved_tensors
        grad_x = grad_w = None
        with full_precision(x):
            if ctx.needs_input_grad[0]:
                if x.dtype == dz.dtype:
                    grad_x = torch.addmm(dx, dz, w.to(dz.dtype))
                else:
                    grad_x = torch.mm(dz, w.to(dz.dtype)).to(x.dtype) + dx
            if ctx.needs_input_grad[1]:
                grad_w = torch.mm(dz.t(), x.to(dz.dtype)).to(w.dtype)
        return grad_x, grad_w


class Router(nn.Module):
    """x [..., D] -> troupe.Routing. `help(troupe.options.moe_options)` says what the arguments are."""

    weight: nn.Parameter       # [E, D]
    bias: nn.Parameter | None  # [E]

    def __init__(self, width: int, experts: int, top_k: int, *, kind: RouterKind = "topk_softmax",
                 order: Literal["auto", "before", "after"] = "auto", norm_topk: bool | float | None = None, scale: float = 1.0,
                 groups: Groups = None, score: Score | None = None, rho: float = 0.0, normalize: bool = False,
                 tolerance: float = 1e-4, max_iterations: int = 100, ema: float = 0.0, bias_rate: float | None = None,
                 center: bool = False, jitter: float = 0.0, bias: bool = False, std: float = 0.02, device: Device = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.kind, self.experts, self.top_k, self.scale, self.std = kind, experts, top_k, scale, std
        self.jitter, self.center, self.ema, self.rho = jitter, center, ema, rho or float(top_k)
        self.tolerance, self.max_iterations, self.normalize = tolerance, max_iterations, normalize
        score = score or ("sigmoid" if kind == "sigmoid_bias" else "softmax")
        self.bias_rate = 1e-3 if bias_rate is None else bias_rate
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter is {jitter}; it must lie in [0, 1)")
        if kind == "quantile" and not (top_k < experts and 0 <= ema < 1):
            raise ValueError(f"quantile balancing needs top_k {top_k} below experts {experts} and ema {ema} in [0, 1)")
        independent = kind == "sigmoid_bias" or (kind == "quantile" and score != "softmax")
        self.score = score if independent or kind == "expert_choice" else "softmax"
        if kind == "sinkhorn":
            self.score = "sigmoid" if top_k == 1 else "softmax"
        self.rule = {"score": self.score, "scale": scale, "groups": groups,
                     **self._order(kind, order, norm_topk, independent)}
        self.weight = nn.Parameter(torch.empty(experts, width, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(experts, device=device, dtype=dtype)) if bias else None
        state = {"dtype": torch.float32, "device": device}
        if kind == "sigmoid_bias":
            self.register_buffer("e_score_correction_bias", torch.zeros(experts, **state))
            self.register_buffer("step_counts", torch.zeros(experts, dtype=torch.int64, device=device), persistent=False)
        if kind == "quantile":
            self.register_buffer("beta", torch.zeros(experts, **state))
            self.register_buffer("step_sums", torch.zeros(experts + 1, **state), persistent=False)
        self._forwards = 0  # in training, since the last end of a step
        self.reset_parameters()

    def _order(self, kind, order, norm_topk, independent):
        if independent:
            return {"order": "before", "norm": True if norm_topk is None else norm_topk}
        if kind == "sinkhorn":
            return {"order": "before", "norm": False}
        one = self.top_k == 1 and self.experts > 1
        if order == "after" and one:
            raise ValueError("order 'after' with top_k 1 gives weight 1 and the router no gradient; take 'before' or the kind "
                             "sigmoid_bias")
        if norm_topk and order == "after":
            raise ValueError("norm_topk goes with order 'before'; with 'after' the weights sum to 1 already")
        before = order == "before" or norm_topk or self.top_k == 1
        return {"order": "before" if before else "after", "norm": norm_topk if before else None}

    def reset_parameters(self, seed: int | None = None, name: str = "router") -> None:
        draw(self.weight, f"{name}.weight", drawn_seed(seed, self), self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        clear(self)
        self._forwards = 0

    if TYPE_CHECKING:
        def __call__(self, x: torch.Tensor, *, valid: torch.Tensor | None = None) -> Routing: ...

    def forward(self, x: torch.Tensor, *, valid: torch.Tensor | None = None, inside: dict[str, Any] | None = None) -> Any:
        """`inside`: what the layer around it tells `route`, whose answer it then gets: through a call of the module, or hooks on
        it (FSDP2's, which gather its weights) would not run."""
        if inside is not None:
            return self.route(x, valid=valid, **inside)
        r, _ = self.route(x.reshape(-1, x.shape[-1]), valid=valid)
        return Routing(r.ids, r.weights, r.counts, None if r.scores is None else r.scores.squeeze(0), r.lse2,
                       None if r.plain_counts is None else r.plain_counts.squeeze(0), r.tokens.squeeze(0))

    @in_words
    def route(self, x: torch.Tensor, *, valid: torch.Tensor | None = None, sequences: int = 1,
              balance: bool = True) -> tuple[Routed, torch.Tensor]:
        """(Routed, x for whoever reads it next) of x [T, D]."""
        for name, t in (("x", x), ("weight", self.weight)):
            check_mapped(name, t)
        jittered = self.training and self.jitter > 0
        seen = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter) if jittered else x
        z, after = _Product.apply(seen, self.weight)
        if self.bias is not None:
            z = z + self.bias.to(z.dtype)
        if z.is_cuda:
            z = z.to(torch.float32)
        routed = getattr(self, f"_{self.kind}")(z, valid, sequences, balance)
        if self.training:
            self._count(routed, z, valid)
        return routed, x if jittered else after

    def _routed(self, z, valid, sequences, balance, **more):
        r = route(z, self.top_k, valid=valid, sequences=sequences, balance=balance, **self.rule, **more)
        return Routed(*r, z)

    def _topk_softmax(self, z, valid, sequences, balance):
        return self._routed(z, valid, sequences, balance)

    def _sigmoid_bias(self, z, valid, sequences, balance):
        return self._routed(z, valid, sequences, balance, bias=self.e_score_correction_bias)

    def _quantile(self, z, valid, sequences, balance):
        return self._routed(z, valid, sequences, False, beta=self.beta)

    def _sinkhorn(self, z, valid, sequences, balance):
        given = None
        if self.training:
            given = torch.ops.troupe.sinkhorn(z.detach(), valid, self.top_k, self.tolerance, self.max_iterations)[0]
        return self._routed(z, valid, sequences, False, given=given)

    def _expert_choice(self, z, valid, sequences, balance):
        ids, weights, counts, lse2 = torch.ops.troupe.expert_choice(z, valid, None, self.score, self.rho, self.normalize,
                                                                    self.scale)
        n = torch.full((1,), z.shape[0], dtype=torch.int64, device=z.device) if valid is None else valid.sum().reshape(1)
        return Routed(ids, weights, counts, None, lse2.reshape(()), None, n, z)

    def _count(self, routed, z, valid):
        if self.kind not in ("sigmoid_bias", "quantile"):
            return
        if not torch.compiler.is_compiling():
            if in_backward():
                return
            self._forwards += 1
            if self._forwards == 100:
                warnings.warn(f"the router {self.kind} has run 100 training forwards without an end of a step: call "
                              "troupe.end_of_step(module) after optimizer.step()", stacklevel=5)
        with torch.no_grad():
            if self.kind == "sigmoid_bias":
                self.step_counts.add_(routed.counts)
            elif z.shape[0] > 0:
                fresh = torch.ops.troupe.quantile(z.detach(), self.beta, valid, self.top_k)
                self.step_sums.add_(torch.cat([fresh, torch.ones(1, device=fresh.device)]))

    @torch.no_grad()
    def end_of_step(self, group: "ProcessGroup | None" = None) -> None:
        self._forwards = 0
        if self.kind == "sigmoid_bias":
            counts = self._total(self.step_counts, group)
            if self.bias_rate:
                over = counts.sum() - counts * counts.shape[0]  # E (mean - N_e), exact
                self.e_score_correction_bias.add_(over.sign().to(torch.float32), alpha=self.bias_rate)
                if self.center:
                    self.e_score_correction_bias.sub_(self.e_score_correction_bias.mean())
            self.step_counts.zero_()
        elif self.kind == "quantile":
            sums = self._total(self.step_sums, group)
            mean = sums[:-1] / sums[-1].clamp_min(1)
            moved = self.beta * self.ema + mean * (1 - self.ema)
            self.beta.copy_(torch.where(sums[-1] > 0, moved - moved.mean(), self.beta))
            self.step_sums.zero_()

    @staticmethod
    def _total(t, group):
        t = t.clone()
        if group is not None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            torch.distributed.all_reduce(t, group=group)
        return t

    def _apply(self, fn, recurse=True):
        return keep_types(self, fn, lambda: super(Router, self)._apply(fn, recurse))

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, experts={self.experts}, top_k={self.top_k}, kind={self.kind}"
