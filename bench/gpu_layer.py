#!/usr/bin/env python3
"""Forward and backward of one MoE layer on one GPU, bf16, router included: Troupe beside others.

  python3 bench/gpu_layer.py [--library libtroupe.so] [--shapes S7-256,OLMoE] [--compiled] [--kernels 12]
  python3 bench/gpu_layer.py --warm           compiles what the sides compile on first use, and ends
  python3 bench/gpu_layer.py --gate docs/bench/layer_gate.json [--within 0.01] [--fill]
  python3 bench/gpu_layer.py --record docs/bench/layer_gate.json [--commit NAME]

Sides: torch._grouped_mm with combines as gather and sum (layer_rivals.py; eager, --compiled adds
torch.compile's), SonicMoE where it can be imported, and ours. The same tokens, gradient and router for
all: x and dO 0.2 randn, weights 0.02 randn. GPU time alone: forward (with what backward needs saved),
and forward with backward, are each captured into a CUDA graph; L2 is cleared before each replay,
nothing waits for the host, sides take turns in rounds, the first round is left out, medians count.
Backward is the difference. TFLOP/s: 6 T K n d forward, 18 both. Gradients are written, not added up.
`kept` is what is held after forward, output included; `peak` over the state before, gradients
included. --routing zipf,empty,heavy times ours with experts loaded unequally too. Ours is compared
with _grouped_mm before it is timed. A line of JSON for each shape and side.

--record writes what our layer takes on this device into a file, forward with backward, the best of three
medians. --gate compares the best of three with that: it ends with 1 where a shape is slower than recorded by
more than --within, and with 2 where the file has no entry for this device or shape. With --fill these are
recorded, which is said, and the others compared. All take a CPU as well, --device cpu, with the shape `tiny`.
"""
import argparse
import gc
import json
import statistics
import sys
import time

import torch

import layer_gate
import layer_rivals
import troupe_ops
from gpu_timing import apart, captured, first_line, turn
from layer_shapes import SHAPES, TINY

MIB = 2**20


class Tensors:
    """The data of one shape, the same for all sides."""

    def __init__(self, shape, device="cuda"):
        tokens, d, n, experts, self.k = shape
        torch.manual_seed(0)
        bf16 = dict(device=device, dtype=torch.bfloat16)
        self.x = (torch.randn(tokens, d, **bf16) * 0.2).requires_grad_()
        self.grad = torch.randn(tokens, d, **bf16) * 0.2
        self.gate = (torch.randn(experts, d, **bf16) * 0.02).requires_grad_()
        self.w1 = (torch.randn(experts, 2 * n, d, **bf16) * 0.02).requires_grad_()
        self.w2 = (torch.randn(experts, d, n, **bf16) * 0.02).requires_grad_()


