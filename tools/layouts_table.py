#!/usr/bin/env python3
"""Trains the same small model in every layout over ranks, on the CPU over Gloo, and writes how far each is
from one process to docs/reference/LAYOUTS.md; then saves in each of twelve layouts and loads in each other.

    TROUPE_BUILD=build/release python3 tools/layouts_table.py               all of it, some twenty minutes
    ... tools/layouts_table.py --ranks 2 --loads --out table.md             layouts of two ranks, nothing loaded
    ... tools/layouts_table.py --device cuda --ranks 2 --loads --out table.md      the same on two GPUs, over NCCL

Stopped, the same command resumes: --lines keeps what it has found out about this commit. It ends with 1 where
something is beyond its bar, which that line of the table says."""
import argparse
import concurrent.futures
import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from layout_runs import SEQUENCE, Layout, LayoutRuns, recipe_on  # noqa: E402

BAR = 1e-5
STATE_BAR = 1e-4  # of weights and moments after 20 steps; the head of the table says why
GPU_BARS = 10  # times these on GPUs, whose model is eight times as wide; not of the first gradients
READ_BAR = 1.05
BEYOND = " **beyond the bar**"
# Wide enough that moving it is worth counting: 8.6 MB of weights and moments.
MOVED = ("model.width=96", "model.moe.hidden=256")
MOVES = (
    Layout(experts=2),
    Layout(2, "DDP", experts=2),
    Layout(2, "ZeRO-1", expert=2, experts=2),
    Layout(2, "FSDP", experts=2),
    Layout(2, "FSDP", expert=2, exact=True, experts=2),
    Layout(3, "ZeRO-1", experts=2),
    Layout(3, "FSDP", experts=2),
    Layout(4, "DDP", expert=4, experts=2),
    Layout(4, "ZeRO-1", expert=2, experts=2),
    Layout(4, "HSDP", 2, expert=2, experts=2),
    Layout(4, "ZeRO-1", expert=2, experts=2, tensor=2),
    Layout(4, "FSDP", expert=2, experts=2, tensor=4, cut=2),
    Layout(4, "ZeRO-1", expert=2, experts=2, context=4),
    Layout(6, "FSDP", expert=2, experts=2),
    Layout(8, "FSDP", expert=2, experts=2, tensor=2, context=2),
    Layout(8, "HSDP", 4, expert=4, experts=2),
    Layout(8, "ZeRO-1", expert=2, experts=2, tensor=4),
    Layout(2, "DDP", experts=2, pipeline=2),
    Layout(4, "ZeRO-1", expert=2, experts=2, pipeline=2, virtual=2),
    Layout(8, "FSDP", expert=2, experts=2, tensor=2, pipeline=2, virtual=2),
)


def shares(world, expert):
    """Ways to share state, with the ranks that share a copy of it: HSDP where that fits EP."""
    fits = [n for n in range(2, world) if world % n == 0 and (n % expert == 0 or expert % n == 0)]
    return [("DDP", 0), ("ZeRO-1", 0), ("FSDP", 0)] + [("HSDP", n) for n in fits[-1:]]


def tensor_layouts(world):
    """Ranks that share matrices, in every way to share state, with experts over them and beyond them, whole and cut."""
    out = []
    for tensor in (n for n in (2, 4) if world % n == 0):
        for share in ("DDP", "ZeRO-1", "FSDP"):
            out += [Layout(world, share, 0, expert, tensor=tensor) for expert in (1, 2, 4) if world % expert == 0]
        if world % 4 == 0:
            out.append(Layout(world, "ZeRO-1", 0, 2, tensor=tensor, cut=2))
    if world == 8:
        out.append(Layout(8, "HSDP", 2, 4, tensor=2))
    return out


def context_layouts(world):
    """Ranks that share the tokens of each sequence, alone and with tensor ranks, experts over them and beyond them."""
    out = []
    for context in (n for n in (2, 4) if world % n == 0):
        out += [Layout(world, share, 0, expert, context=context) for share in ("DDP", "ZeRO-1", "FSDP")
                for expert in (1, 4) if world % expert == 0]
    if world % 4 == 0:
        out += [Layout(world, share, 0, 4, tensor=2, context=2) for share in ("ZeRO-1", "FSDP")]
    if world == 8:
        out.append(Layout(8, "HSDP", 2, 4, context=2))
    return out


