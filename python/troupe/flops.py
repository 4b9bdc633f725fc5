"""What torch.utils.flop_counter.FlopCounterMode counts of troupe's operators: 2 rows in out for each product, as of torch.mm.

Rows are those that a plan has room for, which is one for each choice without a capacity; the device is not asked how many are
used. Attention counts the whole square, as PyTorch's formulas do. The 8-bit kernels of a Hopper GPU are no operators:
moe_ffn_fp8 and linear_fp8 count where their products are others'."""
import math

import torch


def _of(rows, *weights):
    """Rows by each of these weights [E, ., .]."""
    return sum(2 * rows * math.prod(w[1:]) for w in weights if w is not None)


def experts(x, weights, w1, b1, w2, b2, up, plan, *form, out_shape=None):
    hidden_only = form[-1]
    return _of(plan[1][0], w1, up, None if hidden_only else w2)


def experts_backward(grad, x, weights, hidden, w1, b1, w2, b2, up, plan, *form, out_shape=None):
    """needs: of x, weights, w1, b1, w2, b2, up. The gradient of the hidden rows is made for all but w2's and b2's."""
    of_x, of_weights, of_w1, of_b1, of_w2, _, of_up = form[-1]
    through = of_x or of_weights or of_w1 or of_b1 or of_up
    return _of(plan[1][0], w2 if through else None, *([w1, up] if of_x else []), w1 if of_w1 else None, up if of_up else None,
               w2 if of_w2 else None)


def grouped(x, w, expert_offset, w_out_in, out_shape=None):
    return _of(x[0], w)


def grouped_weight(a, b, expert_offset, out_shape=None):
    return 2 * a[0] * a[1] * b[1]


def attention(q, k, v, scale, out_shape=None):
    """q [B, S, H, d], k [B, P, G, d], v [B, P, G, e]"""
    B, S, H, d = q
    return 2 * B * H * S * k[1] * (d + v[3])


def attention_backward(grad, q, k, v, *saved, out_shape=None):
    """The scores once more, their gradient, and those of q, k and v."""
    B, S, H, d = q
    return 2 * B * H * S * k[1] * (3 * d + 2 * v[3])


def sdd(a, b, indices, *structure, out_shape=None):
    return 2 * math.prod(out_shape) * a[1]


def dsd(values, indices, rows, cols, block, transposed, b, out_shape=None):
    return 2 * math.prod(values) * b[1]


def dds(a, values, indices, *structure, out_shape=None):
    return 2 * math.prod(values) * a[0]


FORMULAS = {"moe_ffn_forward": experts, "moe_ffn_backward": experts_backward, "moe_ffn_backward_": experts_backward,
            "grouped_gemm": grouped, "grouped_gemm_weight": grouped_weight, "attention": attention,
            "attention_backward": attention_backward, "block_sdd": sdd, "block_dsd": dsd, "block_dds": dds}


def register():
    from torch.utils.flop_counter import flop_registry, register_flop_formula
    for name, formula in FORMULAS.items():
        operator = getattr(torch.ops.troupe, name)
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