class Side:
    """A layer, and what is measured of it."""

    def __init__(self, name, t):
        self.name, (self.kind, _, routing) = name, name.partition("/")
        weights = (t.gate, t.w1, t.w2, t.k)
        self.bias, self.w1 = None, t.w1
        if routing:
            with torch.no_grad():
                logits = troupe_ops.RouterProduct.apply(t.x, t.gate)
                self.bias = layer_rivals.bias_for(routing, logits, t.k)
        if self.kind == "troupe":
            self.layer = troupe_ops.Layer(*weights, "before", self.bias)
        elif self.kind == "sonic":
            self.layer = layer_rivals.SonicMoE(*weights)
            self.w1 = self.layer.w1
        elif self.kind == "compiled":
            self.layer = torch.compile(layer_rivals.GroupedMm(*weights), fullgraph=True, dynamic=False)
        else:
            self.layer = layer_rivals.GroupedMm(*weights, combine=self.kind)
        self.t, self.inputs = t, (t.x, t.gate, self.w1, t.w2)
        self.times, self.clocks = {"forward": [], "both": []}, []
        self.run = {"forward": self.forward, "both": self.both}
        self.counts, self.mode, self.graphs = {}, "eager", []

    def forward(self):
        return self.layer(self.t.x)

    def both(self):
        y = self.layer(self.t.x)
        return (y, *torch.autograd.grad(y, self.inputs, self.t.grad))

    def memory(self):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = self.forward()
        kept = torch.cuda.memory_allocated() - before
        grads = torch.autograd.grad(y, self.inputs, self.t.grad)
        torch.cuda.synchronize()
        del y, grads
        self.kept, self.peak = kept / MIB, (torch.cuda.max_memory_allocated() - before) / MIB

    def capture(self):
        """Both works as graphs. What cannot be captured is timed eagerly, and said so."""
        try:
            for name, work in (("forward", self.forward), ("both", self.both)):
                self.graphs.append(captured(work))
                self.run[name] = self.graphs[-1].replay
            self.mode = "graph"
        except RuntimeError as error:
            self.run = {"forward": self.forward, "both": self.both}
            print(f"  {self.name}: cannot be captured, timed eagerly: {first_line(error)}", flush=True)

    def profile(self, rows):
        """Kernels and copies of one forward and one backward, and a table of them by time."""
        activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        all_rows, y = [], None
        for part in ("forward", "backward"):
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=activities) as run:
                if part == "forward":
                    y = self.forward()
                else:
                    torch.autograd.grad(y, self.inputs, self.t.grad)
                torch.cuda.synchronize()
            found = [e for e in run.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
            moves = [e for e in found if e.key.startswith(("Memcpy", "Memset"))]
            self.counts[part] = dict(
                kernels=sum(e.count for e in found if e not in moves), copies_and_fills=sum(e.count for e in moves),
                to_host=sum(e.count for e in moves if "DtoH" in e.key or "Device -> Host" in e.key))
            all_rows += [(e.self_device_time_total, e.count, part, e.key) for e in found]
        print(f"  {self.name}: " + "; ".join(
            f"{part} {c['kernels']} kernels, {c['copies_and_fills']} copies and fills, {c['to_host']} of them to the host"
            for part, c in self.counts.items()), flush=True)
        for us, count, part, key in sorted(all_rows, reverse=True)[:rows]:
            print(f"    {us:9.0f} us {count:3d}x {part:8s} {key[:96]}")

    def result(self, shape):
        tokens, d, n, _, k = SHAPES[shape]
        flops = 6 * tokens * k * n * d
        forward, both = (statistics.median(self.times[w]) for w in ("forward", "both"))
        ranked = sorted(self.times["both"])
        tenth = len(ranked) // 10
        out = dict(shape=shape, side=self.name, mode=self.mode, forward_ms=forward, backward_ms=both - forward,
                   both_ms=both, forward_tflops=flops / forward / 1e9, both_tflops=3 * flops / both / 1e9,
                   both_mean_ms=statistics.mean(ranked), both_p10_ms=ranked[tenth], both_p90_ms=ranked[-1 - tenth],
                   timings=len(ranked), kept_mib=self.kept, peak_mib=self.peak)
        if self.clocks:
            out.update(sm_mhz=[min(self.clocks), max(self.clocks)])
        if self.bias is not None:
            out.update(self.load())
        return {**out, **self.counts}

    def load(self):
        """How unequal the routing became: the busiest expert's share of all rows, experts without any."""
        with torch.no_grad():
            logits = troupe_ops.RouterProduct.apply(self.t.x, self.t.gate) + self.bias
            ids = torch.topk(logits, self.t.k).indices.flatten()
            rows = torch.bincount(ids, minlength=logits.shape[1])
        return dict(busiest=(rows.max() / rows.sum()).item(), empty=int((rows == 0).sum()))


def check(side, t):
    """Against eager _grouped_mm: a wrong layer's speed is worth nothing."""
    if side.kind == "gather_sum":
        return
    got = [r.detach() for r in side.both()]
    if side.kind == "sonic":
        # Its logits are bf16, where ties are common and every top-k breaks them its own way: most
        # tokens agree, and their median is compared.
        like = layer_rivals.GroupedMm(t.gate, t.w1, t.w2, t.k, order="after", bf16_logits=True)
        with torch.no_grad():
            want = like(t.x)
        rows = [torch.linalg.vector_norm(v, dim=1, dtype=torch.float32) for v in (got[0] - want, want)]
        errors = {"y, its median row": (rows[0] / rows[1]).median().item()}
    else:
        like = layer_rivals.GroupedMm(t.gate, t.w1, t.w2, t.k, bias=side.bias)
        y = like(t.x)
        want = (y, *torch.autograd.grad(y, side.inputs, t.grad))
        errors = {what: apart(a, b) for what, a, b in zip(("y", "dx", "dgate", "dw1", "dw2"), got, want)}
    wrong = not all(e < 0.03 for e in errors.values())
    print(f"  {side.name}: apart from _grouped_mm's norm by " +
          ", ".join(f"{what} {e:.1e}" for what, e in errors.items()) + ("  WRONG" if wrong else ""), flush=True)


def prepared(name, t, options):
    """A side that has run once; None where it cannot, with the reason said."""
    start = time.perf_counter()
    try:
        side = Side(name, t)
        side.both()
        torch.cuda.synchronize()
    except ImportError as error:
        print(f"  {name}: left out, its package is missing: {first_line(error)}", flush=True)
        return None
    except Exception as error:  # a rival that fails must not end the run
        if name.startswith("troupe"):
            raise
        print(f"  {name}: left out, it fails: {type(error).__name__} {first_line(error)}", flush=True)
        return None
    took = time.perf_counter() - start
    if options.warm or took > 3:
        print(f"  {name}: {took:.1f} s until its first gradients", flush=True)
    return side


def clock():
    try:
        return torch.cuda.clock_rate()
    except Exception:  # needs NVIDIA's management library, which not every machine has
        return None


def time_sides(sides, options):
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    counts = {}
    for i in range(options.rounds + 1):
        for side in sides:
            for name, work in side.run.items():
                key = (side.name, name)
                if key not in counts:  # how many fit into the time of a turn
                    events = turn(work, 3, flush)
                    torch.cuda.synchronize()
                    each = min(start.elapsed_time(end) for start, end in events)
                    counts[key] = max(3, round(options.ms / each))
                events = turn(work, counts[key], flush)
                mhz = clock() if name == "both" else None
                torch.cuda.synchronize()
                if i:
                    side.times[name] += [start.elapsed_time(end) for start, end in events]
                    side.clocks += [mhz] if mhz else []


def sustained(side, seconds):
    """Milliseconds of forward and backward, one after the other without a pause for so long."""
    count = max(1, round(seconds * 1e3 / statistics.median(side.times["both"])))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        side.run["both"]()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def show(result):
    r = result
    skew = f"  busiest {100 * r['busiest']:.1f}% of rows, {r['empty']} empty" if "busiest" in r else ""
    mhz = "  {}-{} MHz".format(*r["sm_mhz"]) if "sm_mhz" in r else ""
    print(f"  {r['side']:<13}{r['mode']:6}forward {r['forward_ms']:7.3f} ms {r['forward_tflops']:5.0f}  "
          f"backward {r['backward_ms']:7.3f}  both {r['both_ms']:7.3f} ms {r['both_tflops']:5.0f} TFLOP/s  "
          f"kept {r['kept_mib']:6.0f} peak {r['peak_mib']:6.0f} MiB{mhz}{skew}", flush=True)


def bench(shape, options):
    tokens, d, n, experts, k = SHAPES[shape]
    print(f"{shape}: T={tokens} d={d} n={n} E={experts} K={k}", flush=True)
    t = Tensors(SHAPES[shape])
    sides = [s for s in (prepared(name, t, options) for name in options.sides) if s]
    if options.warm:
        return
    for side in sides:
        check(side, t)
        side.memory()
        if side.kind == "troupe" and side.bias is None:
            side.profile(options.kernels)
        if not options.eager:
            side.capture()
        gc.collect()
    time_sides(sides, options)
    lines = []
    for side in sides:
        result = side.result(shape)
        if options.sustained:
            result["sustained_both_ms"] = sustained(side, options.sustained)
        show(result)
        lines.append(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in result.items()}))
    if options.json:
        with open(options.json, "a", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
    else:
        print("\n".join(lines), flush=True)
    for side in sides:
        for graph in side.graphs:
            graph.reset()


def device_name(options):
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"CPU {model}, {torch.get_num_threads()} threads"


def time_on_cpu(side, options):
    times = side.times["both"]
    for i in range(options.rounds + 1):
        end, count = time.perf_counter() + options.ms / 1e3, 0
        while count < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            side.both()
            if i:
                times.append(1e3 * (time.perf_counter() - start))
            count += 1


def medians(shape, options):
    """Our layer's milliseconds of forward with backward, the median of all rounds, measured anew for each `next`."""
    t = Tensors({**SHAPES, **TINY}[shape], options.device)
    side = Side("troupe", t)
    side.both()
    if options.device == "cuda":
        check(side, t)
        if not options.eager:
            side.capture()
    side.run = {"both": side.run["both"]}
    try:
        while True:
            side.times["both"] = []
            if options.device == "cuda":
                time_sides([side], options)
            else:
                time_on_cpu(side, options)
            yield statistics.median(side.times["both"])
    finally:
        for graph in side.graphs:
            graph.reset()


def gate_or_record(options):
    """The exit status."""
    def of_shape(shape):
        if options.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        return medians(shape, options)

    device = device_name(options)
    try:
        shapes = options.shapes or list(SHAPES if options.device == "cuda" else TINY)
        if options.record:
            layer_gate.record(options.record, device, shapes, of_shape, options.commit)
            return 0
        new = layer_gate.without_entry(options.gate, device, shapes) if options.fill else []
        if new:
            print(f"{options.gate} has no entry for {', '.join(new)} on {device}: recorded now, compared from now on", flush=True)
            layer_gate.record(options.gate, device, new, of_shape, options.commit)
        old = [shape for shape in shapes if shape not in new] if options.shapes or options.fill else None
        return 0 if old == [] else layer_gate.gate(layer_gate.wanted(options.gate, device, old), of_shape, options.within)
    except (layer_gate.Unusable, OSError) as error:
        print(f"gpu_layer: {error}", file=sys.stderr)
        return 2


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", help="libtroupe.so (default: the newest under build/)")
    parser.add_argument("--shapes", help="names, by commas (default: all; of --gate, all that are recorded)")
    parser.add_argument("--sides", default="troupe,gather_sum,sonic", help="of these, index_add and compiled")
    parser.add_argument("--compiled", action="store_true", help="the side `compiled` too; it takes its time")
    parser.add_argument("--routing", default="uniform", help="uniform, zipf, empty, heavy, by commas")
    parser.add_argument("--eager", action="store_true", help="launch by launch, no graphs")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ms", type=float, default=100, help="of each side and work in a round")
    parser.add_argument("--sustained", type=float, default=0, help="seconds without a pause, at the end")
    parser.add_argument("--kernels", type=int, default=0, help="rows of a table of our kernels")
    parser.add_argument("--json", help="a file to append the lines of JSON to, in place of printing them")
    parser.add_argument("--warm", action="store_true")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--gate", metavar="FILE", help="fails where our layer is slower than this file says")
    either.add_argument("--record", metavar="FILE", help="writes what our layer takes on this device into it")
    parser.add_argument("--within", type=float, default=0.01, help="part by which --gate lets a shape be slower")
    parser.add_argument("--fill", action="store_true", help="--gate records the shapes that its file has not")
    parser.add_argument("--commit", help="commit of the recorded times (default: git's HEAD)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of --gate and --record")
    options = parser.parse_args()
    gated = options.gate or options.record
    if options.fill and not options.gate:
        parser.error("--fill goes with --gate")
    if options.device == "cpu" and not gated:
        parser.error("--device cpu goes with --gate and --record")
    there = {**SHAPES, **TINY} if gated else SHAPES
    if options.shapes or not gated:
        options.shapes = options.shapes.split(",") if options.shapes else list(SHAPES)
    options.sides = options.sides.split(",")
    if unknown := set(options.shapes or ()) - set(there):
        parser.error(f"no shape {', '.join(unknown)}: there are {', '.join(there)}")
    if unknown := set(options.sides) - {"troupe", "gather_sum", "index_add", "compiled", "sonic"}:
        parser.error(f"no side {', '.join(unknown)}")
    options.sides += ["compiled"] if options.compiled and "compiled" not in options.sides else []
    options.sides += [f"troupe/{r}" for r in options.routing.split(",") if r != "uniform"]
    return options


def main():
    options = read_options()
    troupe_ops.load(options.library)
    if options.gate or options.record:
        return gate_or_record(options)
    begin = time.perf_counter()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "CUDA", torch.version.cuda, flush=True)
    for shape in options.shapes:
        bench(shape, options)
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    print(f"{time.perf_counter() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
