"""Which experts a token takes, and which row each of its choices has: `route`, `plan` and what they return."""
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .checks import Unsupported, check_beside, check_tensor, in_words
from .types import Device, Groups, Order, Score

WEIGHTINGS = {"softmax": ("raw", "norm"), "sigmoid": ("sum", "sum"), "sqrtsoftplus": ("sum", "sum")}


class Plan(NamedTuple):
    """Which row each (token, choice) has, ordered by expert: the rows of expert e are
    expert_offset[e] : expert_offset[e + 1]. Made by `plan`; one plan serves every product of a layer."""

    expert_offset: torch.Tensor  # int32 [E + 1]
    row_src: torch.Tensor        # int32 [R]     the token of a row; -1: none
    row_slot: torch.Tensor       # int32 [R]     its place in ids.flatten(); -1: none
    slot_row: torch.Tensor       # int32 [T, K]  the row of a choice; -1: none
    counts: torch.Tensor         # int64 [E]


class Routing(NamedTuple):
    """What a router says of T tokens. Gradients flow through weights, scores and lse2."""

    ids: torch.Tensor           # int32 [T, K], best first
    weights: torch.Tensor       # f32 [T, K]
    counts: torch.Tensor        # int64 [E]  choices of each expert
    scores: torch.Tensor | None  # f32 [E]    sum over tokens of the scores, each token's adding up to 1
    lse2: torch.Tensor          # f32        sum over tokens of logsumexp(logits)^2
    plain_counts: torch.Tensor | None  # int64 [E]  choices without bias, groups or given ids: what balance losses count
    tokens: torch.Tensor        # int64      tokens that are valid


def _weighting(score, order, norm):
    """(the operator's weighting, its exponent)."""
    if score not in WEIGHTINGS:
        raise ValueError(f"score is {score!r}; it must be one of {', '.join(WEIGHTINGS)}")
    if order not in ("before", "after") or (order == "after" and score != "softmax"):
        raise ValueError(f"order is {order!r}; 'before' takes scores of all experts, 'after' the softmax of the chosen logits")
    if order == "after":
        if norm not in (None, False, True):
            raise ValueError("norm: the softmax of the chosen logits (order='after') adds up to 1")
        return "chosen", 1.0
    plain, normalized = WEIGHTINGS[score]
    if norm is None:
        return plain, 1.0
    if norm is True or norm is False:
        return (normalized, 1.0) if norm else ("raw", 1.0)
    return "norm", float(norm)


@in_words
def route(logits: torch.Tensor, k: int, *, score: Score = "softmax", order: Order = "before", norm: bool | float | None = None,
          scale: float = 1.0, bias: torch.Tensor | None = None, beta: torch.Tensor | None = None, groups: Groups = None,
          valid: torch.Tensor | None = None, given: torch.Tensor | None = None, sequences: int | None = None,
          balance: bool = True) -> Routing:
    """The k best experts of each token, and their weights times `scale`.

    order   "before": scores of all experts, of which k are taken; "after": the softmax of the k chosen logits
    norm    True: a token's weights add up to 1; a number q: their q-norm is 1; None: True for sigmoid and sqrtsoftplus
    bias    [E], added for the choice alone (sigmoid, sqrtsoftplus); beta is subtracted from the logits, likewise
    groups  (groups, keep, best): neighbors share a group, of which `keep` stay open, by the sum of its `best` scores
    valid   bool [T]: False is padding, which chooses nothing
    given   [T, k]: choices made elsewhere
    sequences   that many, one after the other: scores, plain_counts and tokens are of each, [B, E] and [B]
    balance     False: scores and plain_counts are None"""
    check_tensor("logits", logits)
    weighting, q = _weighting(score, order, norm)
    limits = {}
    if groups is not None:
        limits = dict(zip(("groups", "keep_groups", "group_best"), groups, strict=True))
    if given is not None:
        check_tensor("given", given, floating=False)
        bias = beta = None
    r = torch.ops.troupe.route(logits, k, score=score, weighting=weighting, norm=q, scale=float(scale),
                               bias=None if bias is None else bias.float(), beta=beta, valid=valid, given_ids=given,
                               sequences=sequences or 1, balance=balance, **limits)
    ids, weights, counts, _, scores, plain_counts, tokens, lse2, _ = r
    of = [t if sequences else t.squeeze(0) for t in (scores, plain_counts, tokens)]
    return Routing(ids, weights, counts, of[0] if balance else None, lse2, of[1] if balance else None, of[2])


def check_plan(given, x):
    """A Plan beside x. Its numbers are checked by the operators that read them."""
    if not isinstance(given, (tuple, list)) or len(given) != len(Plan._fields):
        raise Unsupported(f"plan is a {type(given).__name__}; it must be a troupe.Plan, which troupe.plan makes of ids")
    for field, t in zip(Plan._fields, given, strict=True):
        check_tensor(f"plan.{field}", t, floating=False)
        kind = torch.int64 if field == "counts" else torch.int32
        if t.dtype != kind:
            raise Unsupported(f"plan.{field} is of {t.dtype}; it must be of {kind}")
        check_beside(f"plan.{field}", t, "x", x)


def whole_counts(name, counts):
    """int64 [E] of a list or tensor of integers."""
    counts = torch.as_tensor(counts)
    if counts.numel() and (counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool):
        raise Unsupported(f"{name} is of {counts.dtype}; it must be of integers: {name}.long()")
    if counts.dim() != 1:
        raise ValueError(f"{name} has sizes {list(counts.shape)}; it must be [E], a number for each expert")
    return counts.long()


def segments(name, counts, rows):
    """int32 [E + 1]: where the rows of each expert begin, and end. Counts that are none of `rows` rows are refused: here on a
    CPU; on a GPU by the operator that reads the result, which does not rise within 0 ... rows then."""
    if type(counts) is torch.Tensor and counts.device.type == "cpu" and not torch.compiler.is_compiling():
        numbers = counts.tolist()
        if min(numbers, default=0) < 0 or sum(numbers) > rows:
            shown = f"{numbers[:16]}{' ...' if len(numbers) > 16 else ''}"
            raise ValueError(f"{name} are {shown}; each must be at least 0, and their sum at most the {rows} rows that there are")
    ends = counts.clamp(-1, rows + 1).cumsum(0).clamp(max=torch.iinfo(torch.int32).max)
    return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)


@in_words
def plan(ids: torch.Tensor, experts: int, *, alignment: int = 1, capacity: int = 0) -> Plan:
    """The rows of these choices, ids [T, K] or [T]. Each expert's rows are a multiple of `alignment`; with a capacity every
    expert has exactly that many, and choices beyond it have no row. Nothing waits for the device."""
    check_tensor("ids", ids, floating=False)
    ids = ids.unsqueeze(-1) if ids.dim() == 1 else ids.reshape(-1, ids.shape[-1])
    return Plan(*torch.ops.troupe.routing_plan(ids, experts, alignment, capacity))


@in_words
def plan_from_counts(counts: torch.Tensor | Sequence[int], rows: int, *, device: Device = None) -> Plan:
    """The plan of `rows` rows that are sorted by expert already: counts[e] of them are expert e's. Rows past the sum of
    counts have no expert."""
    counts = whole_counts("counts", counts)
    offset = segments("counts", counts, rows).to(device)
    counts = counts.to(device)
    row = torch.arange(rows, dtype=torch.int32, device=counts.device)
    row = torch.where(row < offset[-1], row, -1)
    return Plan(offset, row, row, row.unsqueeze(1), counts)
