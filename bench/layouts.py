#!/usr/bin/env python3
"""The same recipe in several layouts on the ranks of this machine, each beside its forecast.

  python3 bench/layouts.py run.yaml --ranks 1,2 [--program build/release/troupe] [--weak]
                           [--layouts none,zero1,full,expert-zero1,expert-full,auto] [--set PATH=VALUE]

For each number of ranks: `bench machine` writes what the ranks and their links reach, `bench run.yaml` on one
rank what a step takes of it; then each layout trains (no checkpoint) and is ended, and
`plan` says what it expected of that layout: from the machine file alone, and with the measured step
(--bench). A layout is words with `-` between, the sharding last: `expert` has all experts over all ranks, `tensor2`,
`context2`, `pipeline2` and `virtual2` are those keys of `parallel`, `overlap` computes another microbatch while rows travel.
`auto` is the recipe without `parallel`. Steps are medians after the first --skip; peaks those of the allocator, and so the
forecast is without what the libraries hold. --weak: the global batch grows with the ranks.
A line of JSON for each.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from run_log import steps_of
from trace_overlap import overlap_of

GIB = 2**30
TRACED = 2  # steps of a trace


def sets_of(layout, ranks):
    if layout == "auto" or ranks == 1:
        return []
    *words, shard = layout.split("-")
    sets = {"expert": 1, "shard": shard}
    for word in words:
        key, count = re.fullmatch(r"([a-z]+)(\d*)", word).groups()
        if key == "overlap":
            sets[key] = "experts"
        else:
            sets[key] = count or ranks
    return [f"parallel.{key}={value}" for key, value in sets.items()]


def words_of(sets):
    return [word for one in sets for word in ("--set", one)]


def call(*words):
    """What a command printed, its exit class and its errors. A class other than 0 may be an answer."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    return done.stdout, done.returncode, done.stderr


def train(args, ranks, sets, run):
    """Medians and peak of a run, or its last words."""
    launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
    sets = [*sets, f"checkpoint.dir={run}", "checkpoint.every_steps=0", "checkpoint.every=1000h", "log.every=4 steps",
            f"train.steps={args.steps + 1000}"]
    trace = run / f"profile-{args.steps - TRACED}.json"
    if args.trace and ranks > 1:
        sets.append(f"profile={{from: {args.steps - TRACED}, steps: {TRACED}}}")
    command = [args.program, *launch, "train", args.recipe, *words_of(sets)]
    shutil.rmtree(run, ignore_errors=True)
    with tempfile.TemporaryFile("w+") as said:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        while process.poll() is None and len(steps_of(run)) < args.steps and time.monotonic() - begin < args.limit:
            time.sleep(0.2)
        try:  # launcher and ranks at once: nothing of the run is kept
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        said.seek(0)
        last_words = said.read()[-1500:]
    rows = steps_of(run)
    overlap = overlap_of(trace, TRACED) if trace.exists() else {}
    shutil.rmtree(run, ignore_errors=True)
    if len(rows) <= args.skip:
        return {"failed": last_words}
    peak = max(row.get("memory_peak", 0) for row in rows)  # in every fourth of them
    rows = rows[args.skip:args.steps - TRACED - 1] if args.trace else rows[args.skip:]
    return dict(overlap, step_ms=round(1e3 * statistics.median(row["step_s"] for row in rows), 2),
                data_wait=round(rows[-1].get("data_wait", 0), 3),
                tokens_s=round(statistics.median(row["tokens_s"] for row in rows)),
                peak_gib=round(peak / GIB, 3),
                loss=round(rows[-1]["loss"], 5),
                load=round(statistics.median(row.get("moe/load", 1) for row in rows), 2))


def forecast(args, ranks, sets, machine, *more):
    """What `plan` says of the layout."""
    out, code, err = call(args.program, "plan", args.recipe, *words_of(sets), "--ranks", ranks, "--machine", machine,
                          "--json", *more)
    if not out.startswith("{"):
        return {"failed": (out + err)[-800:], "code": code}
    said = json.loads(out)
    return dict(step_ms=round(1e3 * said["step_seconds"], 2),
                peak_gib=round((said["memory"] - said["parts"]["runtime"]) / GIB, 3), layout=said["parallel"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--layouts", default="none,zero1,full,expert-zero1,expert-full,auto")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--trace", action="store_true", help="also how much of the transfers goes on beside products")
    parser.add_argument("--weak", action="store_true")
    parser.add_argument("--device", default="auto", help="of `bench machine`: cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--skip", type=int, default=6)
    parser.add_argument("--limit", type=float, default=90, help="seconds of a run, its start included")
    parser.add_argument("--batch", type=int, help="the recipe's global batch, for --weak")
    args = parser.parse_args()
    args.program = str(pathlib.Path(args.program).resolve())
    if args.weak and not args.batch:
        parser.error("--weak needs --batch")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        out, code, err = call(args.program, "bench", args.recipe, *words_of(args.set), "--steps", 8, "-o",
                              folder / "bench.json")
        if code:
            sys.exit(f"bench {args.recipe} ended with {code}:\n{out}{err}")
        for ranks in map(int, args.ranks.split(",")):
            machine = folder / f"machine{ranks}.yaml"
            launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
            out, code, err = call(args.program, *launch, "bench", "machine", "--device", args.device, "-o", machine)
            if code:
                sys.exit(f"bench machine on {ranks} ranks ended with {code}:\n{out}{err}")
            print(machine.read_text(), flush=True)
            for layout in args.layouts.split(",") if ranks > 1 else ["none"]:
                sets = [*args.set, *sets_of(layout, ranks)]
                if args.weak:
                    sets.append(f"train.global_batch={args.batch * ranks}")
                row = dict(ranks=ranks, layout=layout, measured=train(args, ranks, sets, folder / "run"),
                           forecast=forecast(args, ranks, sets, machine),
                           forecast_with_bench=forecast(args, ranks, sets, machine, "--bench", folder / "bench.json"))
                m, f, b = row["measured"], row["forecast"], row["forecast_with_bench"]
                if "step_ms" in m and "step_ms" in f and "step_ms" in b:
                    print(f"{ranks} {layout:24s} {m['step_ms']:8.1f} ms, forecast {f['step_ms']:8.1f} "
                          f"({f['step_ms'] / m['step_ms'] - 1:+.0%}), with the bench {b['step_ms']:8.1f} "
                          f"({b['step_ms'] / m['step_ms'] - 1:+.0%}); {m['peak_gib']:6.2f} GiB, forecast "
                          f"{f['peak_gib']:6.2f}", flush=True)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