def pipeline_layouts(world):
    """Stages over two and four ranks, one and several a rank, in every way to share state, with matrices and experts
    shared within a stage."""
    if world == 2:
        return [Layout(2, "DDP", pipeline=2), Layout(2, "DDP", pipeline=2, virtual=2),
                Layout(2, "DDP", pipeline=2, virtual=2, order="dualpipev")]
    if world == 4:
        return [Layout(4, "DDP", pipeline=4), Layout(4, "DDP", pipeline=4, virtual=2, order="zbv", layers=6),
                Layout(4, "FSDP", 0, 2, pipeline=2, virtual=2, order="dualpipev")] + [Layout(4, share, 0, expert, pipeline=2, virtual=virtual)
                for share in ("DDP", "ZeRO-1", "FSDP") for expert in (1, 2) for virtual in (1, 2)]
    if world == 8:
        return [Layout(8, "FSDP", 0, 2, tensor=2, pipeline=2, virtual=2), Layout(8, "ZeRO-1", 0, 4, pipeline=2),
                Layout(8, "HSDP", 2, 2, pipeline=2)]
    return []


def layouts_of(world):
    """Every way to share state by every EP that fits: within the experts, and beyond, where each expert's hidden width
    is cut; also with `exact`, and with ranks that have no sequence. For 6 ranks, some of these. For 4 ranks, also 6 experts, unevenly."""
    experts = 6 if world % 3 == 0 else 4
    out = []
    for count in (experts, 2) if world in (4, 6) else (experts,):
        for expert in (n for n in range(1, world + 1) if world % n == 0):
            fits = count % expert == 0 or expert % count == 0
            if not fits or (count == 2 and expert <= 2):
                continue
            kinds = shares(world, expert)
            if world == 6:
                kinds = kinds[-2:] if expert % 2 else kinds[:2]
            out += [Layout(world, share, ranks, expert, experts=count) for share, ranks in kinds]
            if expert > 1 and world != 6:
                out.append(Layout(world, "FSDP", 0, expert, True, count))
    if world == 4:
        out += [Layout(4, share, 0, 4, experts=6) for share in ("DDP", "ZeRO-1", "FSDP")] + [Layout(4, "FSDP", 0, 4, True, 6)]
    expert = 3 if world == 3 else 2
    fewer = [Layout(world, share, 0, expert, experts=experts, batch=world - 1) for share in ("ZeRO-1", "FSDP")]
    return out + [layout for layout in fewer if layout not in out] + tensor_layouts(world) + context_layouts(world) \
        + pipeline_layouts(world)


def judged(cells, bad):
    return "| " + " | ".join(str(c) for c in cells) + (BEYOND if bad else "") + " |\n"


