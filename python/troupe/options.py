"""The arguments of troupe.MoE: checked, and a recipe's `moe:` block taken apart into them."""
import difflib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import torch

from .checks import Unsupported
from .functional import ACTIVATIONS
from .losses import KINDS
from .types import Activation, Balance, Combine, Device, GradScale, Group, Groups, Losses, RouterKind, Score

ROUTERS = ("topk_softmax", "sigmoid_bias", "quantile", "sinkhorn", "expert_choice")
# What a recipe says and a layer by itself does not have: refused where it is more than its default.
ELSEWHERE = {"score_on_input": False, "impl": "grouped", "latent": 0, "table_layers": 0}
OLD_NAMES = {"centre": "center", "normalise": "normalize", "renormalise": "renormalize"}  # recipes saved before have them


def moe_options(width: int, experts: int, top_k: int = 2, hidden: int | None = None, *,
                router: RouterKind | torch.nn.Module | Mapping[str, Any] = "topk_softmax",
                order: Literal["auto", "before", "after"] = "auto", norm_topk: bool | float | None = None, scale: float = 1.0,
                groups: Groups = None, router_bias: bool = False, score: Score | None = None, rho: float = 0.0,
                normalize: bool = False, tolerance: float = 1e-4, max_iterations: int = 100, ema: float = 0.0,
                bias_rate: float | None = None, center: bool = False, jitter: float = 0.0, balance: Balance | None = None,
                aux_loss: float = 1e-2, z_loss: float = 0.0, capacity: float | Mapping[str, Any] | None = None,
                activation: Activation = "silu", gated: bool = True, bias: bool = False, clamp: float | None = None,
                offset: float = 0.0, shared: int | Mapping[str, Any] = 0, shared_hidden: int = 0, shared_gate: bool = False,
                shared_weighted: bool = False, output_bias: bool = False, return_bias: bool = False, losses: Losses = "return",
                recompute: Literal["none", "act", "expert", "layer"] = "none",
                quantize: Sequence[int] | Mapping[str, int] = (-1, -1), lora: Mapping[str, Any] | None = None,
                group: Group = None, mode: Combine = "fast", grad: GradScale = "mean", std: float = 0.02,
                layers: int | str | Sequence[Any] = 1, device: Device = None, dtype: torch.dtype | None = None,
                **others: Any) -> SimpleNamespace:
    """A mixture of `experts` feed-forwards of `hidden` units over a width, of which each token takes `top_k`.

    router       topk_softmax, sigmoid_bias, quantile, sinkhorn, expert_choice; a module x -> troupe.Routing; or a recipe's block
    order        topk_softmax: "after" weighs by the softmax of the chosen logits, "before" by that of all; "auto": after for
                 top_k > 1. norm_topk: True, or the order q of a norm that a token's weights are divided by; scale multiplies them
    groups       (groups, keep, best): experts in groups, of which a token sees its best `keep`
    score, bias_rate, center   sigmoid_bias; rho, normalize, score: expert_choice; ema, score: quantile
    jitter       the router alone sees x times a uniform number in [1 - jitter, 1 + jitter], in training
    balance      aux, seq, global, batched, none; its coefficient is aux_loss. Default: aux for topk_softmax and a router of
                 one's own, else none
    capacity     rows that an expert takes, as a multiple of T K / E; or {factor, min, policy, renormalize, in_evaluation}
    shared       that many shared experts, as one of shared_hidden units; shared_gate, shared_weighted: how they are added
    losses       "return": y, aux; "attach": y, whose backward has the losses' gradients; "none". What the loss is multiplied by
                 (GradScaler, loss / microbatches) the layer cannot see: moe.loss_scale = 1 / microbatches,
                 or troupe.set_loss_scale(model, ...), which says it to all layers. transformers' Trainer needs none where its
                 model takes num_items_in_batch: it sums microbatches, and its own balance loss counts once in each
    recompute    none, act, expert (H is made again in backward), layer (all but the router)
    quantize     bits in which backward keeps x and H: -1, 8 or 4
    lora         {rank, alpha, rslora, dropout}: adapters of every expert, alpha / rank (rslora: / sqrt(rank)) times B A beside the weight,
                 which is frozen; dropout: of the rows that A sees, in training
    group        experts over its ranks, a ProcessGroup or mesh["ep"]; mode, grad: how rows come back and gradients are scaled
                 (help(troupe.ep))
    std, layers  initial values: N(0, std), and N(0, std / sqrt(2 layers)) for what leads back into the residual"""
    o = SimpleNamespace(**{k: v for k, v in locals().items() if k != "others"})
    o.down_std = None
    _recipe(o, others)
    if hidden is None:
        raise ValueError("hidden is missing: the units of one expert")
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k} and experts is {experts}; 1 <= top_k <= experts must hold")
    one_of("losses", o.losses, ("return", "attach", "none"))
    one_of("recompute", o.recompute, ("none", "act", "expert", "layer"))
    one_of("activation", o.activation, ACTIVATIONS)
    _routing(o)
    o.balance = o.balance or ("none" if o.router in ROUTERS[1:] else "aux")
    one_of("balance", o.balance, KINDS)
    if o.balance != "none" and o.router in ("quantile", "sinkhorn", "expert_choice"):
        raise ValueError(f"balance is {o.balance!r}: the router {o.router} balances by itself")
    if o.shared_gate and o.shared_weighted:
        raise ValueError("shared_gate and shared_weighted exclude each other")
    o.shared_form = ("gate" if o.shared_gate else "weighted" if o.shared_weighted else "sum") if o.shared else None
    o.shared_hidden = 0 if not o.shared else o.shared_hidden or o.shared * o.hidden
    if o.capacity is not None:
        given = o.capacity if isinstance(o.capacity, dict) else {"factor": o.capacity}
        o.capacity = {"factor": 0.0, "min": 1, "policy": "probs", "renormalize": False, "in_evaluation": False}
        _take("capacity", given, o.capacity)
        one_of("capacity.policy", o.capacity["policy"], ("probs", "position"))
        o.capacity = o.capacity if o.capacity["factor"] else None
        if o.capacity and o.router in ("quantile", "sinkhorn", "expert_choice"):
            raise ValueError(f"capacity: the router {o.router} balances by itself and excludes one")
    return o


