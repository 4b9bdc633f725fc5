"""The router: softmax over all experts, the best k, in the model's type as MegaBlocks has it."""
import warnings

import torch

from . import common
from .arguments import Arguments
from .records import Records

_ROUTER_LOGITS = Records()


def clear_router_zloss():
    _ROUTER_LOGITS.clear()


def batched_router_zloss(args: Arguments):
    """moe_zloss_weight times the mean squared logsumexp of each layer's logits: one element a layer."""
    if args.moe_zloss_weight == 0:
        warnings.warn("Call to batched_router_zloss, but moe_zloss_weight=0")
        return 0
    layers = [torch.logsumexp(logits.float(), dim=1).square().mean() for logits in _ROUTER_LOGITS.of(args)]
    return args.moe_zloss_weight * torch.stack(layers)


class LearnedRouter(torch.nn.Module):
    def __init__(self, args: Arguments):
        super().__init__()
        self.args = args
        self.layer = torch.nn.Linear(args.hidden_size, args.moe_num_experts, bias=False, dtype=common.dtype(args),
                                     device=args.device)
        args.init_method(self.layer.weight)

    def jitter(self, x):
        low, high = 1.0 - self.args.moe_jitter_eps, 1.0 + self.args.moe_jitter_eps
        return low + torch.rand(x.size(), dtype=x.dtype, device=x.device) * (high - low)

    def _top_k(self, scores):
        if self.args.moe_top_k == 1:
            return scores.max(dim=-1, keepdim=True)
        return torch.topk(scores, self.args.moe_top_k, dim=-1)

    def forward(self, x):
        """(scores [T, E], weights [T, k], experts [T, k])"""
        args = self.args
        if self.training and args.moe_jitter_eps is not None:
            x = x * self.jitter(x)
        logits = self.layer(x.view(-1, x.shape[-1]))
        if args.moe_zloss_weight != 0 and self.training:
            _ROUTER_LOGITS.add(args, logits, self)
        scores = (logits.float() if args.moe_router_fp32 else logits).softmax(dim=-1)
        weights, experts = self._top_k(scores)
        q = args.moe_normalize_expert_weights
        if q:
            weights = weights / torch.norm(weights, p=q, dim=-1, keepdim=True)
        if args.uniform_expert_assignment:
            experts = torch.arange(experts.numel(), device=x.device).remainder(args.moe_num_experts).view(experts.shape)
        return scores, weights, experts
