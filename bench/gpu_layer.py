#!/usr/bin/env python3
"""Forward and backward of one MoE layer on one GPU, bf16: Troupe beside torch._grouped_mm.

  python3 bench/gpu_layer.py --library libtroupe.so [--profile]

The rivals are eager PyTorch with torch._grouped_mm: `index_add` as transformers combines, and
`gather_sum`, the faster form (scores on the activations, both combines a gather and a sum). The same
weights, tokens and router for all; L2 cleared before each timing; rounds interleaved; medians.
--profile counts kernels and copies of one forward and backward of ours.
"""
import argparse
import statistics

import torch
import torch.nn.functional as F

import troupe_ops

SHAPES = [(8192, 4096, 14336, 8, 2), (32768, 2048, 1024, 64, 8), (24576, 1536, 256, 128, 8)]


class GroupedMm:
    def __init__(self, gate, w1, w2, k, combine):
        self.gate, self.w1, self.w2, self.k, self.combine = gate, w1, w2, k, combine

    def __call__(self, x):
        tokens, experts = x.shape[0], self.gate.shape[0]
        probs = torch.softmax(troupe_ops.RouterProduct.apply(x, self.gate), -1)
        weights, ids = torch.topk(probs, self.k)
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.histc(ids.flatten().int(), bins=experts, min=0, max=experts - 1)
        offsets = counts.cumsum(0).int()
        rows = x[order // self.k]
        gate, up = torch._grouped_mm(rows, self.w1.transpose(1, 2), offs=offsets).chunk(2, -1)
        score = weights.flatten()[order].to(x.dtype)[:, None]
        if self.combine == "gather_sum":
            y = torch._grouped_mm(F.silu(gate) * up * score, self.w2.transpose(1, 2), offs=offsets)
            inverse = torch.empty_like(order)
            inverse[order] = torch.arange(order.numel(), device=x.device)
            return y[inverse].view(tokens, self.k, -1).sum(1)
        y = torch._grouped_mm(F.silu(gate) * up, self.w2.transpose(1, 2), offs=offsets) * score
        return torch.zeros_like(x).index_add_(0, order // self.k, y)


def timed(layer, x, grad, parameters, flush):
    for p in [x, *parameters]:
        p.grad = None
    flush.zero_()
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    y = layer(x)
    middle.record()
    y.backward(grad)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(middle), middle.elapsed_time(end)


def make(shape):
    tokens, d, n, experts, k = shape
    torch.manual_seed(0)
    bf16 = dict(device="cuda", dtype=torch.bfloat16)
    x = (torch.randn(tokens, d, **bf16) * 0.2).requires_grad_()
    grad = torch.randn(tokens, d, **bf16) * 0.2
    gate = (torch.randn(experts, d, **bf16) * 0.02).requires_grad_()
    w1 = (torch.randn(experts, 2 * n, d, **bf16) * 0.02).requires_grad_()
    w2 = (torch.randn(experts, d, n, **bf16) * 0.02).requires_grad_()
    layers = {c: GroupedMm(gate, w1, w2, k, c) for c in ("index_add", "gather_sum")}
    layers["troupe"] = troupe_ops.Layer(gate, w1, w2, k, "before")
    return x, grad, (gate, w1, w2), layers


def check(x, grad, parameters, layers):
    """Ours against the gather-sum rival: a wrong layer's speed is worth nothing."""
    results = {}
    for name in ("gather_sum", "troupe"):
        for p in [x, *parameters]:
            p.grad = None
        y = layers[name](x)
        y.backward(grad)
        results[name] = [y.detach(), *(p.grad for p in [x, *parameters])]
    for what, a, b in zip(("y", "x", "gate", "w1", "w2"), *results.values()):
        error = ((a.float() - b.float()).norm() / b.float().norm()).item()
        print(f"    {what}: {error:.1e} of the rival's norm apart" + ("" if error < 0.03 else "  WRONG"))


def bench(shape, rounds):
    tokens, d, n, experts, k = shape
    x, grad, parameters, layers = make(shape)
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    print(f"T={tokens} d={d} n={n} E={experts} K={k}")
    check(x, grad, parameters, layers)
    times = {name: [] for name in layers}
    for i in range(rounds + 3):
        for name, layer in layers.items():
            pair = timed(layer, x, grad, parameters, flush)
            if i >= 3:
                times[name].append(pair)
    flops = 6 * tokens * k * n * d
    for name, pairs in times.items():
        forward, backward = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        print(f"  {name:10s} forward {forward:7.2f} ms {flops / forward / 1e9:6.1f} TFLOP/s   "
              f"both {forward + backward:7.2f} ms {3 * flops / (forward + backward) / 1e9:6.1f}")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = layers["troupe"](x)
    print(f"  troupe keeps {(torch.cuda.memory_allocated() - before) / 2**20:.0f} MiB for backward "
          f"(2 T d + 4 T K n and the output: {(4 * tokens * d + 4 * tokens * k * n) / 2**20:.0f})")
    y.backward(grad)


def profile(shape):
    x, grad, _, layers = make(shape)
    layer = layers["troupe"]
    layer(x).backward(grad)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as run:
        layer(x).backward(grad)
    table = run.key_averages()
    copies = [e.key for e in table if "DtoH" in e.key or "Device -> Host" in e.key]
    kernels = [e for e in table if e.device_type == torch.autograd.DeviceType.CUDA]
    print(f"profile of T={shape[0]} E={shape[3]}: {sum(e.count for e in kernels)} device events, "
          f"device-to-host copies: {len(copies)} {copies}")
    for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:14]:
        print(f"  {e.self_device_time_total:9.0f} us {e.count:3d}x {e.key[:90]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default=None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    troupe_ops.load(options.library)
    print(torch.cuda.get_device_name(), torch.__version__)
    for shape in SHAPES:
        bench(shape, options.rounds)
        if options.profile:
            profile(shape)
