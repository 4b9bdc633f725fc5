"""The experts as functions: one's own router and weights go in.

    y = troupe.moe_ffn(x, ids, weights, gate_up, down)

    x [..., D]       tokens                    ids, weights [..., K]   the experts of each token, and what they count
    gate_up [E, 2F, D]  gate rows, then up rows ([E, F, D] with gated=False)     down [E, D, F]

    y = sum over k of down[e] (weights[k] act(gate_up[e] x)),  e = ids[k]

Every argument but ids has a gradient. An id outside [0, E) has no row: it adds nothing, and its weight's gradient is 0.
The same inputs give the same bits in every call. What cannot be computed raises `Unsupported`, which says what to do;
nothing falls back to other code."""
from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import ep, ep_op, routing
from . import lora as adapters
from .checks import FLOATS, Unsupported, check_beside, check_tensor, in_words, wide
from .lora import Factors
from .routing import Plan, Routing, plan, plan_from_counts, route
from .types import Activation, Combine, GradScale, Group, Layout, Recompute

__all__ = ("ACTIVATIONS", "FLOATS", "Plan", "Routing", "Unsupported", "grouped_ffn", "grouped_mm", "moe_ffn", "plan",
           "plan_from_counts", "route")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")


def _computed_in(x, parameters):
    """(type to compute in, type of the result).

    without autocast  x's, which every parameter must have                 x's
    under autocast    autocast's; the weights of the choices stay f32      x's if it has 16 bits, else autocast's"""
    for name, t in parameters:
        check_beside(name, t, "x", x)
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
        return kind, x.dtype if x.dtype in (torch.bfloat16, torch.float16) else kind
    for name, t in parameters:
        if t.dtype != x.dtype:
            raise Unsupported(f"x is {x.dtype} and {name} is {t.dtype}. Pass one type (x.to({t.dtype}), or "
                              f"module.to({x.dtype})), or compute under torch.autocast")
    return x.dtype, x.dtype


def _parameters(gate_up, down, up, gate_up_bias, down_bias):
    """(name, tensor) of those that are given."""
    named = {"gate_up": gate_up, "down": down, "up": up, "gate_up_bias": gate_up_bias, "down_bias": down_bias}
    return [(name, t) for name, t in named.items() if t is not None]


class _Experts(NamedTuple):
    """Weights as the operator has them: [E, 2F, D] and [E, D, F], or in an order that `layout` says."""

    w1: torch.Tensor
    b1: torch.Tensor | None
    w2: torch.Tensor
    b2: torch.Tensor | None
    up: torch.Tensor | None
    layout: dict

    def to(self, kind):
        return self._replace(**{n: t.to(kind) for n, t in zip(self._fields[:5], self[:5]) if t is not None})

    def plain(self):
        """The same by copies: gate rows, then up rows; out by in."""
        w1, b1, w2, b2, up, layout = self
        if layout["up_columns"]:
            w1, up = w1.transpose(1, 2), None if up is None else up.transpose(1, 2)
        if layout["down_columns"]:
            w2 = w2.transpose(1, 2)
        if up is not None:
            w1 = torch.cat([w1, up], 1)
        if layout["interleaved"]:
            w1, b1 = _halves(w1), None if b1 is None else _halves(b1)
        return _Experts(w1, b1, w2, b2, None, {})


