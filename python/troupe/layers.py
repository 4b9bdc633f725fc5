"""A mixture-of-experts layer, and its parts, each of which can be used or replaced alone.

    moe = troupe.MoE(width=2048, experts=64, top_k=8, hidden=1024)
    y, aux = moe(x)                        # x [..., D]
    loss = task_loss + aux.loss
    ...
    optimizer.step(); troupe.end_of_step(moe)      # for routers that balance without a loss

The same bits as the layer of `troupe train`: outputs, losses and gradients. Parameters have the names that Hugging Face
transformers has in memory; load_state_dict takes other frameworks' too (troupe.layouts)."""
import contextlib
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, overload

import torch
from torch import nn
from typing_extensions import Self, TypeVar, Unpack

from . import ep, layouts, losses, sharding
from .checks import Unsupported, check_tensor, full_precision, wide
from .functional import Plan, Routing, moe_ffn
from .initial import draw, draw_experts, draw_factors, drawn_seed, take
from .lora import Factors, scaling
from .losses import Fractions
from .options import moe_options
from .routers import Router
from .types import Activation, Combine, Device, GradScale, Group, Losses, LossScale, MoEOptions, Recompute

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Aux(NamedTuple):
    """What a layer says beside y. Add `loss` to the loss; the others are for logs."""

    loss: torch.Tensor             # f32, of an f64 layer f64: the weighted sum
    balance: torch.Tensor | None   # the balance loss, its coefficient included; None: off
    z: torch.Tensor | None
    counts: torch.Tensor           # int64 [E], before any dropping
    ids: torch.Tensor              # int32 [T, K]
    logits: torch.Tensor | None    # [T, E], without their graph
    dropped: torch.Tensor | None   # int64: choices beyond the capacity


