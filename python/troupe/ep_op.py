"""Experts over ranks as one operator, which torch.compile and torch.export take into a graph.

    torch.ops.troupe.ep_ffn(x, ids, weights, w1, b1, w2, b2, up, ..., group, ranks, rank, mode) -> (y, what backward reads)

It computes what troupe.ep.over_ranks does around troupe.moe_ffn, with its bits and its collectives: three forward (what each
rank sends, rows, what comes back), two backward. How many rows come is a symbol of the graph, known when the operator runs;
the host waits for it once, there. H is kept, as moe_ffn keeps it.

Every rank of the group runs the same graph. A call that is refused while it is traced is refused on the rank that traces: the
others end by the group's time limit."""
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from . import ep
from .routing import Plan, plan

_LOCAL = torch.ops.troupe
Kept = Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("troupe::ep_ffn", mutates_args=())
def ep_ffn(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, b1: Optional[Tensor], w2: Tensor, b2: Optional[Tensor],
           up: Optional[Tensor], activation: str, clamp: Optional[float], offset: float, up_columns: bool, down_columns: bool,
           interleaved: bool, group: str, ranks: int, rank: int, mode: str) -> Kept:
    """(y; the received rows with their ids, weights and H; the send plan; int64 [2, W]: rows sent to and received from each rank)"""
    held = w2.shape[0]
    sent = ep.send(x, ids, held * ranks, ep.Ranks(group, ranks, rank), mode)
    own_ids, own_weights, _ = ep.own_choices(ids, weights, sent, held, mode)
    rows, own_weights, own_ids = ep.exchanged(group, sent.receive, sent.send, [
        _LOCAL.permute(x, None, list(sent.plan)), own_weights, own_ids.to(torch.int32)])
    out, hidden = _LOCAL.moe_ffn_forward(rows, own_weights, w1, b1, w2, b2, up, list(plan(own_ids, held)), activation, clamp,
                                         offset, up_columns, down_columns, interleaved, False)
    y = _LOCAL.combine(ep.exchanged(group, sent.send, sent.receive, [out])[0], None, None, list(sent.plan))
    return y, rows, own_ids, own_weights, hidden, *sent.plan, torch.tensor([sent.send, sent.receive])


@ep_ffn.register_fake
def _(x, ids, weights, w1, b1, w2, b2, up, activation, clamp, offset, up_columns, down_columns, interleaved, group, ranks, rank,
      mode):
    sizes = torch.library.get_ctx()
    sent, received, k = sizes.new_dynamic_size(), sizes.new_dynamic_size(), 1 if mode == "exact" else ids.shape[1]
    columns = w1.shape[2 if up_columns else 1] * (1 if up is None else 2)

    def ints(*shape, dtype=torch.int32):
        return x.new_empty(shape, dtype=dtype)

    return (x.new_empty(x.shape), x.new_empty(received, x.shape[1]), ints(received, k), weights.new_empty(received, k),
            x.new_empty(received * k, columns), ints(ranks + 1), ints(sent), ints(sent), ints(*ids.shape),
            ints(ranks, dtype=torch.int64), torch.empty(2, ranks, dtype=torch.int64))


@torch.library.custom_op("troupe::ep_ffn_backward", mutates_args=())
def ep_ffn_backward(grad: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, b1: Optional[Tensor], w2: Tensor,
                    b2: Optional[Tensor], up: Optional[Tensor], kept: List[Tensor], activation: str, clamp: Optional[float],
                    offset: float, up_columns: bool, down_columns: bool, interleaved: bool, group: str, mode: str,
                    needs: List[bool]) -> List[Tensor]:
    """Gradients of x, weights, w1, b1, w2, b2, up; an unwanted one is an empty tensor. kept: ep_ffn's results but y."""
    rows, own_ids, own_weights, hidden, *of_plan, sizes = kept
    (send, receive), sent, held = sizes.tolist(), Plan(*of_plan), w2.shape[0]
    coming, = ep.exchanged(group, receive, send, [_LOCAL.permute(grad, None, list(sent))])
    grads = _LOCAL.moe_ffn_backward(coming, rows, own_weights, hidden, w1, b1, w2, b2, up, list(plan(own_ids, held)), activation,
                                    clamp, offset, up_columns, down_columns, interleaved, needs)
    back = iter(ep.exchanged(group, send, receive, [g for g, want in zip(grads[:2], needs) if want]))
    if needs[0]:
        grads[0] = _LOCAL.combine(next(back), None, None, list(sent))
    if needs[1]:
        grads[1] = _weights_gradient(next(back), ids, weights, ep.Sent(sent, send, receive, ep.rank_of_rows(sent, sum(send))),
                                     held, mode)
    return [g if want else grad.new_empty(0) for g, want in zip(grads, needs)]  # none is another's memory


def _weights_gradient(of_rows, ids, weights, sent, held, mode):
    """[T, K]: each choice has one row that counts it."""
    out = torch.zeros_like(weights, memory_format=torch.contiguous_format)
    if mode == "exact":
        out.view(-1).index_copy_(0, sent.plan.row_slot.long(), of_rows.squeeze(1))
        return out
    _, _, away = ep.own_choices(ids, weights, sent, held, mode)
    return out.index_add_(0, sent.plan.row_src.long(), of_rows.masked_fill(away, 0))


@ep_ffn_backward.register_fake
def _(grad, ids, weights, w1, b1, w2, b2, up, kept, activation, clamp, offset, up_columns, down_columns, interleaved, group, mode,
      needs):
    like = (grad, weights, w1, b1, w2, b2, up)
    return [t.new_empty(t.shape) if want else grad.new_empty(0) for t, want in zip(like, needs)]


def _keep(ctx, inputs, output):
    _, ids, weights, *experts = inputs[:8]
    ctx.save_for_backward(ids, weights, *experts, *output[1:])
    ctx.form, ctx.group, ctx.mode = inputs[8:14], inputs[14], inputs[17]


def _backward(ctx, grad, *_):
    ids, weights, w1, b1, w2, b2, up, *kept = ctx.saved_tensors
    needs = [ctx.needs_input_grad[i] for i in (0, 2, 3, 4, 5, 6, 7)]
    grads = torch.ops.troupe.ep_ffn_backward(grad.contiguous(), ids, weights, w1, b1, w2, b2, up, kept, *ctx.form, ctx.group,
                                             ctx.mode, needs)
    x, *rest = (g if want else None for g, want in zip(grads, needs))
    return x, None, *rest, *(None,) * 10


ep_ffn.register_autograd(_backward, setup_context=_keep)


def ffn(x, ids, weights, experts, how, ranks, mode):
    """y [T, D]; `experts` and how = (activation, clamp, offset) as troupe.functional has them."""
    w1, b1, w2, b2, up, layout = experts
    layout = {"up_columns": False, "down_columns": False, "interleaved": False, **layout}
    activation, clamp, offset = how
    return torch.ops.troupe.ep_ffn(x, ids, weights, w1, b1, w2, b2, up, activation, clamp, float(offset), layout["up_columns"],
                                   layout["down_columns"], layout["interleaved"], ranks.name, ranks.size, ranks.rank, mode)[0]
