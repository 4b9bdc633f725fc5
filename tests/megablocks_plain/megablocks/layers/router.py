import torch

LOGITS = []


def clear_router_zloss():
    LOGITS.clear()


def batched_router_zloss(args):
    return args.moe_zloss_weight * torch.stack([(z.float().logsumexp(1) ** 2).mean() for z in LOGITS])
