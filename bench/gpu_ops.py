#!/usr/bin/env python3
"""Troupe's operators one by one on one GPU, each beside what PyTorch has for it, in the same run.

  python3 bench/gpu_ops.py [--library libtroupe.so] [--only gemm,groups,grad,permute,sort,sparse,small,memory]
  python3 bench/gpu_ops.py --trial --only gemm        kernels on trial beside those that run by default
  python3 bench/gpu_ops.py --device cpu --small       the same code on tiny shapes: only a check that it runs

gemm     (feature 49) one expert: torch.ops.troupe.grouped_gemm beside torch.mm (cuBLAS), forward and both
         gradients, bf16; then the products inside moe_ffn beside torch.mm of the same sizes
groups   (53) 128 experts with 512 rows each, even and uneven: grouped_gemm and its gradients beside torch._grouped_mm
grad     (51) weight gradients' FLOP/s as a share of the forward product's of the same sizes and groups, for
         the grouped operators and for the products inside moe_ffn
permute  (55) rows to their experts and back (combine): bytes/s as a share of copy_'s with as many bytes
sort     (60) sort, histogram, cumsum, replicate beside PyTorch's
sparse   (70) MegaBlocks' 18 block-sparse products, fp16, beside torch.bmm (batched cuBLAS)
small    (73) whole layers of many experts of width 128 (MegaBlocks issue 166), forward and backward, beside
         torch._grouped_mm, a dense FFN of the active FLOPs, and our layer with experts of 1024
memory   (75) bytes that a layer keeps and holds at its peak, by formula beside measured

Works are captured into CUDA graphs and replayed in turns, round after round; the first round is left out,
medians count. L2 is cleared before each replay, except for `sort`, whose operators take microseconds: a graph
repeats one 20 times, on data that stays in L2. A ratio is our rate over the rival's; where both have the same
result, it is compared. A product inside moe_ffn (on Hopper: kernels/moe_sm90; it gathers, and some apply
SwiGLU) is no operator of its own: its time is the difference between two works with and without it. A line of
JSON for each comparison. Ends with 1 where a bench fails or a result is wrong. With --trial each of our works stands
beside itself with run.trial_kernels (troupe/ops/support/trial_kernels.h), whose result must be the same except for rounding:
a ratio above 1 says that the measured kernel is faster.
"""
import argparse
import gc
import json
import math
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F

import gpu_layer
import troupe_ops
from gpu_timing import apart, captured, first_line, turn
from layer_shapes import SHAPES

FULL = dict(
    gemm=[(16384, 4096, 4096), (32768, 2048, 1024)],  # rows, outputs, inputs
    layers=SHAPES, groups=(128, 65536, 1536, 2048),  # experts, rows, outputs, inputs
    sort=(16384, 65536, 262144), sums=128, experts=128,
    # MegaBlocks' MoE-XS, -Small, -Medium: rows of their microbatches of 64, 32 and 8 sequences, width, hidden.
    sparse={"XS": (65536, 512, 2048), "Small": (32768, 768, 3072), "Medium": (8192, 1024, 4096)},
    sparse_experts=64, block=128,
    small={f"{e} experts": (16384, 1536, 128, e, 8) for e in (48, 64, 128)})
TINY = dict(
    gemm=[(64, 32, 16)], layers={"tiny": (64, 32, 16, 8, 2)}, groups=(8, 64, 32, 16), sort=(256,), sums=4, experts=8,
    sparse={"tiny": (64, 16, 32)}, sparse_experts=2, block=8, small={"8 experts": (64, 32, 16, 8, 4)})


class Work:
    """One call that is timed. amount: its operations, bytes or elements; same: a rival's result must be ours;
    like: what makes our result comparable."""

    def __init__(self, name, call, amount, same=False, like=lambda result: result):
        self.name, self.call, self.amount, self.same, self.like = name, call, amount, same, like
        self.run, self.mode, self.graph, self.repeat = call, "eager", None, 1
        self.times, self.turns = [], 0

    @property
    def ms(self):
        return statistics.median(self.times)

    def capture(self, repeat):
        def repeated():
            for _ in range(repeat):
                self.call()
        self.repeat = repeat
        try:
            self.graph = captured(repeated)
            self.run, self.mode = self.graph.replay, "graph"
        except RuntimeError as error:
            self.run = repeated
            print(f"  {self.name}: cannot be captured, timed eagerly: {first_line(error)}", flush=True)