class Experts(nn.Module):
    """E feed-forwards: forward(x, ids, weights) -> the weighted sum of each token's experts.

    With a group, parameters have this rank's E / W experts (troupe.ep); ids number all E."""

    gate_up_proj: nn.Parameter  # [E, 2F, D]; with gated=False up_proj [E, F, D] in its place
    up_proj: nn.Parameter
    down_proj: nn.Parameter     # [E, D, F]

    def __init__(self, width: int, experts: int, hidden: int, *, activation: Activation = "silu", gated: bool = True,
                 bias: bool = False, clamp: float | None = None, offset: float = 0.0, recompute: Recompute = "none",
                 quantize: Sequence[int] = (-1, -1), lora: Mapping[str, Any] | None = None, group: Group = None,
                 mode: Combine = "fast", grad: GradScale = "mean", std: float = 0.02, layers: int = 1, device: Device = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        ep.check(mode, grad)
        kind = {"device": device, "dtype": dtype}
        self.width, self.experts, self.hidden = width, experts, hidden
        self.form = {"activation": activation, "gated": gated, "clamp": clamp, "offset": offset, "recompute": recompute,
                     "quantize": tuple(quantize)}
        self.ranks, self.over = ep.ranks_of(group), {"mode": mode, "grad": grad}
        self.as_dtensors = False  # troupe.shard_experts: parameters have the shapes of the whole
        self.std, self.layers = std, layers
        held, first = len(ep.own_experts(experts, self.ranks)), 2 * hidden if gated else hidden
        self._first = "gate_up_proj" if gated else "up_proj"
        self.register_parameter(self._first, nn.Parameter(torch.empty(held, first, width, **kind)))
        self.down_proj = nn.Parameter(torch.empty(held, width, hidden, **kind))
        for name, size in ((f"{self._first}_bias", first), ("down_proj_bias", width)):
            self.register_parameter(name, nn.Parameter(torch.empty(held, size, **kind)) if bias else None)
        self.lora = lora  # options.moe_options, or None
        if lora is not None:
            for name, out, units in self._adapted():
                getattr(self, name).requires_grad_(False)
                self.register_parameter(f"{name}_lora_a", nn.Parameter(torch.empty(held, lora["rank"], units, **kind)))
                self.register_parameter(f"{name}_lora_b", nn.Parameter(torch.empty(held, out, lora["rank"], **kind)))
        self.reset_parameters()

    def _adapted(self):
        """(name, out, in) of each weight that adapters lie on; none without them."""
        first = 2 * self.hidden if self.form["gated"] else self.hidden
        return [] if self.lora is None else [(self._first, first, self.width), ("down_proj", self.width, self.hidden)]

    def _factors(self):
        if self.lora is None:
            return None
        scale = scaling(self.lora["rank"], self.lora["alpha"], self.lora["rslora"])
        dropout = self.lora["dropout"] if self.training else 0.0
        return [Factors(sharding.local(self, f"{name}_lora_b"), sharding.local(self, f"{name}_lora_a"), scale, dropout)
                for name, *_ in self._adapted()]

    @torch.no_grad()
    def merge_lora(self) -> Self:
        """Adds scaling B A to the weights, which stay frozen, and removes the adapters; an optimizer made before still has them."""
        if self.lora is None:
            raise ValueError("merge_lora: these experts have no adapters")
        for f, (name, *_) in zip(self._factors(), self._adapted(), strict=True):
            weight, kind = sharding.local(self, name), wide(f.lhs.dtype)
            weight.copy_(torch.baddbmm(weight.to(kind), f.lhs.to(kind), f.rhs.to(kind), alpha=f.scaling))
        for name, *_ in self._adapted():
            delattr(self, f"{name}_lora_a")
            delattr(self, f"{name}_lora_b")
        self.lora = None
        return self

    def reset_parameters(self, seed: int | None = None, name: str = "experts") -> None:
        """N(0, std), and N(0, std / sqrt(2 layers)) for down_proj: element i of expert e is a function of the seed, the
        name, e and i alone, wherever experts are. Without a seed one is drawn from PyTorch's generator."""
        seed = drawn_seed(seed, self)
        own = range(self.experts) if self.as_dtensors else ep.own_experts(self.experts, self.ranks)
        draw_experts(getattr(self, self._first), f"{name}.w1", seed, self.std, own)
        draw_experts(self.down_proj, f"{name}.w2", seed, self.std / (2.0 * self.layers) ** 0.5, own)
        for w, (weight, *_) in zip(("w1", "w2"), self._adapted()):
            draw_factors(getattr(self, f"{weight}_lora_a"), getattr(self, f"{weight}_lora_b"), f"{name}.{w}_lora_a", seed, own)
        for bias in (getattr(self, f"{self._first}_bias"), self.down_proj_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    if TYPE_CHECKING:
        def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *, plan: Plan | None = None) -> torch.Tensor: ...

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *, plan: Plan | None = None) -> torch.Tensor:
        if self.ranks is not None:
            sharding.check_wrapper(self)
        return moe_ffn(x, ids, weights, sharding.local(self, self._first), sharding.local(self, "down_proj"),
                       gate_up_bias=sharding.local(self, f"{self._first}_bias"), down_bias=sharding.local(self, "down_proj_bias"),
                       plan=plan, lora=self._factors(), group=self.ranks, **self.over, **self.form)

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        """Over ranks, of tensors that have all experts this rank's. Where there is no adapter's tensor a base is loaded: ours stay."""
        names = [f"{name}_lora_{side}" for name, *_ in self._adapted() for side in "ab"]
        if not any(prefix + name in state_dict for name in names):
            state_dict.update({prefix + name: getattr(self, name).detach() for name in names})
        if self.ranks is not None and not self.as_dtensors:
            own = ep.own_experts(self.experts, self.ranks)
            for name, _ in self.named_parameters(recurse=False):
                t = state_dict.get(prefix + name)
                if t is not None and t.shape[:1] == (self.experts,):
                    state_dict[prefix + name] = t[own.start:own.stop]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        said = f"{self.width}, experts={self.experts}, hidden={self.hidden}, activation={self.form['activation']}"
        if self.lora is not None:
            said += f", lora={self.lora}"
        if self.ranks is None:
            return said
        return (f"{said}, over {self.ranks.size} ranks (group {self.ranks.name}), mode={self.over['mode']}, "
                f"grad={self.over['grad']}: the host waits for row counts once a call")


