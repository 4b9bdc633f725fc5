import torch

from . import moe, router


class Router(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        self.layer = torch.nn.Linear(args.hidden_size, args.moe_num_experts, bias=False)
        args.init_method(self.layer.weight)


class Mlp(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        whole = (args.moe_num_experts, args.ffn_hidden_size, args.hidden_size)
        for name in ("w1", "w2", *(["v1"] if args.mlp_type == "glu" else [])):
            init = args.output_layer_init_method if name == "w2" else args.init_method
            weight = torch.empty(whole)
            init(weight)
            self.register_parameter(name, torch.nn.Parameter(weight.view(-1, args.hidden_size)))


class Experts(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        self.mlp = Mlp(args)
        self.bias = torch.nn.Parameter(torch.zeros(args.hidden_size)) if args.bias else None


class dMoE(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args, self.router, self.experts = args, Router(args), Experts(args)

    def forward(self, x):
        args, mlp, flat = self.args, self.experts.mlp, x.reshape(-1, x.shape[-1])
        logits = self.router.layer(flat)
        scores = logits.softmax(-1)
        p, ids = scores.topk(args.moe_top_k)
        if args.moe_normalize_expert_weights:
            p = p / p.norm(args.moe_normalize_expert_weights, dim=-1, keepdim=True)
        if args.moe_zloss_weight:
            router.LOGITS.append(logits)
        moe.LOSSES.append((torch.bincount(ids.flatten(), minlength=args.moe_num_experts), scores))
        weights = {n: w.view(args.moe_num_experts, -1, args.hidden_size) for n, w in mlp.named_parameters()}
        y = torch.zeros_like(flat)
        for e in range(args.moe_num_experts):
            t, k = torch.where(ids == e)
            h = args.activation_fn(flat[t] @ weights["w1"][e].T)
            if "v1" in weights:
                h = h * (flat[t] @ weights["v1"][e].T)
            y = y.index_add(0, t, p[t, k, None] * (h @ weights["w2"][e]))
        y = y.view(x.shape)
        if not args.bias:
            return y
        return (y, self.experts.bias) if args.return_bias else y + self.experts.bias
