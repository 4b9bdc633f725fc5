"""Experts over the ranks of a process group.

    mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "ep"))
    moe = troupe.MoE(width=2048, experts=64, top_k=8, hidden=1024, group=mesh["ep"])      # or a ProcessGroup

Rank r of W holds the experts r E/W ... (r + 1) E/W. A token's row goes to each rank that has one of its experts, once,
with its ids and weights; that rank adds up what its experts make of it, one row comes back, and the token's rank adds
those in rank order (mode="fast"). With mode="exact" a row goes out and comes back for each choice, and the token's rank
adds them in slot order: the bits of one process that has the tokens of all ranks in rank order. They are the rows, the
order of rows and the order of sums of `dispatcher: all_to_all` in `troupe train`.

Rows travel by PyTorch's functional collectives over the group: Gloo, NCCL. The host reads how many come, once a call.
Every rank of the group makes the same calls, forward and backward, also with no tokens; PyTorch's time limit of the group
ends a wait for a rank that does not. A rank that has ended is named by the others (troupe.RankLost), over Gloo.

Gradients of experts are sums over the tokens of all ranks. grad="mean" divides them by W: what DDP and FSDP do to all other
parameters, where each rank's loss is a mean of its own. grad="sum" leaves them."""
import contextlib
from typing import NamedTuple

import torch

from . import peers
from .checks import FLOATS, Unsupported
from .routing import plan

_OPS = torch.ops._c10d_functional
MODES, GRADS = ("fast", "exact"), ("mean", "sum")


class Ranks(NamedTuple):
    """A group by PyTorch's name for it, which pickles and traces."""

    name: str
    size: int
    rank: int


def ranks_of(group):
    """The Ranks of a ProcessGroup, of a DeviceMesh of one dimension, or Ranks themselves; None stays None."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives  # registers the output shapes that torch.compile asks for
    from torch.distributed.device_mesh import DeviceMesh
    if group is None or isinstance(group, Ranks):
        return group
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"group is a DeviceMesh of {group.ndim} dimensions {group.mesh_dim_names}; it must have one: "
                             'mesh["ep"]')
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is a {type(group).__name__}; it must be a torch.distributed ProcessGroup or a DeviceMesh of "
                        "one dimension")
    return Ranks(group.group_name, group.size(), group.rank())


def own_experts(experts, ranks):
    """Which of `experts` this rank holds."""
    if ranks is None:
        return range(experts)
    if experts % ranks.size:
        legal = ", ".join(str(n) for n in range(1, experts + 1) if experts % n == 0)
        raise ValueError(f"{experts} experts over {ranks.size} ranks: the number of ranks must divide them ({legal})")
    each = experts // ranks.size
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def exchanged(name, receive, send, tensors):
    """Each tensor's rows, all on their way before the first is waited for."""
    with contextlib.nullcontext() if torch.compiler.is_compiling() else peers.named(name):
        flying = [_OPS.all_to_all_single(t.contiguous(), receive, send, name) for t in tensors]
        return [_OPS.wait_tensor(t) for t in flying]


class _Exchange(torch.autograd.Function):
    """Rows to ranks: the first send[0] of each tensor go to rank 0, and so on; receive[r] rows come from rank r."""

    @staticmethod
    def forward(ctx, name, receive, send, *tensors):
        ctx.name, ctx.receive, ctx.send = name, receive, send
        out = exchanged(name, receive, send, tensors)
        ctx.mark_non_differentiable(*(t for t in out if not t.is_floating_point()))
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        needed = ctx.needs_input_grad[3:]
        back = iter(exchanged(ctx.name, ctx.send, ctx.receive, [g for g, want in zip(grads, needed, strict=True) if want]))
        return None, None, None, *(next(back) if want else None for want in needed)


class ScaleGradient(torch.autograd.Function):
    """x, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


def scaled(w, ranks, grad):
    """A parameter of this rank's experts, with the gradient that `grad` says."""
    if w is None or ranks is None or grad == "sum" or ranks.size == 1 or not w.requires_grad:
        return w
    return ScaleGradient.apply(w, 1 / ranks.size)


class Sent(NamedTuple):
    """What one call sends: row i is token row_src[i]'s, for rank row_rank[i]."""

    plan: object  # the rows, and which of them are a token's
    send: list
    receive: list
    row_rank: torch.Tensor


FORM = ("width", "top_k", "type", "experts", "mode")
REFUSED = -1


@contextlib.contextmanager
def refusing(ranks, x):
    """Sends an exception of this rank to the other ranks of the group, which raise too instead of waiting."""
    try:
        yield
    except Exception:
        _announce(ranks, torch.full((ranks.size,), REFUSED, device=x.device), (0,) * len(FORM))
        raise