class SharedExperts(nn.Module):
    """A feed-forward for every token, under the names of Hugging Face's MLPs."""

    def __init__(self, width, hidden, *, std, layers, device=None, dtype=None, **form):
        super().__init__()
        kind = {"device": device, "dtype": dtype, "bias": False}
        self.form, self.std, self.layers = form, std, layers
        self.gate_proj = nn.Linear(width, hidden, **kind) if form["gated"] else None
        self.up_proj = nn.Linear(width, hidden, **kind)
        self.down_proj = nn.Linear(hidden, width, **kind)

    def reset_parameters(self, seed=None, name="shared"):
        seed, gate, up = drawn_seed(seed, self), self.gate_proj, self.up_proj.weight
        if gate is None:
            draw(up, f"{name}.w1", seed, self.std)
        elif up.device.type != "meta":
            both = torch.empty(2 * up.shape[0], up.shape[1], dtype=up.dtype, device=up.device)
            draw(both, f"{name}.w1", seed, self.std)
            for own, half in zip((gate.weight, up), both.chunk(2), strict=True):
                take(own, half)
        draw(self.down_proj.weight, f"{name}.w2", seed, self.std / (2.0 * self.layers) ** 0.5)

    def forward(self, x):
        up = self.up_proj.weight if self.gate_proj is None else torch.cat([self.gate_proj.weight, self.up_proj.weight])
        ids = torch.zeros(*x.shape[:-1], 1, dtype=torch.int32, device=x.device)
        ones = torch.ones(ids.shape, dtype=wide(x.dtype), device=x.device)
        return moe_ffn(x, ids, ones, up.unsqueeze(0), self.down_proj.weight.unsqueeze(0), **self.form)


Y = TypeVar("Y", default=tuple[torch.Tensor, Aux])