def _halves(t):
    """Gate and up in turns along dimension 1 -> all of gate, then all of up."""
    return t.unflatten(1, (t.shape[1] // 2, 2)).transpose(1, 2).flatten(1, 2)


def _experts(x, gate_up, down, up, gate_up_bias, down_bias, gated, up_layout, down_layout, interleaved):
    for name, layout in (("up_layout", up_layout), ("down_layout", down_layout)):
        if layout not in ("rows", "columns"):
            raise ValueError(f"{name} is {layout!r}; it must be 'rows', [E, out, in], or 'columns', [E, in, out]")
    if interleaved and (up is not None or not gated):
        raise ValueError("interleaved=True says that gate_up holds gate and up in turns; here there is "
                         + ("a tensor `up` beside it" if up is not None else "no gate"))
    if up is not None and not gated:
        raise ValueError("gated=False takes no `up`")
    columns = {"up_columns": up_layout == "columns", "down_columns": down_layout == "columns"}
    E, D, F = down.shape[0], *(down.shape[:0:-1] if columns["down_columns"] else down.shape[1:])
    out = 2 * F if gated and up is None else F
    want = (E, D, out) if columns["up_columns"] else (E, out, D)
    if D != x.shape[-1] or tuple(gate_up.shape) != want or (up is not None and tuple(up.shape) != want):
        raise ValueError(
            f"x has {x.shape[-1]} columns, gate_up is {list(gate_up.shape)} (up_layout={up_layout!r}) and down is "
            f"{list(down.shape)} (down_layout={down_layout!r}, so F = {F}); as rows, gate_up must be "
            f"[E, {'2F' if out > F else 'F'}, D] and down [E, D, F]")
    return _Experts(gate_up, gate_up_bias, down, down_bias, up, {**columns, "interleaved": interleaved})


def _check_form(activation, recompute):
    if activation not in ACTIVATIONS:
        raise Unsupported(f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}. Others: grouped_mm, the "
                          "activation, grouped_mm")
    if recompute not in ("none", "act", "expert"):
        raise ValueError(f"recompute is {recompute!r}; it must be none, act or expert")


def _ffn(x, weights, plan, experts, activation, clamp, offset, recompute, quantize, lora=None):
    _check_form(activation, recompute)
    if lora is not None:
        adapters.check(lora, experts.w1, experts.w2, experts.layout, experts.up, recompute, quantize)
        return adapters.experts_ffn(x, weights, plan, experts, lora, activation, clamp, float(offset), recompute)
    if x.device.type == "cuda":
        experts = experts.plain()
    w1, b1, w2, b2, up, layout = experts
    return torch.ops.troupe.moe_ffn(
        x, weights, w1, w2, list(plan), b1=b1, b2=b2, up=up, activation=activation, clamp=clamp, offset=float(offset),
        keep_hidden=recompute != "expert", input_bits=quantize[0], hidden_bits=quantize[1], **layout)


class _Call(NamedTuple):
    """What moe_ffn was given, checked and in the type that it is computed in."""

    x: torch.Tensor        # [T, D]
    ids: torch.Tensor      # [T, K]
    weights: torch.Tensor  # [T, K]
    experts: _Experts
    result: torch.dtype


def _call(x, ids, weights, experts, form):
    parameters = _parameters(*experts)
    for name, t in (("x", x), ("weights", weights), *parameters):
        check_tensor(name, t)
    check_tensor("ids", ids, floating=False)
    for name, t in (("ids", ids), ("weights", weights)):
        check_beside(name, t, "x", x)
    if ids.shape != weights.shape or ids.shape[:-1] != x.shape[:-1]:
        raise ValueError(f"ids {list(ids.shape)} and weights {list(weights.shape)} must be [..., K] with x's leading "
                         f"dimensions; x is {list(x.shape)}")
    kind, result = _computed_in(x, parameters)
    K = ids.shape[-1]
    return _Call(x.reshape(-1, x.shape[-1]).to(kind), ids.reshape(-1, K), weights.reshape(-1, K).to(wide(kind)),
                 _experts(x, *experts, *form).to(kind), result)


@in_words
def moe_ffn(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *,
            up: torch.Tensor | None = None, gate_up_bias: torch.Tensor | None = None, down_bias: torch.Tensor | None = None,
            activation: Activation = "silu", gated: bool = True, clamp: float | None = None, offset: float = 0.0,
            up_layout: Layout = "rows", down_layout: Layout = "rows", interleaved: bool = False, plan: Plan | None = None,
            recompute: Recompute = "none", quantize: Sequence[int] = (-1, -1), lora: Sequence[Factors | None] | None = None,
            group: Group = None, mode: Combine = "fast", grad: GradScale = "mean") -> torch.Tensor:
    """The experts' output for every token, of x's shape. act is activation(min(g, clamp)) (clip(u, +-clamp) + offset)
    with [g | u] = gate_up x + gate_up_bias, and weight * down_bias is added.

    up                gate and up as two tensors: gate_up is the gate alone
    up_layout         "rows": [E, out, in], "columns": [E, in, out]; down_layout likewise
    interleaved       gate and up take turns along gate_up's outputs (gpt-oss)
    plan              of these ids, where several calls share it
    recompute         "expert": backward makes H again from x instead of keeping it
    quantize          bits (8, 4; -1: all) in which backward keeps x and H
    lora              (of gate_up, of down): troupe.lora.Factors(lhs, rhs, scaling, dropout) or None, which add scaling lhs rhs to that
                      weight without making it: lhs [E, out, r] and rhs [E, r, in], or as the weight's layout has them
    group, mode, grad experts over ranks (troupe.ep): the tensors have this rank's E / W experts, ids number all E"""
    weights_of_experts, form = (gate_up, down, up, gate_up_bias, down_bias), (gated, up_layout, down_layout, interleaved)
    how = (activation, clamp, offset, recompute, quantize, lora)
    if group is not None:
        if plan is not None:
            raise ValueError("plan is of one process; with a group rows come from other ranks too: leave plan out")
        over = ep.ranks_of(group), mode, grad
        if torch.compiler.is_compiling() and recompute == "none" and tuple(quantize) == (-1, -1) and lora is None:
            return _in_a_graph(x, ids, weights, weights_of_experts, form, how, over)
        return _over_ranks(x, ids, weights, weights_of_experts, form, how, over)
    ep.check(mode, grad)
    call = _call(x, ids, weights, weights_of_experts, form)
    if plan is not None:
        routing.check_plan(plan, call.x)
    rows = routing.plan(call.ids, down.shape[0]) if plan is None else plan
    return _ffn(call.x, call.weights, rows, call.experts, *how).to(call.result).reshape(x.shape)


@torch._disable_dynamo  # the host reads row counts in it
def _over_ranks(x, ids, weights, weights_of_experts, form, how, over):
    ranks, mode, grad = over
    with ep.refusing(ranks, x):
        ep.check(mode, grad)
        call = _call(x, ids, weights, [ep.scaled(w, ranks, grad) for w in weights_of_experts], form)
        _check_form(how[0], how[3])
        if how[5] is not None:
            how = (*how[:5], [f and f._replace(lhs=ep.scaled(f.lhs, ranks, grad), rhs=ep.scaled(f.rhs, ranks, grad)) for f in how[5]])
    held = call.experts.w2.shape[0]

    def own(rows, own_ids, own_weights):
        return _ffn(rows, own_weights, routing.plan(own_ids, held), call.experts, *how)

    y = ep.over_ranks(own, call.x, call.ids, call.weights, held * ranks.size, ranks, mode)
    return y.to(call.result).reshape(x.shape)


def _in_a_graph(x, ids, weights, weights_of_experts, form, how, over):
    """The same under torch.compile, as one operator: its numbers of rows are known when it runs."""
    ranks, mode, grad = over
    ep.check(mode, grad)
    call = _call(x, ids, weights, [ep.scaled(w, ranks, grad) for w in weights_of_experts], form)
    _check_form(how[0], how[3])
    experts = call.experts.plain() if x.device.type == "cuda" else call.experts
    y = ep_op.ffn(call.x, call.ids, call.weights, experts, how[:3], ranks, mode)
    return y.to(call.result).reshape(x.shape)


@in_words
def grouped_ffn(rows: torch.Tensor, counts: torch.Tensor | Sequence[int], gate_up: torch.Tensor, down: torch.Tensor, *,
                scores: torch.Tensor | None = None, up: torch.Tensor | None = None, gate_up_bias: torch.Tensor | None = None,
                down_bias: torch.Tensor | None = None, activation: Activation = "silu", gated: bool = True,
                clamp: float | None = None, offset: float = 0.0, up_layout: Layout = "rows", down_layout: Layout = "rows",
                interleaved: bool = False, recompute: Recompute = "none", quantize: Sequence[int] = (-1, -1)) -> torch.Tensor:
    """The same on rows [R, D] that are sorted by expert already: counts[e] of them are expert e's, in order. Rows past the
    sum of counts give 0. scores [R] are the weights (1 without)."""
    parameters = _parameters(gate_up, down, up, gate_up_bias, down_bias)
    for name, t in (("rows", rows), *parameters):
        check_tensor(name, t)
    if scores is not None:
        check_tensor("scores", scores)
        check_beside("scores", scores, "rows", rows)
    kind, result = _computed_in(rows, parameters)
    experts = _experts(rows, gate_up, down, up, gate_up_bias, down_bias, gated, up_layout, down_layout,
                       interleaved).to(kind)
    p = rows.new_ones(rows.shape[0], dtype=wide(kind)) if scores is None else scores.reshape(-1).to(wide(kind))
    sorted_rows = plan_from_counts(counts, rows.shape[0], device=rows.device)
    y = _ffn(rows.to(kind), p.unsqueeze(1), sorted_rows, experts, activation, clamp, offset, recompute, quantize)
    return y.to(result)


@in_words
def grouped_mm(a: torch.Tensor, b: torch.Tensor, *, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
               out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch.nn.functional.grouped_mm: a product for each group, groups ending at offs (int32 [G]).

    a [R, K], b [G, K, N]   rows of a in groups         -> [R, N]; rows past the last end are 0. bias: [G, N]
    a [M, K], b [K, N]      the sum over K in groups    -> [G, M, N]
    a [G, M, K], b [K, N]   columns of b in groups      -> [M, N]
    a [G, M, K], b [G, K, N]                            -> [G, M, N], without offs"""
    for name, t in (("a", a), ("b", b)):
        check_tensor(name, t)
    if (a.dim() == 3 and b.dim() == 3) != (offs is None):
        raise ValueError("offs is given for two-dimensional operands, and for those alone: "
                         f"a has {a.dim()} dimensions, b {b.dim()}, offs is {'absent' if offs is None else 'given'}")
    if bias is not None and (a.dim(), b.dim()) != (2, 3):
        raise Unsupported("bias: only where the rows of a are in groups (a [R, K], b [G, K, N])")
    if offs is None:
        y = torch.bmm(a, b)
    else:
        check_tensor("offs", offs, floating=False)
        for name, t in (("b", b), ("offs", offs)):
            check_beside(name, t, "a", a)
        ends = offs.clamp(-1, torch.iinfo(torch.int32).max).to(torch.int32)
        offset = torch.nn.functional.pad(ends, (1, 0))
        if b.dim() == 3:
            y = _rows_by_group(a, b, offset)
        elif a.dim() == 3:
            y = _rows_by_group(b.t(), a.transpose(1, 2), offset).t()
        else:
            y = torch.ops.troupe.grouped_gemm_weight(a.t(), b, offset)
        if bias is not None:
            y = torch.ops.troupe.group_bias(y, bias, offset, None)
    return y if out_dtype is None else y.to(out_dtype)


def _rows_by_group(a, b, offset):
    """b [G, K, N], in whichever of its two orders it lies in memory."""
    columns = b.stride(1) == 1 and b.stride(2) != 1
    return torch.ops.troupe.grouped_gemm(a, b.transpose(1, 2) if columns else b, offset, columns)