def on_trial(call):
    """The same call by kernels on trial."""
    def run():
        torch.ops.troupe.set_trial_kernels(True)
        try:
            return call()
        finally:
            torch.ops.troupe.set_trial_kernels(False)
    return run


def derived(name, amount, ms):
    """A result whose time follows from others."""
    work = Work(name, None, amount)
    work.mode, work.times = "derived", [ms]
    return work


def finite(number, digits):
    return round(number, digits) if math.isfinite(number) else None


class Bench:
    def __init__(self, options):
        self.options, self.device, self.sizes = options, options.device, TINY if options.small else FULL
        self.results, self.op, self.row, self.wrong = [], "", 0, False
        cuda = self.device == "cuda"
        self.clear = torch.empty(1 << 28, device="cuda", dtype=torch.uint8) if cuda else None
        self.nothing = torch.empty(1, device="cuda", dtype=torch.uint8) if cuda else None

    def randn(self, *sizes, dtype=torch.bfloat16, scale=1.0):
        return torch.randn(*sizes, device=self.device, dtype=dtype) * scale

    def ints(self, *arguments):
        return torch.randint(*arguments, device=self.device, dtype=torch.int32)

    def milliseconds(self, work, count, flush):
        if self.device == "cuda":
            events = turn(work.run, count, flush)
            torch.cuda.synchronize()
            return [start.elapsed_time(end) for start, end in events]
        times = []
        for _ in range(count):
            start = time.perf_counter()
            work.run()
            times.append(1e3 * (time.perf_counter() - start))
        return times

    def time(self, *works, repeat=1):
        """Works by turns. A rival that fails is left out."""
        kept = []
        for work in works:
            try:
                work.call()
                if self.device == "cuda":
                    work.capture(repeat)
                kept.append(work)
            except Exception as error:  # a rival that fails must not end the run
                if work is works[0]:
                    raise
                print(f"  {work.name}: left out, it fails: {type(error).__name__} {first_line(error)}", flush=True)
        flush = self.clear if repeat == 1 else self.nothing
        for i in range(self.options.rounds + 1):
            for work in kept:
                work.turns = work.turns or max(2, min(
                    50, round(self.options.ms / min(self.milliseconds(work, 3, flush)))))
                times = self.milliseconds(work, work.turns, flush)
                work.times += [ms / work.repeat for ms in times] if i else []
        for work in kept:
            if work.graph:
                work.graph.reset()
        return kept

    def check(self, problem, ours, rivals):
        for rival in rivals:
            if not rival.same:
                continue
            like = ours.like if rival.name == "on trial" else lambda result: result
            for a, b in zip(several(ours.like(ours.call())), several(like(rival.call())), strict=True):
                a, b = a.detach(), b.detach()
                right = apart(a, b) < 0.03 if a.is_floating_point() else torch.equal(a, b.to(a.dtype))
                if not right:
                    self.wrong = True
                    print(f"  {problem}: ours is not {rival.name}'s  WRONG", flush=True)

    def compare(self, problem, *works, repeat=1, wanted=None, unit="TFLOP/s"):
        """Ours, then rivals."""
        if self.options.trial:
            ours = works[0]
            works = (ours, Work("on trial", on_trial(ours.call), ours.amount, same=True, like=ours.like), *works[1:])
        kept = self.time(*works, repeat=repeat)
        self.check(problem, kept[0], kept[1:])
        self.show(problem, kept, wanted, unit)

    def show(self, problem, works, wanted=None, unit="TFLOP/s"):
        """wanted: {a rival's name: the least ratio}."""
        scale = {"TFLOP/s": 1e9, "GB/s": 1e6, "M elements/s": 1e3}[unit]
        rates = [w.amount / w.ms / scale if w.ms > 0 else math.nan for w in works]
        ratios = {w.name: rates[0] / rate for w, rate in zip(works[1:], rates[1:])}
        print(f"  {problem:<38}" + "  ".join(
            f"{w.name} {w.ms:.4f} ms {rate:.0f}" + (f" x{ratios[w.name]:.3f}" if w.name in ratios else "")
            for w, rate in zip(works, rates)) + f" {unit}", flush=True)
        self.results.append(dict(
            bench=self.op, row=self.row, problem=problem, unit=unit, wanted=wanted or {},
            ratios={name: finite(r, 4) for name, r in ratios.items()},
            sides={w.name: dict(ms=round(w.ms, 5), rate=finite(rate, 2), mode=w.mode, timings=len(w.times))
                   for w, rate in zip(works, rates)}))