class Tables:
    def __init__(self, runs, jobs, kept, bars=1):
        self.runs, self.bars = runs, bars
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.kept = kept
        self.found = {}
        if kept.exists():
            found = (json.loads(line) for line in kept.read_text().splitlines())
            self.found = {f["key"]: f["text"] for f in found if f["commit"] == commit()}
        self.lock = threading.Lock()
        self.done = {}

    def train(self, layout, *sets, tag=""):
        name = f"{layout} of {layout.layers} x {layout.experts} batch {layout.batch}{tag}".replace(" ", "-")
        with self.lock:
            lock = self.done.setdefault(name, threading.Lock())
        with lock:
            if (self.runs.folder / name).exists():
                return name
            self.runs.train(layout, name, "checkpoint.at=[1]", *sets)
            if layout.world == 1 and not self.runs.begins_with_its_weights(layout, name):
                raise RuntimeError(f"{name}: step 1 does not have the weights of the start")
        return name

    def lines(self, line, layouts):
        def found(layout):
            key = f"{line.__name__} {layout!r}"
            if key not in self.found:
                text = line(layout)
                print(text, end="", flush=True)
                with self.lock, open(self.kept, "a", encoding="utf-8") as kept:
                    kept.write(json.dumps({"commit": commit(), "key": key, "text": text}) + "\n")
                self.found[key] = text
            return self.found[key]

        return "".join(self.pool.map(found, layouts))

    def training_line(self, layout):
        one, many = self.train(layout.reference()), self.train(layout)
        loss, norm = self.runs.apart(one, many)
        start, gradients = self.runs.start_of(one, many)
        state = self.runs.end_of(one, many)
        bits = ""
        if layout.exact:
            alone = Layout(layout.world, layout.share, experts=layout.experts, batch=layout.batch)
            same = self.runs.figures(self.train(alone))[1][0] == self.runs.figures(many)[1][0]
            bits = "yes" if same else "no" if layout.slices() > 1 else "no!"
        share = f"HSDP, {layout.shard_ranks} share" if layout.shard_ranks else layout.share
        stages = f"{layout.pipeline} x {layout.virtual}" if layout.virtual > 1 else str(layout.pipeline)
        stages += f" {layout.order}" * (layout.order != "auto")
        cells = [layout.world, share, stages, layout.tensor, layout.context, layout.expert, layout.slices(),
                 "exact" if layout.exact else "fast", layout.experts, f"{layout.batch} ({layout.empty_ranks()})"]
        cells += [f"{x:.1e}" for x in (loss, norm, gradients, state)] + ["yes" if start == 0 else "no", bits]
        beyond = max(loss, norm) > self.bars * BAR or gradients > BAR or state > self.bars * STATE_BAR
        return judged(cells, beyond or start > 0 or bits == "no!")

    def exact_line(self, layout):
        """One rank has all tokens, so that no sum over ranks has another order than one process."""
        sets = ("train.clip=0", "model.moe.top_k=3")
        one = self.train(layout.reference(), *sets, tag="-clip-0")
        many = self.train(layout, *sets, tag="-clip-0")
        steps = sum(a == b for a, b in zip(self.runs.figures(one).values(), self.runs.figures(many).values()))
        different = self.runs.diff(one, many)["different"]
        cells = [layout.world, layout.share, layout.expert, "exact" if layout.exact else "fast",
                 f"{steps} of 20", different]
        return judged(cells, layout.exact and (steps < 20 or different > 0))

    def move_lines(self, layouts, worlds):
        runs, sources = self.runs, [f"from-{i}/step-000002" for i in range(len(layouts))]

        @functools.cache
        def saved():
            for i, layout in enumerate(layouts):
                runs.train(layout, f"from-{i}", "train.steps=2", *MOVED)
            # What one process that never stopped has in the step behind.
            runs.train(layouts[0], "whole", "train.steps=3", *MOVED)
            return runs.figures("whole")[3][0]

        def move(layout):
            with self.lock:
                loss = saved()
            i = layouts.index(layout)
            worst, read, different, tensors = 0, 0, 0, 0
            for j, source in enumerate(sources):
                if i == j:
                    continue
                found, bytes_read = runs.load(layout, source, f"move-{j}-{i}", *MOVED)
                same = runs.diff(source, f"move-{j}-{i}/step-000003")
                worst = max(worst, abs(found - loss) / loss)
                read = max(read, bytes_read / runs.tensor_bytes(source))
                different += same["tensors"] - same["equal"]
                tensors += same["tensors"]
            cells = [layout, f"{different} of {tensors}", f"{worst:.1e}", f"{read:.4f}"]
            return judged(cells, different > 0 or worst > BAR or read > READ_BAR)

        return self.lines(move, [layout for layout in layouts if layout.world in worlds])


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {len(os.sched_getaffinity(0))} cores"


def gpus():
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return f"{len(names)} x {names[0]}"


