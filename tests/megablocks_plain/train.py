"""A training script of a MegaBlocks user, as it stands: `python train.py` or `python -m troupe.megablocks train.py`."""
import argparse
from functools import partial

import torch
from megablocks.layers.arguments import Arguments
from megablocks.layers.dmoe import dMoE
from megablocks.layers.moe import batched_load_balancing_loss, clear_load_balancing_loss
from megablocks.layers.router import batched_router_zloss, clear_router_zloss


class Block(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        D = args.hidden_size
        self.norm1, self.norm2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.qkv, self.out, self.ffn = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D), dMoE(args)

    def forward(self, x):
        S, B, D = x.shape
        q, k, v = (t.view(S, B, 4, D // 4).permute(1, 2, 0, 3) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.permute(2, 0, 1, 3).reshape(S, B, D))
        y, bias = self.ffn(self.norm2(x))
        return x + y + bias


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--moe-num-experts", type=int, default=4)
    parser.add_argument("--moe-top-k", type=int, default=2)
    parser.add_argument("--moe-loss-weight", type=float, default=0.1)
    parser.add_argument("--mlp-type", default="mlp")
    parser.add_argument("--train-iters", type=int, default=12)
    given = parser.parse_args()
    torch.manual_seed(1)
    args = Arguments(hidden_size=given.hidden_size, ffn_hidden_size=2 * given.hidden_size, num_layers=given.num_layers,
                     moe_num_experts=given.moe_num_experts, moe_top_k=given.moe_top_k, moe_loss_weight=given.moe_loss_weight,
                     mlp_type=given.mlp_type, fp16=False, bf16=False, moe_normalize_expert_weights=1, moe_zloss_weight=1e-3,
                     init_method=partial(torch.nn.init.normal_, mean=0.0, std=0.1))
    embed = torch.nn.Embedding(50, given.hidden_size)
    blocks = torch.nn.Sequential(*(Block(args) for _ in range(given.num_layers)))
    parameters = [*embed.parameters(), *blocks.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    text = torch.randint(50, (17, 3))
    for step in range(given.train_iters):
        logits = blocks(embed(text[:-1])) @ embed.weight.T
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[1:].flatten())
        total = loss + batched_load_balancing_loss(args) + batched_router_zloss(args).sum()
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        clear_load_balancing_loss()
        clear_router_zloss()
        print(f"iteration {step} | lm loss: {loss.item():.6f} | total: {total.item():.6f}")


if __name__ == "__main__":
    main()
