"""Rotary embedding of transformers' models by our operator: troupe.patch's word `rotary`.

Each model's file has a function of its own,

    apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)      q, k [B, H, S, D]   cos, sin [1 or B, S, n], n <= D

which is replaced where its numbers are x cos + rotate_half(x) sin, and where the halves of the model's cos and sin are
equal. Theirs makes five tensors of the size of q, and of k, and as many in backward; ours makes one."""
import inspect

import torch

NAME = "apply_rotary_pos_emb"


def _turned(x, cos, sin, unsqueeze_dim):
    x = x.transpose(1, 2) if unsqueeze_dim == 1 else x
    half, kind = cos.shape[-1] // 2, torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (t[..., :half].to(kind) for t in (cos, sin))
    if cos.shape[0] == 1:
        y = torch.ops.troupe.rotary(x, cos[0], sin[0], None, 0, False)
    else:
        rows = torch.ops.troupe.rotary(x.flatten(0, 1), cos.flatten(0, 1), sin.flatten(0, 1), None, 0, False)
        y = rows.view(x.shape)
    return y.transpose(1, 2) if unsqueeze_dim == 1 else y


def apply_rotary(q, k, cos, sin, unsqueeze_dim=1):
    """transformers' function."""
    return _turned(q, cos, sin, unsqueeze_dim), _turned(k, cos, sin, unsqueeze_dim)


def agrees(function):
    """Whether a model's apply_rotary_pos_emb computes what ours does, with positions of a batch and of each sequence."""
    if [*inspect.signature(function).parameters] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return False
    g = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 4, 3, 8, generator=g), torch.randn(2, 2, 3, 8, generator=g)
    for batch in (1, 2):
        angle = torch.randn(batch, 3, 4, generator=g).repeat(1, 1, 2)
        for of_q, of_k, dim in ((q, k, 1), (q.transpose(1, 2), k.transpose(1, 2), 2)):
            given = (of_q, of_k, angle.cos(), angle.sin(), dim)
            if any(not torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(function(*given), apply_rotary(*given))):
                return False
    return True


def halves_are_equal(model):
    """Whether every rotary module of the model gives cos and sin whose second half repeats the first."""
    found = [m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    for module in found:
        buffer = next(module.buffers(), None)
        if buffer is None or buffer.is_meta or [*inspect.signature(module.forward).parameters] != ["x", "position_ids"]:
            return False
        places = torch.tensor([[0, 1, 5]], device=buffer.device)
        with torch.no_grad():
            tables = module(torch.zeros(1, 3, 8, device=buffer.device), places)
        for t in tables if isinstance(tables, tuple) else (tables,):
            if not torch.is_tensor(t) or t.dim() != 3 or not torch.equal(*t.chunk(2, -1)):
                return False
    return bool(found)