def several(result):
    return result if isinstance(result, (tuple, list)) else [result]


class Routed:
    """A layer's tensors and its routing."""

    def __init__(self, bench, shape):
        self.shape = shape
        self.t = t = gpu_layer.Tensors(shape, bench.device)
        logits = troupe_ops.RouterProduct.apply(t.x, t.gate)
        self.ids, self.weights = torch.ops.troupe.route(logits, t.k)[:2]
        self.plan = list(torch.ops.troupe.routing_plan(self.ids, shape[3]))
        self.rows = self.ids.numel()


def parts_of_layer(bench, r, *others):
    """The six products inside moe_ffn, by name. Others are timed in the same rounds."""
    tokens, d, n, _, k = r.shape
    unit, ops = 2 * tokens * k * n * d, torch.ops.troupe
    call = (r.t.w1, None, r.t.w2, None, None, r.plan, "silu", None, 0.0, False, False, False)
    hidden = ops.moe_ffn_forward(r.t.x, r.weights, *call, True)[1]

    def backward(*needs):
        return lambda: ops.moe_ffn_backward(r.t.grad, r.t.x, r.weights, hidden, *call, [bool(n) for n in needs] + [False])
    rows = bench.randn(r.rows, d)
    up = Work("up", lambda: ops.moe_ffn_forward(r.t.x, r.weights, *call, True), 2 * unit)
    forward = Work("forward", lambda: ops.moe_ffn_forward(r.t.x, r.weights, *call, False), 3 * unit)
    combine = Work("combine", lambda: ops.combine(rows, None, None, r.plan), 0)
    dh = Work("dH", backward(0, 1, 0, 0, 0, 0), unit)
    dx, dw1, dw2 = (Work(name, backward(*needs), 0) for name, needs in (
        ("dX", (1, 1, 0, 0, 0, 0)), ("dW1", (0, 1, 1, 0, 0, 0)), ("dW2", (0, 1, 0, 0, 1, 0))))
    bench.time(up, forward, combine, dh, dx, dw1, dw2, *others)
    return dict(up=up, down=derived("down", unit, forward.ms - up.ms - combine.ms), dH=dh,
                dX=derived("dX", 2 * unit, dx.ms - dh.ms - combine.ms),
                dW1=derived("dW1", 2 * unit, dw1.ms - dh.ms), dW2=derived("dW2", unit, dw2.ms - dh.ms))


