#!/usr/bin/env python3
"""A training loop of nobody's, for a mixture of experts on the bytes of a text, which has never heard of Troupe:

    python examples/own_trainer/trainer.py README.md
    python examples/own_trainer/trainer.py README.md --plugin troupe_hook --experts troupe

A plugin is a module that adds to EXPERTS, as plugins of other trainers do; troupe_hook.py beside this file is one."""
import argparse
import importlib
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

EXPERTS: dict[str, type[nn.Module]] = {}  # name -> class (width, experts, hidden), whose forward takes rows sorted by expert and how many each has


class LoopExperts(nn.Module):
    def __init__(self, width: int, experts: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Parameter(torch.randn(experts, hidden, width) / width ** 0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, width, hidden) / hidden ** 0.5)

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = rows.split(counts.tolist())
        return torch.cat([(F.silu(x @ g.T) * (x @ u.T)) @ d.T
                          for x, g, u, d in zip(parts, self.gate, self.up, self.down, strict=True)])


EXPERTS["loop"] = LoopExperts


class Block(nn.Module):
    def __init__(self, kind: type[nn.Module], width: int, experts: int, top_k: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.GRU(width, width, batch_first=True)
        self.router, self.top_k, self.experts = nn.Linear(width, experts, bias=False), top_k, kind(width, experts, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(x)[0]
        flat = self.norm(x).flatten(0, 1)
        weights, ids = self.router(flat).softmax(-1).topk(self.top_k)
        slots = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=self.router.out_features)
        rows = self.experts(flat[slots // self.top_k], counts) * weights.flatten()[slots, None]
        return x + torch.zeros_like(flat).index_add(0, slots // self.top_k, rows).view_as(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--plugin", help="a module beside this file")
    parser.add_argument("--experts", default="loop")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    sys.modules["trainer"] = sys.modules[__name__]  # what a plugin imports
    if args.plugin:
        importlib.import_module(args.plugin)
    torch.manual_seed(1)
    width, sequences, tokens = 64, 4, 64
    embed, head = nn.Embedding(256, width), nn.Linear(width, 256)
    model = nn.Sequential(embed, *(Block(EXPERTS[args.experts], width, 8, 2, 64) for _ in range(2)), head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        sample = torch.stack([text[i:i + tokens + 1] for i in torch.randint(len(text) - tokens, (sequences,)).tolist()])
        loss = F.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.7f}")
    print(f"{args.steps * sequences * tokens / (time.perf_counter() - begin):,.0f} tokens/s")


if __name__ == "__main__":
    main()
