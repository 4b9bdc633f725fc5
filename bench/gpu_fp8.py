#!/usr/bin/env python3
"""Forward and backward of an experts' layer on one Hopper GPU: 8-bit products beside bf16's.

  python3 bench/gpu_fp8.py [--library libtroupe.so] [--shapes S7-256,OLMoE] [--rounds 6] [--check-only]

Sides: moe_ffn (bf16), moe_ffn_fp8, moe_ffn_fp8 with weight gradients of unrounded operands. Routing is
given and the same for all; x and dO 0.2 randn, weights 0.02 randn. Forward with backward is captured
into a CUDA graph; L2 is cleared before each replay, sides take turns in rounds, the first round is left
out, medians count. Weights are rounded in every call. `held`: half a second of replays without a pause,
sides by turns. Before, each side is compared with the emulation in bf16 (which rounds the same values)
and with bf16. A line of JSON for each shape and side.
"""
import argparse
import json
import statistics
import sys

import torch

import troupe_ops
from gpu_timing import apart, captured, turn
from layer_shapes import SHAPES

OPS = torch.ops.troupe
NAMES = ("out", "dX", "dS", "dW1", "dW2")
# Routing that leaves experts empty, or with part of a tile, and widths of half a column tile.
ODD = {"odd halves": (300, 384, 384, 5, 2), "many experts": (500, 256, 128, 64, 2), "one token": (1, 128, 256, 3, 2)}


class Layer:
    def __init__(self, shape):
        tokens, d, n, experts, k = shape
        torch.manual_seed(0)
        bf16 = dict(device="cuda", dtype=torch.bfloat16)
        self.x = (torch.randn(tokens, d, **bf16) * 0.2).requires_grad_()
        self.grad = torch.randn(tokens, d, **bf16) * 0.2
        self.w1 = (torch.randn(experts, 2 * n, d, **bf16) * 0.02).requires_grad_()
        self.w2 = (torch.randn(experts, d, n, **bf16) * 0.02).requires_grad_()
        logits = torch.randn(tokens, experts, device="cuda")
        weights, ids = torch.topk(logits.softmax(1), k)
        self.weights = weights.contiguous().requires_grad_()
        self.plan = list(OPS.routing_plan(ids.int(), experts))

    def arguments(self):
        return [self.x, self.weights, self.w1, self.w2, self.plan]

    def run(self, forward):
        y = forward(*self.arguments())
        return (y, *torch.autograd.grad(y, (self.x, self.weights, self.w1, self.w2), self.grad))


def fp8(**options):
    return lambda *arguments: OPS.moe_ffn_fp8(*arguments, **options)


def bf16(*arguments):
    return OPS.moe_ffn(*arguments)


SIDES = {"bf16": bf16, "fp8": fp8(), "fp8, bf16 weight gradients": fp8(weight_grad=False)}


def check(name, shape):
    """The 8-bit products beside the emulation of the same values, beside bf16, and beside themselves."""
    layer, good = Layer(shape), True
    want, plain = layer.run(fp8(emulate=True)), layer.run(bf16)
    for weight_grad in (True, False):
        got = layer.run(fp8(weight_grad=weight_grad))
        if not weight_grad:
            want = layer.run(fp8(emulate=True, weight_grad=False))
        again = layer.run(fp8(weight_grad=weight_grad))
        near = [apart(a, b) for a, b in zip(got, want)]
        good = good and all(e < 0.02 for e in near) and all(torch.equal(a, b) for a, b in zip(got, again))
        print(f"  {name}, weight_grad {'fp8' if weight_grad else 'bf16'}: apart from the emulation " +
              ", ".join(f"{n} {e:.1e}" for n, e in zip(NAMES, near)) + "; from bf16 " +
              ", ".join(f"{n} {apart(a, b):.3f}" for n, a, b in zip(NAMES, got, plain)) +
              ("" if good else "  WRONG"), flush=True)
    return good


def profile(work, rows):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as run:
        work()
        torch.cuda.synchronize()
    found = sorted(((e.self_device_time_total, e.count, e.key) for e in run.key_averages()), reverse=True)
    for us, count, key in found[:rows]:
        print(f"    {us:9.0f} us {count:3d}x {key[:110]}")


def held(graph, ms):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count = max(1, round(500 / ms))
    start.record()
    for _ in range(count):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def bench(name, options):
    tokens, d, n, _, k = SHAPES[name]
    layer, flush = Layer(SHAPES[name]), torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    graphs, times, long = {}, {}, {}
    for side, forward in SIDES.items():
        work = lambda forward=forward: layer.run(forward)
        work()
        if side == "fp8" and options.kernels:
            profile(work, options.kernels)
        graphs[side], times[side], long[side] = captured(work), [], []
    for i in range(options.rounds + 1):
        for side, graph in graphs.items():
            events = turn(graph.replay, 5, flush)
            torch.cuda.synchronize()
            took = [start.elapsed_time(end) for start, end in events]
            if i:
                times[side] += took
                long[side].append(held(graph, statistics.median(took)))
    base = statistics.median(times["bf16"]), statistics.median(long["bf16"])
    for side in graphs:
        ms, without = statistics.median(times[side]), statistics.median(long[side])
        print(json.dumps(dict(
            shape=name, side=side, ms=round(ms, 3), tflops=round(18 * tokens * k * n * d / ms / 1e9),
            of_bf16=round(base[0] / ms, 3), held_ms=round(without, 3), held_of_bf16=round(base[1] / without, 3))), flush=True)
        graphs[side].reset()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", help="libtroupe.so (default: the newest under build/)")
    parser.add_argument("--shapes", default="S7-256,OLMoE,S120-1024,Mixtral", help="names, by commas")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kernels", type=int, default=0, help="rows of a table of kernels")
    parser.add_argument("--check-only", action="store_true")
    return parser.parse_args()


def main():
    options = read_options()
    troupe_ops.load(options.library)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    good = [check(name, shape) for name, shape in {**ODD, "S7-256": SHAPES["S7-256"]}.items()]
    for name in [] if options.check_only else options.shapes.split(","):
        bench(name, options)
        torch.cuda.empty_cache()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