def gemm(bench):
    ops, wanted = torch.ops.troupe, {"torch.mm": 1.0}
    for m, n, k in bench.sizes["gemm"]:
        x, w, dy = bench.randn(m, k), bench.randn(1, n, k, scale=0.02), bench.randn(m, n)
        offset = torch.tensor([0, m], device=bench.device, dtype=torch.int32)
        for what, ours, mm in (
                ("forward", lambda: ops.grouped_gemm(x, w, offset, True), lambda: torch.mm(x, w[0].t())),
                ("dX", lambda: ops.grouped_gemm(dy, w, offset, False), lambda: torch.mm(dy, w[0])),
                ("dW", lambda: ops.grouped_gemm_weight(dy, x, offset), lambda: torch.mm(dy.t(), x)[None])):
            flops = 2 * m * n * k
            bench.compare(f"grouped_gemm {what} {m}x{n}x{k}", Work("ours", ours, flops),
                          Work("torch.mm", mm, flops, same=True), wanted=wanted)
        w1, w2, a, dout = w[0], bench.randn(k, n // 2, scale=0.02), bench.randn(m, n // 2), bench.randn(m, k)
        mm = dict(up=lambda: torch.mm(x, w1.t()), down=lambda: torch.mm(a, w2.t()),
                  dH=lambda: torch.mm(dout, w2), dX=lambda: torch.mm(dy, w1),
                  dW1=lambda: torch.mm(dy.t(), x), dW2=lambda: torch.mm(dout.t(), a))
        rivals = [Work("torch.mm", call, (2 if part in ("up", "dX", "dW1") else 1) * m * n * k)
                  for part, call in mm.items()]
        ours = parts_of_layer(bench, Routed(bench, (m, k, n // 2, 1, 1)), *rivals)  # up is the product above
        for part, rival in zip(mm, rivals):
            bench.show(f"in moe_ffn, {part} {m}x{n}x{k}", [ours[part], rival], wanted)
        bench.show(f"in moe_ffn, all six {m}x{n}x{k}", [
            derived(side, sum(w.amount for w in works), sum(w.ms for w in works))
            for side, works in (("ours", list(ours.values())), ("torch.mm", rivals))], wanted)


def groups(bench):
    ops = torch.ops.troupe
    experts, rows, n, k = bench.sizes["groups"]
    x, w, dy = bench.randn(rows, k), bench.randn(experts, n, k, scale=0.02), bench.randn(rows, n)
    for name, cuts in (("even", torch.arange(1, experts) * (rows // experts)),
                       ("uneven", torch.randint(0, rows + 1, (experts - 1,)).sort()[0])):
        ends = torch.cat((cuts, torch.tensor([rows]))).int()
        offset = torch.cat((torch.tensor([0]).int(), ends)).to(bench.device)
        ends, flops = ends.to(bench.device), 2 * rows * n * k
        for what, ours, theirs in (
                ("forward", lambda: ops.grouped_gemm(x, w, offset, True),
                 lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)),
                ("dX", lambda: ops.grouped_gemm(dy, w, offset, False), lambda: torch._grouped_mm(dy, w, offs=ends)),
                ("dW", lambda: ops.grouped_gemm_weight(dy, x, offset),
                 lambda: torch._grouped_mm(dy.t(), x, offs=ends))):
            bench.compare(f"{experts} experts, {name}, {what} {rows}x{n}x{k}", Work("ours", ours, flops),
                          Work("_grouped_mm", theirs, flops, same=True), wanted={"_grouped_mm": 1.0})


def grad(bench):
    for name, shape in bench.sizes["layers"].items():
        tokens, d, n, experts, k = shape
        routed, rows, ops = Routed(bench, shape), tokens * k, torch.ops.troupe
        ours = parts_of_layer(bench, routed)
        for weight, forward in (("dW1", "up"), ("dW2", "down")):
            bench.show(f"{name}: in moe_ffn, {weight}", [ours[weight], ours[forward]], {forward: 0.9})
        offset = routed.plan[0]
        for what, outs, ins in (("W1", 2 * n, d), ("W2", d, n)):
            x, dy, w = bench.randn(rows, ins), bench.randn(rows, outs), bench.randn(experts, outs, ins, scale=0.02)
            flops = 2 * rows * outs * ins
            bench.compare(f"{name}: grouped_gemm_weight, d{what}",
                          Work(f"d{what}", lambda: ops.grouped_gemm_weight(dy, x, offset), flops),
                          Work("forward", lambda: ops.grouped_gemm(x, w, offset, True), flops),
                          wanted={"forward": 0.9})
        gc.collect()


def permute(bench):
    ops, wanted = torch.ops.troupe, {"copy_": 0.8}
    for name, shape in bench.sizes["layers"].items():
        tokens, d, k = shape[0], shape[1], shape[4]
        r = Routed(bench, shape)
        x, rows = bench.randn(tokens, d), bench.randn(r.rows, d)
        source, slot_row = r.plan[1].long(), r.plan[3].long().flatten()
        moved = (tokens + r.rows) * d * 2 + 4 * r.rows
        half = bench.randn(moved // 4)
        to = torch.empty_like(half)
        copy = lambda: Work("copy_", lambda: to.copy_(half), moved)  # noqa: E731
        bench.compare(f"{name}: permute", Work("ours", lambda: ops.permute(x, None, r.plan), moved), copy(),
                      Work("index_select", lambda: x.index_select(0, source), moved, same=True),
                      wanted=wanted, unit="GB/s")
        bench.compare(f"{name}: combine", Work("ours", lambda: ops.combine(rows, None, None, r.plan), moved), copy(),
                      Work("gather and sum", lambda: rows[slot_row].view(tokens, k, d).sum(1), moved, same=True),
                      wanted=wanted, unit="GB/s")
        gc.collect()


def sort(bench):
    ops, experts = torch.ops.troupe, bench.sizes["experts"]
    bits = max(1, (experts - 1).bit_length())

    def compare(problem, elements, ours, rival, call, at_least=None):
        bench.compare(problem, Work("ours", ours, elements), Work(rival, call, elements, same=True), repeat=20,
                      wanted={rival: 1.0} if at_least else None, unit="M elements/s")
    for n in bench.sizes["sort"]:
        asked = n == bench.sizes["sort"][0]
        ids, words = bench.ints(0, experts, (n,)), bench.ints(-2**31, 2**31 - 1, (n,))
        counted = ids if ids.is_cuda else ids.float()  # the CPU's histc counts floats alone
        bins = torch.bincount(ids, minlength=experts)
        ends, values = bins.cumsum(0).int(), bench.ints(0, 1000, (8, experts))
        compare(f"sort by {bits} bits, {n}", n, lambda: ops.sort(ids, bits), "torch.sort",
                lambda: torch.sort(ids, stable=True), asked)
        compare(f"sort by 32 bits, {n}", n, lambda: ops.sort(words, None), "torch.sort",
                lambda: torch.sort(words, stable=True), asked)
        compare(f"histogram of {experts}, {n}", n, lambda: ops.histogram(ids, experts), "torch.histc",
                lambda: torch.histc(counted, experts, 0, experts - 1), asked)
        for rows, x in ((1, ids), (bench.sizes["sums"], bench.ints(0, 100, (bench.sizes["sums"], n)))):
            compare(f"inclusive_cumsum, {rows} of {n}", x.numel(), lambda: ops.inclusive_cumsum(x, -1),
                    "torch.cumsum", lambda: torch.cumsum(x, -1, dtype=torch.int32))
            compare(f"exclusive_cumsum, {rows} of {n}", x.numel(), lambda: ops.exclusive_cumsum(x, -1),
                    "torch.cumsum", lambda: torch.cumsum(x, -1, dtype=torch.int32) - x)
        compare(f"replicate, 8 of {n}", 8 * n, lambda: ops.replicate(values, ends, n), "repeat_interleave",
                lambda: torch.repeat_interleave(values, bins, dim=1, output_size=n))


class Diagonal:
    """The block diagonal of experts with as many rows each: structure, and values to and from [E, rows, F]."""

    def __init__(self, rows, hidden, experts, block, device):
        self.rows, self.hidden, self.experts, self.block = rows, hidden, experts, block
        self.each, self.across = rows // experts // block, hidden // block  # blocks of an expert
        rows_of = torch.arange(experts * self.each, dtype=torch.int32, device=device)
        columns = torch.arange(experts * self.across, dtype=torch.int32, device=device)
        right = torch.arange(self.across, dtype=torch.int32, device=device)
        down = torch.arange(self.each, dtype=torch.int32, device=device)
        col_indices = (rows_of // self.each * self.across)[:, None] + right
        row_indices = (columns // self.across * self.each)[:, None] + down
        order = row_indices * self.across + (columns % self.across)[:, None]
        offsets = [torch.arange(count + 1, dtype=torch.int32, device=device) * step
                   for count, step in ((len(rows_of), self.across), (len(columns), self.each))]
        self.indices = [offsets[0], col_indices.flatten(), offsets[1], row_indices.flatten(), order.flatten()]

    def structure(self, transposed):
        return self.indices, self.rows, self.experts * self.hidden, self.block, transposed

    def blocks(self, dense):
        parts = dense.view(self.experts, self.each, self.block, self.across, self.block)
        return parts.transpose(2, 3).reshape(-1, self.block, self.block)

    def dense(self, values):
        parts = values.view(self.experts, self.each, self.across, self.block, self.block)
        return parts.transpose(2, 3).reshape(self.experts, -1, self.hidden)


def sparse(bench):
    """x [R, D] W1 [D, E F] -> S; S W2 [E F, D] -> y: three products of each layer, as MegaBlocks names them."""
    ops, experts = torch.ops.troupe, bench.sizes["sparse_experts"]
    for name, (rows, d, hidden) in bench.sizes["sparse"].items():
        half = dict(dtype=torch.float16)
        diagonal = Diagonal(rows, hidden, experts, bench.sizes["block"], bench.device)
        plain, turned = diagonal.structure(False), diagonal.structure(True)
        x, dy = bench.randn(rows, d, **half), bench.randn(rows, d, **half)
        w1, w2 = (bench.randn(experts * hidden, d, scale=0.02, **half) for _ in range(2))
        w1 = w1.t().contiguous()
        s = bench.randn(experts, rows // experts, hidden, **half)
        stored, x_e, dy_e = diagonal.blocks(s), x.view(experts, -1, d), dy.view(experts, -1, d)
        w1_e, w2_e = w1.view(d, experts, hidden).transpose(0, 1).contiguous(), w2.view(experts, hidden, d)
        rows_e = lambda y: y.view(experts, -1, d)  # noqa: E731
        for what, ours, like, bmm in (
                ("1 forward, SDD", lambda: ops.block_sdd(x, w1, *plain), diagonal.dense, lambda: x_e @ w1_e),
                ("1 data, DSD^T", lambda: ops.block_dsd(stored, *plain, w1.t()), rows_e, lambda: s @ w1_e.mT),
                ("1 weight, DD^TS", lambda: ops.block_dds(x.t(), stored, *plain),
                 lambda dw: dw.view(d, experts, hidden).transpose(0, 1), lambda: x_e.mT @ s),
                ("2 forward, DSD", lambda: ops.block_dsd(stored, *plain, w2), rows_e, lambda: s @ w2_e),
                ("2 data, SDD^T", lambda: ops.block_sdd(dy, w2.t(), *plain), diagonal.dense,
                 lambda: dy_e @ w2_e.mT),
                ("2 weight, DS^TD", lambda: ops.block_dsd(stored, *turned, dy), rows_e, lambda: s.mT @ dy_e)):
            flops = 2 * rows * d * hidden
            bench.compare(f"{name}, layer {what}", Work("ours", ours, flops, like=like),
                          Work("torch.bmm", bmm, flops, same=True), wanted={"torch.bmm": 0.986})


class Dense:
    """A feed-forward layer of the active FLOPs, without a router."""

    def __init__(self, t):
        self.t, (experts, n2, d) = t, t.w1.shape
        width = n2 // 2 * t.k
        self.w1, self.w2 = (t.x.new_empty(*size).normal_(std=0.02).requires_grad_() for size in
                            ((2 * width, d), (d, width)))
        self.inputs = (t.x, self.w1, self.w2)

    def forward(self):
        gate, up = F.linear(self.t.x, self.w1).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.w2)

    def both(self):
        return torch.autograd.grad(self.forward(), self.inputs, self.t.grad)


def small(bench):
    for name, shape in bench.sizes["small"].items():
        tokens, d, n, experts, k = shape
        t = gpu_layer.Tensors(shape, bench.device)
        wide = gpu_layer.Tensors((tokens, d, n * k, experts // k, 1), bench.device)
        sides = {"ours": gpu_layer.Side("troupe", t), "_grouped_mm": gpu_layer.Side("gather_sum", t),
                 f"ours, width {n * k}": gpu_layer.Side("troupe", wide), "dense": Dense(t)}
        with torch.enable_grad():
            for what, times in (("forward", 1), ("both", 3)):
                works = [Work(side, getattr(layer, what), times * 6 * tokens * k * n * d, side == "_grouped_mm")
                         for side, layer in sides.items()]
                bench.compare(f"{name} of {n}, {what}", *works, wanted={"_grouped_mm": 1.0})


def memory(bench):
    """Bytes of a layer in bf16 on Hopper, weights and tokens apart. The peak is in backward: while dX's rows are summed, or
    at the end, with all gradients; or in forward, while rows of the output are summed."""
    for name, shape in bench.sizes["layers"].items():
        tokens, d, n, experts, k = shape
        rows = tokens * k
        # Scores, f32 [T, E]; of each row its id, its weight and its place in the plan, thrice, 4 bytes each.
        routing = 4 * tokens * experts + 20 * rows
        y, h, w2 = 2 * tokens * d, 4 * rows * n, 2 * experts * n * d
        formula = dict(kept=routing + y + h, peak=routing + 4 * rows + max(
            2 * rows * d + h + h // 2 + y, y + h + w2 + 2 * rows * d + y, y + h + 3 * w2 + y))
        measured = {}
        if bench.device == "cuda":
            side = gpu_layer.Side("troupe", gpu_layer.Tensors(shape))
            with torch.enable_grad():
                side.both()
                side.memory()
            measured = dict(kept=side.kept * gpu_layer.MIB, peak=side.peak * gpu_layer.MIB)
        print(f"  {name:<12}" + "  ".join(
            f"{what}: by formula {size / gpu_layer.MIB:.1f} MiB" +
            (f", measured {measured[what] / gpu_layer.MIB:.1f} ({measured[what] / size:.3f})" if measured else "")
            for what, size in formula.items()), flush=True)
        bench.results.append(dict(bench="memory", row=75, problem=name, formula_bytes=formula, measured_bytes=measured))


BENCHES = {"gemm": (49, gemm), "groups": (53, groups), "grad": (51, grad), "permute": (55, permute), "sort": (60, sort),
           "sparse": (70, sparse), "small": (73, small), "memory": (75, memory)}


def summary(results):
    """The ratios beside each bound that the features name."""
    found = {}
    for r in results:
        for rival, least in r.get("wanted", {}).items():
            if r["ratios"].get(rival) is not None:  # it ran, and no difference was lost in noise
                inside = "in moe_ffn" if "in moe_ffn" in r["problem"] else "operators"
                found.setdefault((r["row"], r["bench"], inside, least), []).append(r["ratios"][rival])
    for (row, name, inside, least), ratios in found.items():
        print(f"row {row} {name:<8}{inside:<11}{len(ratios):3d} ratios: mean {statistics.mean(ratios):.3f}, "
              f"{min(ratios):.3f} to {max(ratios):.3f}; {sum(r >= least for r in ratios)} reach {least}", flush=True)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", help="libtroupe.so (default: the newest under build/)")
    parser.add_argument("--only", default=",".join(BENCHES), help="of these, by commas (default: all)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="tiny shapes")
    parser.add_argument("--trial", action="store_true", help="our kernels on trial too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=20, help="of each work in a round")
    parser.add_argument("--json", help="a file to append the lines of JSON to, in place of printing them")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(BENCHES):
        parser.error(f"no bench {', '.join(unknown)}: there are {', '.join(BENCHES)}")
    return options


def main():
    options = read_options()
    troupe_ops.load(options.library)
    cuda = options.device == "cuda"
    print(torch.cuda.get_device_name() if cuda else "CPU", "torch", torch.__version__, "CUDA", torch.version.cuda,
          flush=True)
    bench, failed = Bench(options), []
    for name in options.only:
        bench.op, (bench.row, run) = name, BENCHES[name]
        print(f"{name}, row {bench.row}", flush=True)
        torch.manual_seed(0)
        begin = time.perf_counter()
        try:
            with torch.no_grad():
                run(bench)
        except Exception:  # the others are still worth their time
            failed.append(name)
            traceback.print_exc()
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
        print(f"  {time.perf_counter() - begin:.1f} s", flush=True)
    lines = "\n".join(map(json.dumps, bench.results))
    if options.json:
        with open(options.json, "a", encoding="utf-8") as out:
            out.write(lines + "\n")
    else:
        print(lines, flush=True)
    summary(bench.results)
    if failed:
        print("failed:", ", ".join(failed))
    return bool(failed or bench.wrong)


if __name__ == "__main__":
    sys.exit(main())