class MoE(nn.Module, Generic[Y]):
    """Router, experts, shared experts. `help(troupe.options.moe_options)` has every argument; those of a recipe's `moe:` are
    taken as they are: troupe.MoE(width=512, **recipe["model"]["moe"]).

    forward(x, *, valid=None, sequences=1) -> (y, Aux), or y alone with losses="attach" or "none"
    valid      bool, x's leading dimensions: False is padding. sequences: how many x is made of, for balance="seq"; an x of
               three dimensions says it itself

    To be read: width, num_experts, top_k, hidden. A type checker knows what a call returns: MoE[torch.Tensor] gives y alone."""

    options: SimpleNamespace
    gate: nn.Module
    shared_experts: SharedExperts | None
    shared_expert_gate: nn.Linear | None
    output_bias: nn.Parameter | None
    loss_scale: LossScale | None
    if TYPE_CHECKING:
        @property
        def experts(self) -> Experts: ...
        @experts.setter
        def experts(self, module: nn.Module) -> None: ...  # DistributedDataParallel(moe.experts)
        def __call__(self, x: torch.Tensor, *, valid: torch.Tensor | None = None, sequences: int | None = None) -> Y: ...

    @overload
    def __init__(self: "MoE[tuple[torch.Tensor, Aux]]", width: int, experts: int, top_k: int = 2, hidden: int | None = None, *,
                 losses: Literal["return"] = "return", **options: Unpack[MoEOptions]) -> None: ...

    @overload
    def __init__(self: "MoE[torch.Tensor]", width: int, experts: int, top_k: int = 2, hidden: int | None = None, *,
                 losses: Literal["attach", "none"], **options: Unpack[MoEOptions]) -> None: ...

    def __init__(self, width: int, experts: int, top_k: int = 2, hidden: int | None = None, *, losses: Losses = "return",
                 **options: Unpack[MoEOptions]) -> None:
        super().__init__()
        o = moe_options(width, experts, top_k, hidden, losses=losses, **options)
        kind = {"device": o.device, "dtype": o.dtype}
        form = {"activation": o.activation, "gated": o.gated, "clamp": o.clamp, "offset": o.offset}
        o.group = ep.ranks_of(o.group)  # which is copied and saved, as a ProcessGroup is not
        self.options = o
        self.gate = o.router if isinstance(o.router, nn.Module) else Router(width, experts, top_k, **o.routing, **kind)
        inside = "none" if o.recompute == "layer" else o.recompute
        self.experts = Experts(width, experts, o.hidden, bias=o.bias, recompute=inside, quantize=o.quantize, lora=o.lora,
                               group=o.group, mode=o.mode, grad=o.grad, std=o.std, layers=o.layers, **form, **kind)
        self.shared_experts = self.shared_expert_gate = None
        if o.shared_hidden:
            self.shared_experts = SharedExperts(width, o.shared_hidden, std=o.std, layers=o.layers, **form, **kind)
        if o.shared_form == "gate":
            self.shared_expert_gate = nn.Linear(width, 1, bias=False, **kind)
        self.output_bias = nn.Parameter(torch.empty(width, **kind)) if o.output_bias else None
        self.fractions = Fractions(experts, o.device) if o.balance == "global" else None
        self.loss_scale = None  # of the loss, for losses="attach": set_loss_scale. None: not said, 1
        self._scaler_sought = False
        self._unused = 0  # training forwards since a gradient last reached aux.loss
        self.reset_parameters()

    @classmethod
    def from_hf(cls, source: Any, **options: Any) -> Self:
        """The layer of a transformers MoE block, with its tensors, or of a configuration (troupe.hf_layer). Options are MoE's."""
        from .hf_layer import from_hf
        return from_hf(cls, source, options)

    def to_hf_state_dict(self) -> dict[str, torch.Tensor]:
        """Under the names of the block that it came from."""
        from .hf_layer import to_hf_state_dict
        return to_hf_state_dict(self)

    def merge_lora(self) -> Self:
        """Experts.merge_lora, of this layer's; returns the layer."""
        getattr(self.experts, "module", self.experts).merge_lora()
        return self

    def reset_parameters(self, seed: int | None = None, name: str = "") -> None:
        """As Experts.reset_parameters: a layer of a model has the values of `troupe train` under its name and seed."""
        seed, dot = drawn_seed(seed, self), f"{name}." if name else ""
        if hasattr(self.gate, "reset_parameters"):
            self.gate.reset_parameters(seed, f"{dot}router")
        self.experts.reset_parameters(seed, f"{dot}experts")
        if self.shared_experts is not None:
            self.shared_experts.reset_parameters(seed, f"{dot}shared")
        for zero in (self.output_bias, getattr(self.shared_expert_gate, "weight", None)):
            if zero is not None:
                nn.init.zeros_(zero)
        if self.fractions is not None:
            self.fractions.forget()
        self._unused = 0

    @property
    def width(self) -> int:
        """D: columns of x and y."""
        return self.options.width

    @property
    def num_experts(self) -> int:
        """E, over all ranks."""
        return self.options.experts

    @property
    def top_k(self) -> int:
        """K: experts of a token."""
        return self.options.top_k

    @property
    def hidden(self) -> int:
        """Units of one expert."""
        return self.options.hidden

    def forward(self, x: torch.Tensor, *, valid: torch.Tensor | None = None, sequences: int | None = None) -> Any:
        o = self.options
        with self._refusing(x):
            routing, seen, (ids, weights, dropped) = self._choices(x, valid, sequences)
        if o.recompute == "layer" and torch.is_grad_enabled():
            y = torch.utils.checkpoint.checkpoint(self._mixture, seen, ids, weights, use_reentrant=False)
        else:
            y = self._mixture(seen, ids, weights)
        if self.output_bias is not None and not o.return_bias:
            y = y + self.output_bias
        y = y.reshape(x.shape)
        balance, z = self._losses(routing) if self.training and o.losses != "none" else (None, None)
        if o.losses == "attach" and (balance is not None or z is not None):
            scale = self._scale_of_loss()
            for loss in (balance, z):
                y = y if loss is None else losses.attach(y, loss, scale)
        y = (y, self.output_bias) if o.return_bias else y
        if o.losses != "return":
            return y
        logits = getattr(routing, "logits", None)
        return y, Aux(self._sum(balance, z, x), balance, z, routing.counts, routing.ids,
                      None if logits is None else logits.detach(), dropped)

    def _scale_of_loss(self):
        if self.loss_scale is None:
            if not self._scaler_sought and not torch.compiler.is_compiling():
                losses.refuse_unknown_scale()
                self._scaler_sought = True
            return 1.0
        return self.loss_scale() if callable(self.loss_scale) else self.loss_scale

    def _refusing(self, x):
        """What this rank cannot route the others hear of before they wait for its rows."""
        ranks = getattr(getattr(self.experts, "module", self.experts), "ranks", None)  # inside DDP or not
        if ranks is None or torch.compiler.is_compiling():
            return contextlib.nullcontext()
        return ep.refusing(ranks, x if isinstance(x, torch.Tensor) else next(self.parameters()))

    def _choices(self, x, valid, sequences):
        """(routing, x as the experts take it, (ids, weights, dropped) within the capacity)."""
        check_tensor("x", x)
        o, B = self.options, sequences or (x.shape[0] if x.dim() == 3 else 1)
        valid = None if valid is None else valid.reshape(-1)
        routing, seen = self._route(x.reshape(-1, x.shape[-1]), valid, B)
        if not o.capacity or not (self.training or o.capacity["in_evaluation"]):
            return routing, seen, (routing.ids, routing.weights, None)
        return routing, seen, torch.ops.troupe.drop_over_capacity(
            routing.ids, routing.weights, valid, o.experts, o.capacity["factor"], o.capacity["min"],
            o.capacity["renormalize"], o.capacity["policy"])

    def _route(self, x, valid, sequences):
        if isinstance(self.gate, Router):
            return self.gate(x, valid=valid, inside={"sequences": sequences,
                                                     "balance": self.training and self.options.balance != "none"})
        r = self.gate(x)
        if not isinstance(r, Routing):
            raise TypeError(f"router {type(self.gate).__name__} returned a {type(r).__name__}; it must return a troupe.Routing")
        return r, x

    def _mixture(self, x, ids, weights):
        o = self.options
        # x has the experts' type, which may differ from that of the layer's input under a router in f32.
        y = self.experts(x, ids, weights)
        if self.shared_experts is None:
            return y
        shared = self.shared_experts(x)
        if o.shared_form == "weighted":
            return shared / (o.top_k + 1.0) + y * (o.top_k / (o.top_k + 1.0))
        if o.shared_form == "gate":
            kind = wide(x.dtype)
            with full_precision(x):
                opened = torch.sigmoid(torch.matmul(x.to(kind), self.shared_expert_gate.weight.to(kind).t()))
                shared = (shared * opened).to(shared.dtype)
        return y + shared

    def _losses(self, r):
        o = self.options
        balance = z = None
        if o.balance != "none" and o.aux_loss:
            if r.scores is None:
                raise Unsupported(f"balance={o.balance!r}: the router gave no scores; set balance='none'")
            rows = [t.unsqueeze(0) if t.dim() < n else t
                    for t, n in ((r.plain_counts, 2), (r.scores, 2), (r.tokens, 1))]
            balance = losses.balance_loss(o.balance, *rows, o.top_k, layers=o.layers, tracker=self.fractions) * o.aux_loss
        if o.z_loss:
            z = losses.z_loss(r.lse2, r.tokens) * o.z_loss
        return balance, z

    def _sum(self, balance, z, x):
        present = [t for t in (balance, z) if t is not None]
        if not present:
            return torch.zeros((), dtype=wide(x.dtype), device=x.device)
        total = sum(present[1:], present[0]).to(wide(x.dtype))
        if not torch.compiler.is_compiling() and total.requires_grad:
            self._unused += 1
            total.register_hook(self._used)
            if self._unused == 20:
                warnings.warn("no gradient has reached aux.loss in 20 training forwards: add it to the loss, or take "
                              "losses='attach' or 'none'", stacklevel=3)
        return total

    def _used(self, grad):
        self._unused = 0
        return grad

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        layouts.adapt(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        o = self.options
        return f"top_k={o.top_k}, losses={o.losses}, balance={o.balance}, aux_loss={o.aux_loss}, z_loss={o.z_loss}"


def set_loss_scale(module: nn.Module, scale: LossScale | None) -> None:
    """What the loss of `module` is multiplied by before its backward, for layers with losses="attach", whose balance loss cannot
    see it. A number, a tensor of one, or a function that gives one, which each forward in training calls:

        troupe.set_loss_scale(model, lambda: scaler.get_scale() / microbatches)     # loss = scaler.scale(task / microbatches)

    It stays until it is set again. Where none was set, the first forward in training refuses a process with a GradScaler."""
    found = [m for m in module.modules() if isinstance(m, MoE)]
    if not found:
        raise ValueError(f"set_loss_scale: {type(module).__name__} has no troupe.MoE")
    for m in found:
        m.loss_scale = scale


def end_of_step(module: nn.Module, group: "ProcessGroup | None" = None) -> None:
    """After each optimizer step: moves the routers' balance biases by what the step's forwards counted (over all ranks of
    `group`) and forgets what was counted."""
    for m in module.modules():
        if isinstance(m, Router):
            m.end_of_step(group)
        elif isinstance(m, losses.Fractions):
            m.forget()
