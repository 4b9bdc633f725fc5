import torch

LOSSES = []


def clear_load_balancing_loss():
    LOSSES.clear()


def batched_load_balancing_loss(args):
    total = 0
    for counts, scores in LOSSES:
        total = total + (counts.float() * scores.float().mean(0)).sum()
        tokens = len(scores)
    return args.moe_num_experts * args.moe_loss_weight / (args.num_layers * tokens * args.moe_top_k) * total
