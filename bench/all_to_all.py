#!/usr/bin/env python3
"""Rows to all ranks and from them, as many to each, 8 to 1,048,576 rows of a rank: Troupe's groups beside
torch.distributed.all_to_all_single, both over the same NCCL (--device cpu: Gloo), and rows read out of the other ranks'
memory (`parallel.dispatcher: symmetric`).

  python3 bench/all_to_all.py --ranks 2 [--program build/release/all_to_all] [--width 1024]

Sides run in turns as processes of their own. A figure is the median of 15 times of ten exchanges, from a
barrier to the end of the slowest rank; GB/s are what a rank sends to others.
"""
import argparse
import json
import os
import statistics
import sys
import time

from expert_parallel import over_ranks


def torch_side(width, most, device):
    import torch
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    host = dist.new_group(backend="gloo")
    out, rows = {}, 8
    while rows <= most:
        if rows % ranks == 0:
            mine = torch.zeros(rows, width, dtype=torch.bfloat16, device=device)
            theirs = torch.empty_like(mine)
            times = []
            for _ in range(15):
                if device == "cuda":
                    torch.cuda.synchronize()
                dist.barrier(group=host)
                begin = time.perf_counter()
                for _ in range(10):
                    dist.all_to_all_single(theirs, mine)
                if device == "cuda":
                    torch.cuda.synchronize()
                passed = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(passed, op=dist.ReduceOp.MAX, group=host)
                times.append(passed.item())
            out[rows] = 1e6 * statistics.median(times) / 10
        rows *= 2
    if rank == 0:
        print(json.dumps(out), flush=True)
    dist.destroy_process_group()


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--ranks", type=int, default=2)
    parse.add_argument("--program", default="build/release/all_to_all")
    parse.add_argument("--width", type=int, default=1024)
    parse.add_argument("--most", type=int, default=1 << 20, help="rows of a rank")
    parse.add_argument("--turns", type=int, default=2)
    parse.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parse.add_argument("--json", help="a file for the figures")
    parse.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parse.parse_args()
    if options.torch:
        return torch_side(options.width, options.most, options.device)
    ours = [options.program, str(options.width), str(options.most)]
    sides = {"troupe": ours, "symmetric": [*ours, "symmetric"],
             "torch": [sys.executable, __file__, "--torch", "--width", str(options.width), "--most", str(options.most),
                       "--device", options.device]}
    best = {side: {} for side in sides}
    for _ in range(options.turns):
        for side, command in sides.items():
            for rows, us in (over_ranks(command, options.ranks, 200) or {}).items():
                best[side][int(rows)] = min(us, best[side].get(int(rows), us))
    print(f"{'rows':>8} {'troupe us':>10} {'torch us':>10} {'ratio':>6} {'GB/s':>7} {'read us':>10} {'GB/s':>7}")
    lines = []
    for rows, us in sorted(best["troupe"].items()):
        sent = rows * options.width * 2 * (options.ranks - 1) / options.ranks
        rival, read = (best[side].get(rows, float("nan")) for side in ("torch", "symmetric"))
        lines.append({"rows": rows, "ranks": options.ranks, "width": options.width, "device": options.device, "troupe_us": us,
                      "torch_us": best["torch"].get(rows), "symmetric_us": best["symmetric"].get(rows)})
        print(f"{rows:8} {us:10.1f} {rival:10.1f} {rival / us:6.2f} {sent / us / 1e3:7.1f} {read:10.1f} {sent / read / 1e3:7.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(lines, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
