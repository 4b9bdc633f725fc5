#!/usr/bin/env python3
"""Writes docs/reference/SCALING.md: what `troupe plan` forecasts for published models on 64 to 3,072 GPUs, in the layout
that a run would take, and beside what others measured. Nothing is run; the page holds what the program says. Its last chapter,
what the program itself costs, is kept as it is.

    python3 tools/scaling_table.py build/release/troupe            writes the page
    python3 tools/scaling_table.py build/ci/troupe --check         ends with 1 where the page says something else
    python3 tools/scaling_table.py build/ci/troupe --check --few   the same of one row of each table"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/SCALING.md"
MACHINE = "machines/assumed-h100.yaml"
MEMORY = "72GiB"  # of 79: the rest is the driver's, and what fragments
# Each rank with so many sequences of 4,096 tokens, as a run with a growing batch has.
SEQUENCES = 16
MODELS = (("dbrx", "DBRX, 132 B", (64, 128, 256, 512, 1024, 2048, 3072)),
          ("mixtral-8x22b", "Mixtral 8x22B, 141 B", (64, 128, 256, 512, 1024)),
          ("qwen3-235b-a22b", "Qwen3-235B-A22B", (64, 128, 256, 512, 1024)),
          ("deepseek-v3", "DeepSeek-V3, 671 B", (256, 512, 1024, 2048)))
TF = 989.5  # of an H100's data sheet, bf16, per TF/s of MFU
BRIDGE = "Megatron Bridge's recipe for H100"
GUIDE = "Megatron Core's MoE guide"
# Model, GPUs, sequence length, global batch, settings of the layout, what was measured and by whom. A layout that is
# not published is the program's own.
PUBLISHED = (
    ("mixtral-8x22b", 128, 4096, 256, {}, "", 49.3, "Parallel Folding (arXiv 2504.14960), drops at capacity 1"),
    ("mixtral-8x22b", 1024, 4096, 1024, {}, "", 44.9, "the same"),
    ("mixtral-8x22b", 128, 4096, 256, {}, "", 465 / 9.895, "Megatron's model zoo, 465 TF/s, forced routing, dropless"),
    ("mixtral-8x22b", 256, 4096, 512, {"tensor": 4, "pipeline": 4, "expert": 8}, GUIDE, None, "proposed, not timed there"),
    ("qwen3-235b-a22b", 256, 4096, 2048, {"tensor": 2, "pipeline": 8, "expert": 32}, BRIDGE, 245 / 9.895,
     "Megatron's model zoo, 245 TF/s; 276 with rows beside other work"),
    ("deepseek-v3", 1024, 4096, 8192, {"tensor": 2, "pipeline": 8, "expert": 64}, BRIDGE, 338 / 9.895,
     "Megatron's model zoo, 338 TF/s in 8 bits, which would be 34 % of bf16's peak"),
    ("deepseek-v3", 1024, 4096, 8192, {"tensor": 2, "pipeline": 16, "expert": 64}, GUIDE, None, "proposed, not timed there"),
    ("dbrx", 3072, 4096, 6144, {"expert": 8, "shard": "full", "shard_ranks": 64}, "Databricks: EP, FSDP and HSDP", 40.0,
     "MFU above 40 % on 3,072 GPUs, of a blog; the model is of its class, the layout not published in full"),
)

HEAD = """# Forecasts of large runs

Written by `tools/scaling_table.py`, from `troupe plan`. **No number in the first tables was measured on such a cluster**:
they are what the program's model of a step says for hosts of eight H100 ([`{machine}`](../../{machine}), assumed
figures), bf16, sequences of 4,096 tokens, at most {memory} a GPU, no recomputation, the layout that a run would choose.

## How a step is forecast, and how far to trust it
A step is simulated action by action, from the very list that a run executes ([RUN.md](../develop/RUN.md)); what an action
takes is counted from the model's sizes and the machine's rates:

