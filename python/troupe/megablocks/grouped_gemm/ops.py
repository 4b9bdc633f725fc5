"""grouped_gemm.ops: gmm with gradients; and of the fork that Megatron-Core and Nanotron use, rows by expert and back."""
import torch

from ...routing import Plan
from .backend import product


def gmm(a, b, batch_sizes, trans_b=False):
    """The product of each group, differentiable."""
    return product(a, b, batch_sizes, False, trans_b)


def _plan(slot_row, rows):
    """Troupe's plan of rows that lie already: slot_row [T, k] is the row of a token's choice, or -1."""
    slots = torch.arange(slot_row.numel(), dtype=torch.int32, device=slot_row.device)
    place = torch.where(slot_row < 0, rows, slot_row).reshape(-1).long()
    row_slot = slots.new_full((rows + 1,), -1).index_copy_(0, place, slots)[:rows]
    row_src = torch.where(row_slot < 0, -1, row_slot // slot_row.shape[1])
    offset = torch.arange(2, dtype=torch.int32, device=slots.device) * rows
    return list(Plan(offset, row_src, row_slot, slot_row.to(torch.int32).contiguous(), offset[1:].long()))


def permute(input_act, indices, num_out_tokens=None, max_token_num=0):
    """(rows of input_act [T, D] sorted by the expert of indices [T, k] or [T], int32 [k T]: where choice k of token t went, at
    k T + t). With num_out_tokens, rows beyond that many are left out and their place is -1. max_token_num sizes a buffer of the
    original, which is not needed here."""
    indices = indices.view(-1, 1) if indices.dim() == 1 else indices
    if input_act.shape[0] != indices.shape[0]:
        raise ValueError(f"permute: input_act has {input_act.shape[0]} rows and indices {indices.shape[0]}; they must be of the "
                         "same tokens")
    rows = num_out_tokens or indices.numel()
    slots = indices.reshape(-1).sort(stable=True).indices
    order = torch.arange(indices.numel(), dtype=torch.int32, device=indices.device)
    slot_row = torch.empty_like(order).index_copy_(0, slots, order)
    slot_row = torch.where(slot_row < rows, slot_row, -1).view(indices.shape)
    return torch.ops.troupe.permute(input_act, None, _plan(slot_row, rows)), slot_row.t().reshape(-1)


def unpermute(input_act, row_id_map, probs=None):
    """[T, D]: the sum of each token's rows, each times its probs [T, k]. Without probs k is 1."""
    T, k = (row_id_map.numel(), 1) if probs is None else probs.shape
    if row_id_map.numel() != T * k:
        raise ValueError(f"unpermute: row_id_map has {row_id_map.numel()} places and probs {T} x {k}; they must be of the same "
                         "tokens")
    plan = _plan(row_id_map.view(k, T).t(), input_act.shape[0])
    weights = probs if probs is None or input_act.dtype == torch.float64 else probs.float()
    return torch.ops.troupe.combine(input_act, weights, None, plan)