def check(mode, grad):
    for name, value, known in (("mode", mode, MODES), ("grad", grad, GRADS)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")


def _announce(ranks, counts, form):
    """int64 [W, 1 + len(form)]: what each rank sends here, and what it takes its call to be."""
    said = torch.tensor(form, dtype=torch.int64, device=counts.device).expand(ranks.size, -1)
    message = torch.cat([counts.to(torch.int64).unsqueeze(1), said], 1)
    return exchanged(ranks.name, [1] * ranks.size, [1] * ranks.size, [message])[0]


def _agree(ranks, heard, form):
    """`heard` [W, 1 + len(form)] on the host: every rank raises where one would."""
    for r, (count, *theirs) in enumerate(heard):
        if count == REFUSED:
            raise RuntimeError(f"experts over ranks (group {ranks.name}): rank {r} refused this call; its own message says why")
        for what, a, b in zip(FORM, theirs, form, strict=True):
            if a != b:
                names = {"type": FLOATS, "mode": MODES}.get(what)
                a, b = (a, b) if names is None else (names[a], names[b])
                raise ValueError(f"experts over ranks (group {ranks.name}): rank {r} calls with {what} {a}, rank {ranks.rank} "
                                 f"with {what} {b}; all ranks of the group must make the same call")


def _owners(ids, experts, ranks, mode):
    """[T, K]: the rank of each choice, or -1. In the fast mode a rank once a token, in rank order."""
    each = experts // ranks.size
    owner = torch.where((ids >= 0) & (ids < experts), ids // each, -1).to(torch.int32)
    if mode == "exact":
        return owner
    owner = owner.sort(-1).values
    again = torch.nn.functional.pad(owner[:, 1:] == owner[:, :-1], (1, 0))
    return torch.where(again, -1, owner)


def send(x, ids, experts, ranks, mode):
    form = (x.shape[1], ids.shape[1], FLOATS.index(x.dtype), experts, MODES.index(mode))
    rows = plan(_owners(ids, experts, ranks, mode), ranks.size)
    heard = _announce(ranks, rows.counts, form)
    host = torch.cat([rows.counts, heard.flatten()]).tolist()  # the one wait
    sizes, heard = host[:ranks.size], [host[i:i + 1 + len(form)] for i in range(ranks.size, len(host), 1 + len(form))]
    _agree(ranks, heard, form)
    total = sum(sizes)
    rows = rows._replace(row_src=rows.row_src[:total], row_slot=rows.row_slot[:total])
    return Sent(rows, sizes, [count for count, *_ in heard], rank_of_rows(rows, total))


def rank_of_rows(rows, total):
    """The rank that each of a plan's rows goes to."""
    W = rows.counts.shape[0]
    return torch.arange(W, device=rows.counts.device).repeat_interleave(rows.counts, output_size=total)


def own_choices(ids, weights, sent, each, mode):
    """(ids [S, k], weights [S, k], away [S, k] or None) as the rank that gets a row takes them: numbers of its own experts."""
    if mode == "exact":
        slot = sent.plan.row_slot.long()
        return (ids.reshape(-1)[slot] - sent.row_rank * each).unsqueeze(1), weights.reshape(-1)[slot].unsqueeze(1), None
    token = sent.plan.row_src.long()
    own_ids = ids[token] - (sent.row_rank * each).unsqueeze(1)
    away = (own_ids < 0) | (own_ids >= each)
    return own_ids.masked_fill(away, each), weights[token].masked_fill(away, 0), away


def over_ranks(compute, x, ids, weights, experts, ranks, mode="fast"):
    """y [T, D] of x [T, D], ids [T, K] (numbers of all `experts`; others have no row) and weights [T, K], where
    compute(rows [S, D], ids [S, k], weights [S, k]) is this rank's experts on the rows that came: its ids count from 0, and one
    that is no expert of this rank is E / W and has weight 0."""
    each = experts // ranks.size
    sent = send(x, ids, experts, ranks, mode)
    rows = torch.ops.troupe.permute(x, None, list(sent.plan))
    own_ids, own_weights, _ = own_choices(ids, weights, sent, each, mode)
    rows, own_weights, own_ids = _Exchange.apply(ranks.name, sent.receive, sent.send, rows, own_weights,
                                                 own_ids.to(torch.int32))
    y, = _Exchange.apply(ranks.name, sent.send, sent.receive, compute(rows, own_ids, own_weights))
    return torch.ops.troupe.combine(y, None, None, list(sent.plan))
