#!/usr/bin/env python3
"""One MoE layer over several GPUs of a host, bf16: Troupe's dispatchers beside eager PyTorch.

  python3 bench/expert_parallel.py --ranks 2 [--program build/release/expert_layer] [--shapes OLMoE,Qwen3-30B]

The rival is the layer as it is commonly written: one row for each token and expert, sorted by expert,
counts exchanged and read by the host, rows by all_to_all_single over NCCL, put in the experts' order,
torch._grouped_mm, and back. Sides run in turns as processes of their own, twice each; the better of the
two medians counts. Whole calls are timed from a barrier to the end of the slowest rank. On the CPU
(--device cpu) it is Gloo, f32, and a loop over the experts in place of _grouped_mm.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import layer_shapes

SHAPES = {  # tokens of a rank, d, n, E, K
    **layer_shapes.SHAPES,
    "tiny": (256, 64, 32, 8, 2),
    "DBRX": (8192, 6144, 10752, 16, 4),
}


def eager(shape, rounds, device):
    """A rank of the rival; rank 0 prints its medians."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed._functional_collectives import all_to_all_single_autograd
    tokens, d, n, experts, k = SHAPES[shape]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    group, mine = dist.group.WORLD, experts // ranks
    torch.manual_seed(1 + rank)
    kind = dict(device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    x = (torch.randn(tokens, d, **kind) * 0.2).requires_grad_()
    grad = torch.randn(tokens, d, **kind) * 0.2
    gate = (torch.randn(experts, d, **kind) * 0.02).requires_grad_()
    w1 = (torch.randn(mine, 2 * n, d, **kind) * 0.02).requires_grad_()
    w2 = (torch.randn(mine, d, n, **kind) * 0.02).requires_grad_()

    def grouped(rows, weights, counts):
        if device == "cuda":
            return torch._grouped_mm(rows, weights.transpose(1, 2), offs=counts.cumsum(0).int())
        parts = rows.split(counts.tolist())
        return torch.cat([part @ w.t() for part, w in zip(parts, weights)])

    def layer():
        weights, ids = torch.topk(torch.softmax(F.linear(x, gate).float(), -1), k)
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.bincount(ids.flatten(), minlength=experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sends = counts.view(ranks, mine).sum(1).tolist()
        takes = theirs.view(ranks, mine).sum(1).tolist()
        rows = all_to_all_single_autograd(x[order // k], takes, sends, group)
        local = torch.arange(mine, device=device).repeat(ranks).repeat_interleave(theirs, output_size=sum(takes))
        by_expert = torch.argsort(local, stable=True)
        per_expert = theirs.view(ranks, mine).sum(0)
        gate_rows, up = grouped(rows[by_expert], w1, per_expert).chunk(2, -1)
        y = grouped(F.silu(gate_rows) * up, w2, per_expert)
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(by_expert.numel(), device=device)
        y = all_to_all_single_autograd(y[back], sends, takes, group)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=device)
        return (y[inverse].view(tokens, k, d) * weights.to(y.dtype)[:, :, None]).sum(1)

    def seconds(work):
        if device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        passed = torch.tensor([time.perf_counter() - begin], device=device, dtype=torch.float64)
        dist.all_reduce(passed, dist.ReduceOp.MAX)
        return passed.item()

    forward, both = [], []
    for turn in range(rounds + 3):
        f = seconds(layer)
        b = seconds(lambda: torch.autograd.grad(layer(), (x, gate, w1, w2), grad))
        if turn >= 3:
            forward.append(f)
            both.append(b)
    if rank == 0:
        print(json.dumps(dict(side="eager all-to-all", forward_ms=1e3 * statistics.median(forward),
                              both_ms=1e3 * statistics.median(both))), flush=True)
    dist.destroy_process_group()


def over_ranks(command, ranks, limit):
    """Runs a command as `ranks` processes; the JSON that rank 0 printed, or None and its last words."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(ranks):
        place = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks,
                     MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, **{k: str(v) for k, v in place.items()}}))
    try:
        said = [one.communicate(timeout=limit)[0] for one in started]
    except subprocess.TimeoutExpired:
        said = [f"not done after {limit} s"]
    for one in started:
        one.kill()
    lines = [line for text in said for line in text.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[0])
    print("  " + command[0], "failed:", *(text.strip()[-600:] for text in said if text.strip()), sep="\n  ")
    return None


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--ranks", type=int, default=2)
    parse.add_argument("--program", default="build/release/expert_layer")
    parse.add_argument("--shapes", default="OLMoE,Qwen3-30B")
    parse.add_argument("--rounds", type=int, default=15)
    parse.add_argument("--turns", type=int, default=2)
    parse.add_argument("--limit", type=float, default=120)
    parse.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parse.add_argument("--eager", help=argparse.SUPPRESS)
    options = parse.parse_args()
    if options.eager:
        return eager(options.eager, options.rounds, options.device)
    for shape in options.shapes.split(","):
        sizes = [str(value) for value in SHAPES[shape]]
        sides = {"eager": [sys.executable, __file__, "--eager", shape, "--rounds", str(options.rounds),
                           "--device", options.device]}
        for kind, mode in (("a2a", "fast"), ("symmetric", "fast"), ("allgather", "fast"), ("a2a", "exact"),
                           ("symmetric", "exact")):
            sides[f"{kind} {mode}"] = [options.program, *sizes, mode, kind, str(options.rounds)]
        best = {}
        for _ in range(options.turns):
            for side, command in sides.items():
                found = over_ranks(command, options.ranks, options.limit)
                if found and found["both_ms"] < best.get(side, {}).get("both_ms", float("inf")):
                    best[side] = found
        rival = best.get("eager", {}).get("both_ms")
        for side, found in best.items():
            found.update(shape=shape, ranks=options.ranks, side=side)
            if rival:
                found["times_the_rival"] = rival / found["both_ms"]
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
