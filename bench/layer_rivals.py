"""The layers that bench/gpu_layer.py times beside ours, and routing that is not uniform."""
import torch
import torch.nn.functional as F

import troupe_ops


class GroupedMm:
    """torch._grouped_mm. combine: `index_add` as transformers does it, or `gather_sum`, which is faster
    (the scores on the activations, both combines a gather and a sum). order and bias as in
    troupe_ops.Layer; bf16_logits: the router's product in bf16, as SonicMoE has it."""

    def __init__(self, gate, w1, w2, k, combine="gather_sum", order="before", bias=None, bf16_logits=False):
        self.gate, self.w1, self.w2, self.k, self.combine = gate, w1, w2, k, combine
        self.order, self.bias, self.bf16_logits = order, bias, bf16_logits

    def route(self, x):
        logits = F.linear(x, self.gate).float() if self.bf16_logits else \
            troupe_ops.RouterProduct.apply(x, self.gate)
        if self.bias is not None:
            logits = logits + self.bias
        if self.order == "after":
            chosen, ids = torch.topk(logits, self.k)
            return torch.softmax(chosen, -1), ids
        return torch.topk(torch.softmax(logits, -1), self.k)

    def __call__(self, x):
        tokens, experts = x.shape[0], self.gate.shape[0]
        weights, ids = self.route(x)
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.histc(ids.flatten().int(), bins=experts, min=0, max=experts - 1)
        offsets = counts.cumsum(0).int()
        rows = x[order // self.k]
        gate, up = torch._grouped_mm(rows, self.w1.transpose(1, 2), offs=offsets).chunk(2, -1)
        score = weights.flatten()[order].to(x.dtype)[:, None]
        if self.combine == "gather_sum":
            y = torch._grouped_mm(F.silu(gate) * up * score, self.w2.transpose(1, 2), offs=offsets)
            inverse = torch.empty_like(order)
            inverse[order] = torch.arange(order.numel(), device=x.device)
            return y[inverse].view(tokens, self.k, -1).sum(1)
        y = torch._grouped_mm(F.silu(gate) * up, self.w2.transpose(1, 2), offs=offsets) * score
        return torch.zeros_like(x).index_add_(0, order // self.k, y)


class SonicMoE:
    """SonicMoE's own entry point with its router: softmax over the chosen (its default), gate and up
    rows of w1 in turns, weights of its own."""

    def __init__(self, gate, w1, w2, k):
        from sonicmoe import moe_TC_softmax_topk_layer  # a package that need not be there
        self.call, self.gate, self.w2, self.k = moe_TC_softmax_topk_layer, gate, w2, k
        experts, rows, d = w1.shape
        in_turns = w1.detach().view(experts, 2, rows // 2, d).transpose(1, 2).reshape(experts, rows, d)
        self.w1 = in_turns.requires_grad_()

    def __call__(self, x):
        stream = torch.cuda.current_stream().cuda_stream
        return self.call(x, self.gate, self.w1.permute(1, 2, 0), None, self.w2.permute(1, 2, 0), None,
                         self.k, stream)[0]


def shares(routing, experts, k):
    """The share of all tokens that each expert is to get; the shares' sum is k."""
    if routing == "zipf":     # as 1, 1/2, 1/3, ... of the most frequent, none above all tokens
        weight = 1 / torch.arange(1, experts + 1, dtype=torch.float64)
        scale = k / weight.sum()
        for _ in range(200):
            got = (scale * weight).clamp(max=1)
            scale *= k / got.sum()
        return (scale * weight).clamp(max=1)
    out = torch.ones(experts, dtype=torch.float64)
    if routing == "empty":    # a tenth of the experts, at least one, has no row
        out[torch.arange(0, experts, 10)] = 0
        return out * k / out.sum()
    if routing == "heavy":    # half of all rows to one expert, or as many as it can get: every token's
        out[0] = first = min(1, k / 2)
        out[1:] = (k - first) / (experts - 1)
        return out
    raise SystemExit(f"no routing {routing}: uniform, zipf, empty, heavy")


def bias_for(routing, logits, k):
    """What to add to logits [T, E] so that the top k give each expert its share."""
    tokens, experts = logits.shape
    want = shares(routing, experts, k).to(logits.device)
    bias = torch.zeros(experts, device=logits.device, dtype=torch.float64)
    bias[want == 0] = -30
    bias[want == 1] = (logits.max() - logits.min()).double()
    free = (want > 0) & (want < 1)
    step = 0.5 * logits.std().double()
    for i in range(100):
        ids = torch.topk(logits + bias.float(), k).indices
        have = torch.bincount(ids.flatten(), minlength=experts).double() / tokens
        push = torch.log(want.clamp(min=1 / tokens) / have.clamp(min=1 / tokens)).clamp(-2, 2)
        bias = torch.where(free, bias + step * push * 0.97**i, bias)
    return bias.float()