| part | seconds |
|---|---|
| forward of a unit, T tokens | 2 T A / products + 2 T X imbalance / experts + 2 T core keys / attention + 2 saved bytes / bandwidth + overhead; A: weights of dense products, X: of a token's experts |
| its backward | twice the products, 2.5 times the core, twice the bytes |
| rows to experts | rows that leave a rank x bytes / link, both ways, twice; not beside other work |
| tokens and keys of tensor and context ranks | gathered bytes (n - 1) / n / link + (n - 1) latency; not beside other work |
| gathers and sums of state | the same, beside computation, which is then 1 + contention times as long |
| between stages | T width values / link + latency; the wait for them is `idle` |
| the slowest of n ranks | 1 + jitter sqrt(2 ln n) times as long |

What is assumed, and matters: links between hosts give a rank 42 GB/s, less 6 % for each tenfold number of hosts; the
busiest expert rank has 6 % more rows than the mean; no rank fails; no input waits.

How far off it was: one GPU within a few per cent, memory within 5 %; a step of two ranks 15 to 18 %, of four 19 to
40 % *shorter* than measured here ([BENCH.md](../bench/BENCH.md#several-gpus)), for what the host does between launches. What
others published is faster than the forecast, by 11 to 40 % (the last table): their runs hide rows and tokens that the
forecast waits for, drop tokens or compute in 8 bits, and the assumed rates of products are round figures. So the tables
say which layout and why; neither side of them is what a cluster will reach. What they leave out: rows beside other work
(`parallel.overlap`), which would take most of the column `rows`; 8-bit products; more than two levels of links.
"""

# The chapter from which on the page is written by hand, of bench/control_plane.
KEPT = "## What the program itself costs at N\n"

COLUMNS = "| GPUs | layout | a step | tokens/s a GPU | MFU | of the first row's | rows | tokens | state | idle | GiB |\n" \
          "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"


def plan(troupe, recipe, ranks, sets, *more):
    """What a run on so many ranks of the machine would choose; JSON."""
    words = [troupe, "plan", recipe, "--ranks", ranks, "--machine", ROOT / MACHINE, "--assume-memory", MEMORY, "--json", *more]
    for key, value in sets.items():
        words += ["--set", f"{key}={value}"]
    out = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if out.returncode not in (0, 7):
        sys.exit(f"{' '.join(map(str, words))}\n{out.stderr}")
    return json.loads(out.stdout.splitlines()[-1])


def recipe_for(folder, preset):
    path = pathlib.Path(folder) / f"{preset}.yaml"
    path.write_text(f"model: {{preset: {preset}, max_positions: 4096}}\ndata: {{sequence: 4096, train: [{{kind: mock}}]}}\n"
                    "train: {steps: 10}\ncheckpoint: {dir: run}\nrun: {device: cuda}\n")
    return path


def layout(row):
    """`zero1 over 64, tensor 2, pipeline 8 (interleaved, 4 each), expert 8`"""
    p = row["parallel"]
    shard = p["shard"] + ("*" if p["shard"] == "full" and not p["reshard"] else "")
    parts = [shard + (f" over {p['shard_ranks']}" if p["shard_ranks"] and p["shard"] != "none" else "")]
    parts += [f"{axis} {p[axis]}" for axis in ("tensor", "context") if p[axis] > 1]
    if p["pipeline"] > 1:
        each = f", {p['virtual']} each" if p["virtual"] > 1 else ""
        parts.append(f"pipeline {p['pipeline']} ({p['schedule']}{each})")
    parts += [f"expert {p['expert']}"] + ([f"expert_tensor {p['expert_tensor']}"] if p["expert_tensor"] > 1 else [])
    return ", ".join(parts) + f", micro batch {row['micro_batch']}"


def of_step(row, key):
    return f"{100 * row[key] / row['step_seconds']:.1f}%"


def line(row, first):
    each = row["tokens_per_second"] / row["ranks"]
    fits = "" if row["fits"] else " **does not fit**"
    return (f"| {row['ranks']:,} | {layout(row)}{fits} | {row['step_seconds']:.2f} s | {each:,.0f} | {100 * row['mfu']:.1f}% | "
            f"{100 * each / first:.0f}% | {of_step(row, 'exchange')} | {of_step(row, 'tokens')} | {of_step(row, 'exposed')} | "
            f"{of_step(row, 'bubble')} | {row['memory'] / 2**30:.0f} |")


def scaling(troupe, folder, few):
    out = ["\n## By doubling\nEach GPU has 16 sequences a step, however many there are. `rows`, `tokens`, `state`, `idle`: the part of a step "
           "that\na rank waits for rows of experts, for tokens and keys of ranks that share a microbatch, for gathers and sums,\n"
           "and for other stages. `full*`: FSDP that keeps weights between forward and backward. With several stages the slowest rank's."]
    for preset, name, counts in MODELS:
        rows = []
        for ranks in counts[-1:] if few else counts:
            rows.append(plan(troupe, recipe_for(folder, preset), ranks, {"train.global_batch": SEQUENCES * ranks}))
        first = rows[0]["tokens_per_second"] / rows[0]["ranks"]
        out.append(f"\n**{name}**\n\n{COLUMNS}")
        out += [line(row, first) for row in rows]
    return out


def published(troupe, folder, few):
    out = ["\n## Beside what others measured\nThe forecast of the published layout or, where none was, of the one that a run would take. "
           "`of it`: forecast over\nmeasured; above 100 % the forecast is the faster one.\n\n"
           "| model | GPUs | global batch | layout | whose | forecast MFU | measured | of it | by |\n|---|--:|--:|---|---|--:|--:|--:|---|"]
    for preset, ranks, sequence, batch, settings, whose, measured, source in PUBLISHED[:1] if few else PUBLISHED:
        sets = {"train.global_batch": batch, "data.sequence": sequence, **{f"parallel.{k}": v for k, v in settings.items()}}
        row = plan(troupe, recipe_for(folder, preset), ranks, sets)
        mfu = 100 * row["mfu"]
        beside = (f"{measured:.1f}%", f"{100 * mfu / measured:.0f}%") if measured else ("", "")
        fits = "" if row["fits"] else f" **needs {row['memory'] / 2**30:.0f} GiB**"
        out.append(f"| {preset} | {ranks:,} | {batch:,} | {layout(row)}{fits} | {whose or 'chosen'} | {mfu:.1f}% | {beside[0]} | {beside[1]} | {source} |")
    return out


def lines_of(troupe, few):
    with tempfile.TemporaryDirectory() as folder:
        return scaling(troupe, folder, few) + published(troupe, folder, few)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("troupe")
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    parser.add_argument("--few", action="store_true", help="one row of each table")
    options = parser.parse_args()
    troupe = pathlib.Path(options.troupe).resolve()
    made = lines_of(troupe, options.few)
    if not options.check:
        if options.few:
            sys.exit("--few is for --check")
        there = PAGE.read_text()
        kept = there[there.index(KEPT):]
        PAGE.write_text(HEAD.format(machine=MACHINE, memory="72 GiB") + "\n".join(made) + "\n\n" + kept)
        return
    there = set(PAGE.read_text().splitlines())
    rows = [row for text in made for row in text.splitlines() if row.startswith("|") and not row.startswith(("|--", "| GPUs"))]
    # The efficiency column is of rows that --few leaves out.
    def bare(row):
        cells = row.split("|")
        return "|".join(cells[:6] + cells[7:]) if options.few and len(cells) == 13 else row
    known = {bare(row) for row in there}
    stale = [row for row in rows if bare(row) not in known]
    if stale:
        sys.exit("docs/reference/SCALING.md is stale: run tools/scaling_table.py. Not there:\n" + "\n".join(stale))


if __name__ == "__main__":
    main()
