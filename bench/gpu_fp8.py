#!/usr/bin/env python3
"""Forward and backward of an experts' layer, and of dense products, on one Hopper GPU: 8 bits beside bf16.

  python3 bench/gpu_fp8.py [--library libtroupe.so] [--shapes S7-256,OLMoE] [--rounds 6] [--check-only]
  python3 bench/gpu_fp8.py --dense [--rounds 6]

Sides: moe_ffn (bf16), moe_ffn_fp8, moe_ffn_fp8 with weight gradients of unrounded operands, and of recipes tensor and block. Routing is
given and the same for all; x and dO 0.2 randn, weights 0.02 randn. Forward with backward is captured
into a CUDA graph; L2 is cleared before each replay, sides take turns in rounds, the first round is left
out, medians count. Weights are rounded in every call. `held`: half a second of replays without a pause,
sides by turns. Before, each side is compared with the emulation in bf16 (which rounds the same values)
and with bf16. A line of JSON for each shape and side.

`--dense`: linear_fp8 beside F.linear (cuBLAS) in the same way, for the projections of attention, the
rounding of x, dy and the weight in its time; and beside torch._scaled_mm's three products with a scale a
row, promoted (no fast accumulation), of operands that somebody has rounded and transposed before.
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
# Tokens, outputs, inputs.
DENSE = {"OLMoE q, k, v": (16384, 6144, 2048), "OLMoE out": (16384, 2048, 2048),
         "Qwen3-30B q, k, v": (16384, 5120, 2048), "Qwen3-30B out": (16384, 2048, 4096),
         "wide": (16384, 28672, 4096)}
ODD_DENSE = {"one row": (1, 128, 384), "half tiles": (300, 384, 640), "many rows": (5000, 1280, 256)}
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


SIDES = {"bf16": bf16, "fp8": fp8(), "fp8, bf16 weight gradients": fp8(weight_grad=False), "fp8, recipe tensor": fp8(recipe="tensor"),
         "fp8, recipe block": fp8(recipe="block")}
KINDS = [dict(weight_grad=wide, recipe=recipe) for recipe in ("row", "tensor", "block") for wide in (True, False)]


def check(name, case, plain, eight, names, most):
    """The 8-bit products beside the emulation of the same values, beside bf16, and beside themselves."""
    good, unrounded = True, case.run(plain)
    for kind in KINDS:
        want = case.run(eight(emulate=True, **kind))
        got, again = (case.run(eight(**kind)) for _ in range(2))
        near = [apart(a, b) for a, b in zip(got, want)]
        good = good and all(e < most for e in near) and all(torch.equal(a, b) for a, b in zip(got, again))
        print(f"  {name}, recipe {kind['recipe']}, weight_grad {'fp8' if kind['weight_grad'] else 'bf16'}: apart from the emulation " +
              ", ".join(f"{n} {e:.1e}" for n, e in zip(names, near)) + "; from bf16 " +
              ", ".join(f"{n} {apart(a, b):.3f}" for n, a, b in zip(names, got, unrounded)) +
              ("" if good else "  WRONG"), flush=True)
    return good


def check_layer(name, shape):
    return check(name, Layer(shape), bf16, fp8, NAMES, 0.02)


class Product:
    def __init__(self, shape):
        rows, n, k = shape
        torch.manual_seed(0)
        bf16 = dict(device="cuda", dtype=torch.bfloat16)
        self.x = (torch.randn(rows, k, **bf16) * 0.2).requires_grad_()
        self.w = (torch.randn(n, k, **bf16) * 0.02).requires_grad_()
        self.grad = torch.randn(rows, n, **bf16) * 0.2

    def run(self, forward):
        y = forward(self.x, self.w)
        return (y, *torch.autograd.grad(y, (self.x, self.w), self.grad))


def linear8(**options):
    return lambda x, w: OPS.linear_fp8(x, w, **options)


def check_dense(name, shape):
    return check(name, Product(shape), torch.nn.functional.linear, linear8, ("y", "dX", "dW"), 0.006)


def scaled_products(shape):
    """The three products by torch._scaled_mm, with operands and scales made before."""
    rows, n, k = shape

    def operand(lines, depth):
        return (torch.randn(lines, depth, device="cuda")).to(torch.float8_e4m3fn)

    def scale(*sizes):
        return torch.full(sizes, 0.5, device="cuda")

    pairs = [(operand(a, depth), operand(b, depth)) for a, b, depth in ((rows, n, k), (rows, k, n), (n, k, rows))]

    def run():
        return [torch._scaled_mm(a, b.t(), scale_a=scale(len(a), 1), scale_b=scale(1, len(b)),
                                 out_dtype=torch.bfloat16, use_fast_accum=False) for a, b in pairs]
    return run


def bench_dense(name, options):
    shape = DENSE[name]
    product, flush = Product(shape), torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    sides = {"bf16": lambda: product.run(torch.nn.functional.linear), "fp8": lambda: product.run(linear8()),
             "torch._scaled_mm": scaled_products(shape)}
    if options.kernels:
        profile(sides["fp8"], options.kernels)
    graphs = {side: captured(work) for side, work in sides.items()}
    tell(dict(product=name), measured(graphs, options.rounds, flush), 6 * shape[0] * shape[1] * shape[2])
    for graph in graphs.values():
        graph.reset()


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


def measured(graphs, rounds, flush):
    """Of each side: the median with L2 cleared, and held."""
    times, long = {side: [] for side in graphs}, {side: [] for side in graphs}
    for i in range(rounds + 1):
        for side, graph in graphs.items():
            events = turn(graph.replay, 5, flush)
            torch.cuda.synchronize()
            took = [start.elapsed_time(end) for start, end in events]
            if i:
                times[side] += took
                long[side].append(held(graph, statistics.median(took)))
    return {side: (statistics.median(times[side]), statistics.median(long[side])) for side in graphs}


def tell(what, times, flop):
    """A line of JSON for each side, beside bf16."""
    base = times["bf16"]
    for side, (ms, without) in times.items():
        print(json.dumps(dict(
            what, side=side, ms=round(ms, 3), tflops=round(flop / ms / 1e9), of_bf16=round(base[0] / ms, 3),
            held_ms=round(without, 3), held_of_bf16=round(base[1] / without, 3))), flush=True)


def bench(name, options):
    tokens, d, n, _, k = SHAPES[name]
    layer, flush = Layer(SHAPES[name]), torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    graphs = {}
    for side, forward in SIDES.items():
        work = lambda forward=forward: layer.run(forward)
        work()
        if side == "fp8" and options.kernels:
            profile(work, options.kernels)
        graphs[side] = captured(work)
    tell(dict(shape=name), measured(graphs, options.rounds, flush), 18 * tokens * k * n * d)
    for graph in graphs.values():
        graph.reset()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", help="libtroupe.so (default: the newest under build/)")
    parser.add_argument("--shapes", default="S7-256,OLMoE,S120-1024,Mixtral", help="names, by commas")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kernels", type=int, default=0, help="rows of a table of kernels")
    parser.add_argument("--dense", action="store_true", help="dense products in place of layers of experts")
    parser.add_argument("--check-only", action="store_true")
    return parser.parse_args()


def main():
    options = read_options()
    troupe_ops.load(options.library)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    if options.dense:
        cases, names, one = {**ODD_DENSE, "OLMoE out": DENSE["OLMoE out"]}, list(DENSE), bench_dense
    else:
        cases, names, one = {**ODD, "S7-256": SHAPES["S7-256"]}, options.shapes.split(","), bench
    good = [(check_dense if options.dense else check_layer)(name, shape) for name, shape in cases.items()]
    for name in [] if options.check_only else names:
        one(name, options)
        torch.cuda.empty_cache()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