def one_of(name, value, known):
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(str, known))}")


def _unknown(where, name, known):
    near = difflib.get_close_matches(name, known, 1)
    raise TypeError(f"{where} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"))


def _take(where, given, into):
    for name, value in given.items():
        name = OLD_NAMES.get(name, name)
        if name not in into:
            _unknown(where, name, list(into))
        into[name] = value


def _recipe(o, others):
    """The nested blocks of a recipe, into the flat arguments."""
    for name, value in others.items():
        if name == "init":
            init = {"std": o.std, "down_std": None, "truncate": 0, "kaiming": False, "same_experts": False}
            _take("init", value, init)
            if init["truncate"] or init["kaiming"] or init["same_experts"]:
                raise Unsupported("init: std and down_std alone; set other initial values after the layer is made")
            o.std, o.down_std = init["std"], init["down_std"]
        elif name in ELSEWHERE:
            if value != ELSEWHERE[name]:
                raise Unsupported(f"{name}={value!r}: reached through `troupe train` alone")
        else:
            _unknown("MoE", name, [k for k in vars(o) if k != "down_std"] + ["init"])
    if isinstance(o.layers, str | list):
        o.layers = 1  # which of a model's layers are mixtures: this is one
    if isinstance(o.quantize, dict):
        bits = {"inputs": -1, "rematerialize": -1, "scatter": -1}
        _take("quantize", o.quantize, bits)
        o.quantize = (bits["inputs"], bits["rematerialize"])
    o.lora = _lora(o)
    if isinstance(o.shared, dict):
        shared = {"experts": 0, "hidden": 0, "form": "sum", "overlap": True}
        _take("shared", o.shared, shared)
        o.shared, o.shared_hidden = shared["experts"], shared["hidden"]
        one_of("shared.form", shared["form"], ("sum", "weighted", "gate"))
        o.shared_gate, o.shared_weighted = shared["form"] == "gate", shared["form"] == "weighted"
    if isinstance(o.router, dict):
        _recipe_router(o, dict(o.router))


