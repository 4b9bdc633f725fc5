#!/usr/bin/env python3
"""Kills random ranks at random moments: seconds to the next step, and whether the run ends with the bits of one that nobody killed.

  python3 bench/recovery.py [--kills 40] [--ranks 4] [--spares 4] [--program build/release/troupe] [--layout NAME ...] [--seed 1]

Trains a run of some thousand parameters on the CPU under `troupe launch --max-restarts` with that many spares, for each layout of LAYOUTS
that is named (all). As often as --kills a random rank is killed with signal 9, up to a second after all spares wait. The clock runs from
the kill to the next line of a step in the log. Then the run is stopped, and one that nobody kills is trained to the same step.
"""
import argparse
import dataclasses
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from run_log import steps_of

RECIPE = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64, moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, micro_batch: 1, steps: 1000000, optimizer: {lr: 3e-3}, schedule: {kind: constant}}
checkpoint: {every_steps: 5}
log: {tensorboard: false, every: 1 steps}
run: {device: cpu}
"""
LAYOUTS = {"experts": ["parallel.expert=2", "parallel.shard=full"], "pipeline": ["parallel.pipeline=2"]}
PATIENCE = 300


@dataclasses.dataclass
class Recovery:
    seconds: list  # from each kill to the next step
    equal: bool  # to the run that nobody killed
    left: list  # processes that outlived the run


def children_of(launcher):
    """(rank, process id, environment, name) of each process that a launcher has started for a rank or its place."""
    try:
        pids = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except OSError:
        return
    for pid in pids:
        folder = pathlib.Path("/proc", pid)
        try:
            words = dict(word.split(b"=", 1) for word in (folder / "environ").read_bytes().split(b"\0") if b"=" in word)
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        if b"RANK" in words:
            yield int(words[b"RANK"]), int(pid), words, name


def spares_of(launcher):
    """Process ids, by rank, of the spares that wait."""
    return {rank: pid for rank, pid, _, name in children_of(launcher) if name == "troupe spare"}


def ranks_of(launcher):
    """Process ids by rank. One that was a spare has the name of the program, one that still gets ready has not."""
    return {rank: pid for rank, pid, words, name in children_of(launcher) if b"TROUPE_SPARE" not in words or name == "troupe"}


def until(launcher, what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if launcher.poll() is not None:
            raise RuntimeError(f"{what}: troupe launch has ended with {launcher.returncode}")
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE} s")
        time.sleep(0.02)


def lines_of_steps(run):
    log = run / "log.jsonl"
    return log.read_bytes().count(b'"loss":') if log.exists() else 0


def train(program, folder, run, sets, launch):
    sets = [f"checkpoint.dir={run}", *sets]
    words = [program, "launch", *launch, "--", "train", "run.yaml", *(word for s in sets for word in ("--set", s))]
    with open(folder / f"{run}.said", "w", encoding="utf-8") as said:
        return subprocess.Popen([str(word) for word in words], cwd=folder, stderr=said, env=dict(os.environ, OMP_NUM_THREADS="1"))


def require_end(folder, run, process):
    code = process.wait(PATIENCE)
    if code != 0:
        said = (folder / f"{run}.said").read_text(encoding="utf-8")
        raise RuntimeError(f"{run} ended with {code}:\n{said[-3000:]}")


def kill_one(launcher, run, counts, draw):
    """Seconds from a rank's end to the next step, and all processes that there were."""
    until(launcher, "spares", lambda: len(spares_of(launcher.pid)) == counts["spares"])
    until(launcher, "a step", lambda: lines_of_steps(run) > 0)
    until(launcher, "ranks", lambda: len(ranks_of(launcher.pid)) == counts["ranks"])
    time.sleep(draw.random())
    old, there = ranks_of(launcher.pid), [pid for _, pid, _, _ in children_of(launcher.pid)]

    def renewed():
        new = ranks_of(launcher.pid)
        return len(new) == counts["ranks"] and not set(new.values()) & set(old.values())

    os.kill(old[draw.randrange(counts["ranks"])], signal.SIGKILL)
    begin = time.monotonic()
    until(launcher, "new ranks", renewed)
    before = lines_of_steps(run)  # with those that were under way
    until(launcher, "a step", lambda: lines_of_steps(run) > before)
    return time.monotonic() - begin, there


def drill(program, folder, ranks, spares, kills, layout, seed):
    """A run of which so many ranks are killed, and one to compare it with; both in `folder`, which is made."""
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(RECIPE)
    (folder / "text.txt").write_text("The cat sat on the mat and the dog ran. " * 1000)
    program, draw = pathlib.Path(program).resolve(), random.Random(seed)
    launch = ["-n", ranks, "--max-restarts", kills, *(["--spares", spares] if spares else [])]
    killed, seconds, there = train(program, folder, "killed", layout, launch), [], []
    try:
        for _ in range(kills):
            took, pids = kill_one(killed, folder / "killed", {"ranks": ranks, "spares": spares}, draw)
            seconds.append(took)
            there += pids
        there += [pid for _, pid, _, _ in children_of(killed.pid)]
        killed.send_signal(signal.SIGTERM)
        require_end(folder, "killed", killed)
    finally:
        killed.kill()
        killed.wait()
    steps = steps_of(folder / "killed")[-1]["step"]
    require_end(folder, "whole", train(program, folder, "whole", [f"train.steps={steps}", *layout], ["-n", ranks]))
    same = subprocess.run([program, "diff", "whole", "killed"], cwd=folder, capture_output=True, text=True, check=False)
    left = [pid for pid in there if os.path.exists(f"/proc/{pid}")]
    return Recovery(seconds, "tensors are equal bit for bit" in same.stdout, left)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=4)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--layout", action="append", choices=LAYOUTS)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    bad = False
    for name in args.layout or LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            told = drill(args.program, pathlib.Path(folder) / "drill", args.ranks, args.spares, args.kills, LAYOUTS[name], args.seed)
        bad |= not told.equal or bool(told.left)
        print(f"{name}: {args.ranks} ranks, {args.spares} spares, {len(told.seconds)} kills; seconds to the next step: median "
              f"{statistics.median(told.seconds):.2f}, {min(told.seconds):.2f} to {max(told.seconds):.2f}; weights "
              f"{'equal' if told.equal else 'DIFFER'}; {len(told.left)} processes left", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
