#!/usr/bin/env python3
"""Training beside programs that want the same cores: tokens a second of `troupe train` and of PyTorch's eager loop.

  .venv/bin/python bench/busy_neighbors.py --threads 2
  .venv/bin/python bench/busy_neighbors.py --threads 16 --neighbors 16 --spins own,0,1000,20000,300000

The model is `quickstart` of bench/train_step.py. Each side runs alone, then beside so many endless loops of the shell; all
in turns. Each run is printed when it ends, the medians after each round: stop it when you have seen enough. A round of the
defaults takes two minutes on two cores. A spin is libgomp's GOMP_SPINCOUNT (300000 is its default); `own` is what
the program sets by itself. The fair share of a core is what it has of the idle machine once every thread and loop gets as
much: min(1, cores / (threads + loops)); the last column is the busy rate over that share of the idle one.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import train_step

MODEL = train_step.MODELS["quickstart"]
TOKENS = MODEL["sequences"] * MODEL["tokens"]


class Neighbors:
    """Endless loops of the shell, while the block lasts."""

    def __init__(self, count):
        self.count, self.loops = count, []

    def __enter__(self):
        self.loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(self.count)]

    def __exit__(self, *error):
        for loop in self.loops:
            loop.kill()
            loop.wait()


def with_spin(spin):
    """This environment without OpenMP's settings for waiting; with `spin`, unless the program is to choose."""
    out = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return out if spin == "own" else dict(out, GOMP_SPINCOUNT=spin)


def troupe(args, folder, spin):
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(with_spin(spin))
    try:
        return TOKENS / train_step.troupe(dict(MODEL), args, folder)[0]
    finally:
        os.environ.clear()
        os.environ.update(before)


def eager(args):
    words = [sys.executable, train_step.__file__, "quickstart", "--one", "eager", "--steps", str(args.steps), "--skip",
             str(args.skip), "--threads", str(args.threads)]
    ran = subprocess.run(words, capture_output=True, text=True, env=with_spin("own"), check=True)
    return TOKENS / json.loads(ran.stdout.strip().splitlines()[-1])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--neighbors", type=int, help="default: as many as there are threads")
    parser.add_argument("--spins", default="own,300000", help="by commas: own, or values of GOMP_SPINCOUNT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--skip", type=int, default=4, help="steps before those that count")
    parser.add_argument("--no-eager", action="store_true", help="without PyTorch's loop, which needs transformers")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a run may take")
    args = parser.parse_args()
    args.profile, args.top = False, 10
    neighbors = args.threads if args.neighbors is None else args.neighbors
    fair = min(1.0, os.cpu_count() / (args.threads + neighbors))
    sides = {f"troupe, spin {spin}": lambda folder, spin=spin: troupe(args, folder, spin) for spin in args.spins.split(",")}
    if not args.no_eager:
        sides["PyTorch, eager"] = lambda _: eager(args)
    print(f"{os.cpu_count()} cores, {args.threads} threads, {neighbors} busy loops: fair share {fair:.2f}", flush=True)
    read = {side: ([], []) for side in sides}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(1, args.rounds + 1):
            for side, rate in sides.items():
                for busy, where in enumerate(("alone", f"beside {neighbors} loops")):
                    with Neighbors(neighbors * busy):
                        one = rate(pathlib.Path(name))
                    read[side][busy].append(one)
                    print(f"  round {turn}: {side:<22}{where:<16}{one:9.0f} tokens/s", flush=True)
            print(f"medians of {turn}:", flush=True)
            for side, rates in read.items():
                idle, busy = map(statistics.median, rates)
                print(f"  {side:<22}{idle:9.0f} tokens/s idle {busy:9.0f} busy   {busy / idle / fair:5.0%} of the fair share",
                      flush=True)


if __name__ == "__main__":
    main()