HEAD = """# Layouts over ranks

Written by `tools/layouts_table.py`; not by hand. {date}, commit {commit}, {processor}, {backend} between processes
of one machine, one thread each, fp32; `{command}`.

A model of 2 layers (6 where four ranks have two stages each) and 2, 4 or 6 experts of width {width} x 96, top 2 (`tests/layout_runs.py` has the recipe), AdamW,
clipped to norm 1, a balance loss. Its data are chats of which the answers alone are learned: of {sequences} sequences
of {sequence} tokens {masked} have no target at all, the others 1 to {most}. A batch of 7 sequences gives ranks unequal
numbers of them; one of fewer than there are ranks leaves ranks without any (in brackets: how many).

## Twenty steps beside one process

The largest relative difference, over 20 steps, of loss and of gradient norm. Then of the first step's gradients (those
of AdamW's first moments), and of weights and moments after 20 steps: the largest difference of any element of a tensor
over the largest value of that tensor in one process, of whichever tensor this is the most. The bar is 1e-5 for the
first three and 1e-4 for the last ({bars} times these on this device, but of gradients): AdamW divides a gradient by its own size, so a row of the embedding whose
gradient is nothing but rounding is moved by that, as far as the learning rate and epsilon let it. Then whether the
initial weights are bitwise those of one process (as the first step's learning rate is 0, step 1 has them); and of
`exact` dispatch, whether the first step's loss is bitwise that of the same layout without EP, which experts cut by
their hidden width need not have: their parts are added in another order. Slices are the ranks that an expert's hidden
width is cut over. 6 experts are spread unevenly over 4 ranks: two of these have one more than the others. PP are ranks that
share the layers, times the stages of each, and the order of their microbatches where the layout names it; CP are ranks
that share the tokens of each sequence.

| ranks | sharing | PP | TP | CP | EP | slices | dispatch | experts | batch (empty) | loss | norm | gradients | state | initial | exact |
|--:|---|--:|--:|--:|--:|--:|---|--:|---|--:|--:|--:|--:|---|---|
"""
EXACT = """
## `exact`, bit for bit

With all tokens on one rank (a batch of one sequence) and no clipping, no sum over ranks has another order than in one
process: `exact` has the losses, norms, weights and moments of one process bit for bit, over 20 steps. `fast` adds a
token's results by rank first, which of top 3 shows. 4 or 6 experts.

| ranks | sharing | EP | dispatch | steps equal | elements that differ |
|--:|---|--:|---|--:|--:|
"""
MOVE = """
## Saved in one layout, loaded in another

Each of {count} layouts (2 experts, width 96 x 256: `MOVES` in the tool) saved step 2; these loaded what every other had
saved. The tensors that it has then, weights and moments, beside those saved: how many differ in any bit. Its next loss, beside
that of one process that never stopped: the largest relative difference (bar 1e-5). The bytes of tensors read, by all
ranks together, over those in the checkpoint: the most (bar {bar}). Every rank reads manifest and indexes besides.

| loaded in | tensors that differ | next loss | bytes read |
|---|--:|--:|--:|
"""


def commit():
    """The last one that changed the program, or what is measured of it."""
    measures = ["tools/layouts_table.py", "tests/layout_runs.py"]
    words = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "troupe", "apps", *measures]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/reference/LAYOUTS.md")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 6, 8], help="worlds")
    parser.add_argument("--loads", type=int, nargs="*", default=[1, 2, 3, 4, 6, 8], help="worlds that load the others'")
    parser.add_argument("--lines", type=pathlib.Path, default=ROOT / "build" / "layouts.jsonl")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda: a GPU for each rank")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(LayoutRuns(folder, recipe_on(args.device)), args.jobs, args.lines,
                        1 if args.device == "cpu" else GPU_BARS)
        targets = tables.runs.targets()
        text = tables.lines(tables.training_line, [layout for world in args.ranks for layout in layouts_of(world)])
        text += EXACT
        text += tables.lines(tables.exact_line, [
            Layout(world, share, 0, max(n for n in (2, 3, 4) if world % n == 0), exact, 6 if world % 3 == 0 else 4, 1)
            for world in args.ranks for share, exact in (("FSDP", False), ("FSDP", True), ("ZeRO-1", True))])
        if args.loads:
            text += MOVE.format(count=len(MOVES), bar=READ_BAR) + tables.move_lines(MOVES, args.loads)
    cpu = args.device == "cpu"
    head = HEAD.format(date=datetime.date.today(), commit=commit(), processor=processor() if cpu else gpus(),
                       backend="Gloo" if cpu else "NCCL", bars=1 if cpu else GPU_BARS, width=32 if cpu else 256,
                       command=" ".join(["tools/layouts_table.py", *sys.argv[1:]]), sequences=len(targets), sequence=SEQUENCE,
                       masked=sum(n == 0 for n in targets), most=max(targets))
    args.out.write_text(head + text)
    beyond = text.count(BEYOND)
    print(f"{args.out}: {beyond} lines beyond their bar")
    return beyond > 0


if __name__ == "__main__":
    sys.exit(main())
