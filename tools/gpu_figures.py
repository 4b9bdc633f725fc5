#!/usr/bin/env python3
"""Benchmark commands that measure figures of docs/bench/BENCH.md on a GPU in a short form, and parsers of their output.
tools/gpu_check.py runs the commands in a packed build (tools/gpu_pack.py), tools/evidence.py prints the table of figures.

  gpu_figures.py                lists the figures and their commands
  gpu_figures.py NAME LOG       prints the figures in LOG, the output of command NAME"""
import collections
import json
import pathlib
import re
import sys

Command = collections.namedtuple("Command", "name words limit gpus figures")  # limit: seconds; words: a shell command
Figure = collections.namedtuple("Figure", "name unit read")  # read: output of the command -> number
# A command prints one of these if its result differs from the rival's or between repeats: its figures do not count then.
WRONG = re.compile(r"\bWRONG\b|\bNOT EQUAL\b|\bDIFFER\b|\bBAD\b")
LIBRARY = "--library build/libtroupe.so"
SHAPES = ("S7-256", "S30-512", "S120-1024", "Qwen3-30B", "OLMoE", "Mixtral")


def rows(text):
    """The JSON objects among the lines of a text."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def row(text, **wanted):
    found = [r for r in rows(text) if all(r.get(key) == value for key, value in wanted.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} lines have {wanted}")
    return found[0]


def value(key, **wanted):
    return lambda text: row(text, **wanted)[key]


def ratio(problem, rival):
    """A figure of bench/gpu_ops.py."""
    return lambda text: row(text, problem=problem)["ratios"][rival]


def ratios(pick, bench, rival, part=""):
    """The least or largest ratio to a rival, over the problems whose names contain this part."""
    def read(text):
        found = [r["ratios"][rival] for r in rows(text) if r.get("bench") == bench and part in r["problem"] and r["ratios"].get(rival)]
        return pick(found)
    return read


def printed(pattern, pick=max):
    """The numbers that the group of a pattern matches."""
    def read(text):
        found = [float(n.replace(",", "")) for n in re.findall(pattern, text, re.M)]
        if not found:
            raise LookupError(f"nothing matches {pattern}")
        return pick(found)
    return read


def beside(key, ours, theirs, **wanted):
    return lambda text: row(text, side=theirs, **wanted)[key] / row(text, side=ours, **wanted)[key]


def step(side, what):
    """A figure of bench/train_step.py."""
    number = {"ms": r"([\d.]+) ms a step", "tokens/s": r"[\d.]+ ms a step +(\d+) tokens/s", "GiB": r".*peak +([\d.]+) GiB"}[what]
    return printed(rf"^  {re.escape(side)} +{number}")


def attention(text, side):
    found = row(text, side=side)
    return found["forward_ms"] + found["backward_ms"]


OURS = "troupe (cuDNN, repeatable)"


def attention_figures(what):
    return (Figure(f"attention, {what}, forward and backward", "ms", lambda text: attention(text, OURS)),
            Figure(f"attention, {what}, beside PyTorch's flash attention with repeatable bits", "times",
                   lambda text: attention(text, "PyTorch flash, repeatable") / attention(text, OURS)),
            Figure(f"attention, {what}, of 20 backwards those with the bits of the first", "",
                   value("same_of_20", side=OURS)))


def layer_figures():
    for s in SHAPES:
        yield Figure(f"layer of {s}, forward and backward", "TFLOP/s", value("both_tflops", shape=s, side="troupe"))
        yield Figure(f"layer of {s}, beside torch._grouped_mm", "times", beside("both_ms", "troupe", "gather_sum", shape=s))


def gemm_figures():
    for what in ("forward", "dX", "dW"):
        for sizes in ("16384x4096x4096", "32768x2048x1024"):
            yield Figure(f"one product, {sizes}, {what}, beside torch.mm", "times", ratio(f"grouped_gemm {what} {sizes}", "torch.mm"))


FP8 = "train.fp8.attention=true"
GRAPH = "train.cuda_graph=true"
STEP = "python3 bench/train_step.py {} --program build/troupe --rivals '' --rounds 1 --steps 24 --skip 8 --also {}"
COMMANDS = (
    Command("layer", f"python3 bench/gpu_layer.py {LIBRARY} --sides troupe,gather_sum --rounds 3", 240, 1, tuple(layer_figures())),
    Command("products", f"python3 bench/gpu_ops.py {LIBRARY} --only gemm,grad --rounds 3", 240, 1, (
        *gemm_figures(),
        Figure("weight gradients beside their forward product, operators, the least", "times",
               ratios(min, "grad", "forward", "grouped_gemm_weight")),
        Figure("weight gradients beside their forward product, in moe_ffn, dW1, the least", "times",
               ratios(min, "grad", "up", "in moe_ffn, dW1")),
        Figure("weight gradients beside their forward product, in moe_ffn, dW2, the least", "times",
               ratios(min, "grad", "down", "in moe_ffn, dW2")))),
    Command("rows and counts", f"python3 bench/gpu_ops.py {LIBRARY} --only permute,sort --rounds 3", 180, 1, (
        Figure("rows into the experts' order beside copy_ of as many bytes, the least", "times", ratios(min, "permute", "copy_", ": permute")),
        Figure("rows into the experts' order beside copy_ of as many bytes, the largest", "times", ratios(max, "permute", "copy_", ": permute")),
        Figure("rows back to their tokens beside copy_ of as many bytes, the least", "times", ratios(min, "permute", "copy_", ": combine")),
        Figure("16,384 keys of 7 bits sorted, beside torch.sort", "times", ratio("sort by 7 bits, 16384", "torch.sort")),
        Figure("histogram of 128 bins of 16,384, beside torch.histc", "times", ratio("histogram of 128, 16384", "torch.histc")),
        Figure("cumsum of one row of 16,384, beside torch.cumsum", "times", ratio("inclusive_cumsum, 1 of 16384", "torch.cumsum")))),
    Command("block-sparse", f"python3 bench/gpu_ops.py {LIBRARY} --only sparse --rounds 3", 180, 1, (
        Figure("MegaBlocks' 18 block-sparse products beside batched cuBLAS, the least", "times", ratios(min, "sparse", "torch.bmm")),
        Figure("MegaBlocks' 18 block-sparse products beside batched cuBLAS, the largest", "times", ratios(max, "sparse", "torch.bmm")))),
    Command("experts in 8 bits", f"python3 bench/gpu_fp8.py {LIBRARY} --shapes S7-256,OLMoE,Mixtral --rounds 2", 240, 1, tuple(
        Figure(f"experts in 8 bits, {s}, forward and backward held, beside bf16", "times", value("held_of_bf16", shape=s, side="fp8"))
        for s in ("S7-256", "OLMoE", "Mixtral"))),
    Command("dense products in 8 bits", f"python3 bench/gpu_fp8.py {LIBRARY} --dense --rounds 2", 180, 1, (
        Figure("q, k, v of OLMoE in 8 bits, forward and backward held, beside cuBLAS in bf16", "times",
               value("held_of_bf16", product="OLMoE q, k, v", side="fp8")),)),
    Command("kernels in 8 bits", "build/moe_fp8_sm90_speed OLMoE 3", 90, 1, (
        Figure("experts in 8 bits, weights kept, OLMoE, the kernels alone, beside bf16", "times",
               printed(r"with weights kept ([\d.]+)")),)),
    Command("tiles", "build/gemm_sweep --gate", 240, 1, (
        Figure("tiles of the generic grouped product beside the best of each, the least", "times", printed(r" ratio ([\d.]+)", min)),)),
    Command("attention", "build/attention 4 4096 16", 90, 1, attention_figures("4 x 4096, 16 heads")),
    Command("long attention", "build/attention 1 16384 16 16 128 10", 90, 1, attention_figures("1 x 16384, 16 heads")),
    Command("steps", STEP.format("olmoe-8l", FP8), 300, 1, (
        Figure("a step of olmoe-8l", "ms", step("troupe", "ms")),
        Figure("olmoe-8l", "tokens/s", step("troupe", "tokens/s")),
        Figure("olmoe-8l, peak memory", "GiB", step("troupe", "GiB")),
        Figure(f"a step of olmoe-8l, `{FP8}`", "ms", step(FP8, "ms")))),
    Command("small steps", STEP.format("small-gpu", GRAPH), 120, 1, (
        Figure("a step of 8 layers of 512", "ms", step("troupe", "ms")),
        Figure("a step of 8 layers of 512 as CUDA graphs", "ms", step(GRAPH, "ms")))),
    Command("layers over two GPUs", "python3 bench/expert_parallel.py --ranks 2 --program build/expert_layer --turns 1", 300, 2, tuple(
        Figure(f"layer of {s}, experts over two GPUs, {kind}, beside eager PyTorch", "times",
               value("times_the_rival", shape=s, side=f"{side} fast"))
        for s in ("OLMoE", "Qwen3-30B") for kind, side in (("all-to-all", "a2a"), ("`symmetric`", "symmetric")))),
    Command("rows to the other GPU", "python3 bench/all_to_all.py --ranks 2 --program build/all_to_all --turns 1", 240, 2, (
        Figure("1,048,576 rows to all of two GPUs, beside all_to_all_single", "times", printed(r"^ *1048576 +[\d.]+ +[\d.]+ +([\d.]+)")),)),
)


def read(command, text):
    """{figure: {"value": .., "unit": ..}} parsed from a command's output. Raises ValueError if a figure is missing."""
    if WRONG.search(text):
        raise ValueError(f"it says {WRONG.search(text)[0]}")
    out = {}
    for figure in command.figures:
        try:
            number = figure.read(text)
        except (LookupError, ValueError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{figure.name}: not in what it printed: {error}") from error
        out[figure.name] = {"value": float(f"{number:.4g}"), "unit": figure.unit}
    return out


def main(words):
    if not words:
        for command in COMMANDS:
            print(f"{command.name}: {command.words}")
            print(*(f"  {figure.name}{f' [{figure.unit}]' if figure.unit else ''}" for figure in command.figures), sep="\n")
        return
    (command,) = [command for command in COMMANDS if command.name == words[0]]
    for name, found in read(command, pathlib.Path(words[1]).read_text()).items():
        print(f"{name}: {found['value']:g} {found['unit']}")


if __name__ == "__main__":
    main(sys.argv[1:])