def _lora(o):
    """The adapters' numbers; None for rank 0, as a recipe has it without them."""
    lora = {"rank": 0, "alpha": 16.0, "rslora": False, "dropout": 0.0}
    if o.lora is not None and not isinstance(o.lora, dict):
        raise TypeError(f"lora is a {type(o.lora).__name__}; it must be a dict of {', '.join(lora)}")
    _take("lora", o.lora or {}, lora)
    if lora["rank"] < 0 or not 0 <= lora["dropout"] < 1:
        raise ValueError(f"lora: rank is {lora['rank']} and dropout {lora['dropout']}; rank >= 0 and 0 <= dropout < 1 must hold")
    if not lora["rank"]:
        return None
    if o.recompute == "expert" or tuple(o.quantize) != (-1, -1):
        raise Unsupported("lora: backward reads H and x as they are: recompute must be none, act or layer, and quantize left out")
    return lora


def _recipe_router(o, block):
    o.router = block.pop("kind", "topk_softmax")
    names = {"p_norm": "norm_topk", "bias": "router_bias", "std": "router_std", "limit": "groups"}
    o.router_std = o.std
    for name, value in block.items():
        name = OLD_NAMES.get(name, name)
        if name == "balance":
            _recipe_balance(o, value)
        elif name in ("fp64", "force", "force_std", "force_fixed", "scope"):
            if value not in (False, "none", "rank", "micro_batch", 1):
                raise Unsupported(f"router.{name}={value!r}: reached through `troupe train` alone")
        elif name == "limit":
            limit = {"groups": 1, "keep": 1, "top": 0}
            _take("router.limit", value, limit)
            best = limit["top"] or max(1, o.top_k // limit["keep"])
            o.groups = (limit["groups"], limit["keep"], best) if limit["groups"] > 1 else None
        elif hasattr(o, names.get(name, name)):
            setattr(o, names.get(name, name), value or None if name == "p_norm" else value)
        else:
            _unknown("router", name, [*names, "order", "scale", "jitter", "score", "bias_rate", "center", "z_loss", "rho",
                                      "normalize", "tolerance", "max_iterations", "ema", "balance", "kind"])


def _recipe_balance(o, block):
    losses = {"aux_loss": 0, "seq_loss": 0, "global_loss": 0, "batched_loss": 0, "z_loss": 0}
    if o.router == "topk_softmax":
        losses["aux_loss"] = 1e-2  # a recipe's default, which stays beside others unless it says 0
    _take("router.balance", block, losses)
    o.z_loss = losses.pop("z_loss")
    on = {name.removesuffix("_loss"): c for name, c in losses.items() if c}
    if len(on) > 1:
        raise Unsupported(f"router.balance has {' and '.join(f'{k}_loss {c}' for k, c in on.items())}: one at a time here; set "
                          "the others to 0 (aux_loss is 0.01 unless the recipe says 0)")
    o.balance, o.aux_loss = next(iter(on.items())) if on else ("none", 0.0)


def _routing(o):
    """The arguments of troupe.Router."""
    o.routing = None
    if not isinstance(o.router, str):
        return
    one_of("router", o.router, ROUTERS)
    o.routing = {"kind": o.router, "std": getattr(o, "router_std", o.std)} | {n: getattr(o, n) for n in (
        "order", "norm_topk", "scale", "groups", "score", "rho", "normalize", "tolerance", "max_iterations", "ema",
        "bias_rate", "center", "jitter")} | {"bias": o.router_bias}
