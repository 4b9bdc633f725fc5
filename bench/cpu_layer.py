#!/usr/bin/env python3
"""Forward and backward of one MoE layer on the CPU: Troupe beside Hugging Face transformers.

  .venv/bin/python bench/cpu_layer.py [--rounds N] [--threads N]

Same torch, threads, weights, input and loss; the rivals are transformers' experts in every
implementation that runs on a CPU. Rounds are interleaved, medians are printed, and beside them the
rate of torch.mm at the sizes of one expert group and at 2048^3, measured in the same rounds.
"""
import argparse
import statistics
import time

import torch
from transformers import MixtralConfig, OlmoeConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

import troupe_ops

SHAPES = {  # name: (T, d, n, E, K)
    "OLMoE-like": (4096, 512, 256, 32, 4),
    "Mixtral-like": (2048, 512, 1792, 8, 2),
    "fine-grained": (4096, 256, 64, 128, 8),
}
RIVALS = ("eager", "grouped_mm", "batched_mm")


def block(name, d, n, experts, k, implementation):
    common = dict(hidden_size=d, intermediate_size=n, num_experts_per_tok=k,
                  experts_implementation=implementation)
    if name == "Mixtral-like":
        config, kind = MixtralConfig(num_local_experts=experts, **common), MixtralSparseMoeBlock
    else:
        config, kind = OlmoeConfig(num_experts=experts, **common), OlmoeSparseMoeBlock
    config._experts_implementation = implementation
    torch.manual_seed(1)
    made = kind(config)
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=0.02)
    return made.train()


def step(forward, x, grad, parameters):
    for p in [x, *parameters]:
        p.grad = None
    start = time.perf_counter()
    y = forward(x)
    y.backward(grad)
    return time.perf_counter() - start


def mm_rate(m, n, k):
    a, b = torch.randn(m, k), torch.randn(k, n)
    start = time.perf_counter()
    torch.mm(a, b)
    return 2 * m * n * k / (time.perf_counter() - start) / 1e9


def run(name, rounds):
    T, d, n, E, K = SHAPES[name]
    torch.manual_seed(0)
    x = torch.randn(1, T, d).mul_(0.2).requires_grad_()
    grad = torch.randn(1, T, d).mul_(0.2)
    candidates = {}
    for rival in RIVALS:
        if rival == "batched_mm" and T * K * d * n * 4 * 2 > 8e9:
            continue  # It copies the weights of every row: that many bytes.
        made = block(name, d, n, E, K, rival)
        candidates[rival] = (made, list(made.parameters()))
    made = block(name, d, n, E, K, "eager")
    gate, experts = made.gate, made.experts
    order = "after" if name == "Mixtral-like" else "before"
    candidates["troupe"] = (troupe_ops.Layer(gate.weight, experts.gate_up_proj, experts.down_proj,
                                             K, order), list(made.parameters()))
    times, rates, plain = {c: [] for c in candidates}, [], []
    for i in range(rounds + 2):
        for c, (forward, parameters) in candidates.items():
            seconds = step(forward, x, grad, parameters)
            if i >= 2:
                times[c].append(seconds)
        rates.append(mm_rate(max(1, T * K // E), 2 * n, d))
        plain.append(mm_rate(2048, 2048, 2048))
    flops = 18 * T * K * n * d
    print(f"{name}: T={T} d={d} n={n} E={E} K={K}, {flops / 1e9:.1f} GFLOP")
    best = min(statistics.median(times[c]) for c in candidates if c != "troupe")
    for c in candidates:
        median = statistics.median(times[c])
        print(f"  {c:12s} {median * 1e3:8.1f} ms  {flops / median / 1e9:7.1f} GFLOP/s")
    ours = statistics.median(times["troupe"])
    peak = statistics.median(plain)
    print(f"  troupe is {best / ours:.2f}x the fastest rival, {flops / ours / 1e9 / peak:.0%} of "
          f"torch.mm at 2048^3 ({peak:.0f}); torch.mm at group size: {statistics.median(rates):.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--library", default=None)
    options = parser.parse_args()
    troupe_ops.load(options.library)
    torch.set_num_threads(options.threads)
    for shape in SHAPES:
        run(shape, options.rounds)
