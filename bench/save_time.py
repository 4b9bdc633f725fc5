#!/usr/bin/env python3
"""What saving in the background adds to a step: the same run with and without it, by turns.

  python3 bench/save_time.py RECIPE --every 20 --steps 120 --rounds 2 [--set path=value ...]

Prints the mean, the median and the longest time of a step of each, the first ten left out, and what saving adds
to the mean. The program is TROUPE_BUILD's (default:
build/release)."""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

import run_log


def steps_of(run):
    """(step, seconds) of each, from the run's log."""
    return [(r["step"], r["step_s"]) for r in run_log.steps_of(run) if "step_s" in r]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    program = pathlib.Path(os.environ.get("TROUPE_BUILD", "build/release"), "troupe").resolve()
    times = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for _ in range(options.rounds):
            for name, every in (("without", 0), ("with", options.every)):
                run = pathlib.Path(folder, name)
                shutil.rmtree(run, ignore_errors=True)
                sets = [f"checkpoint.dir={run}", f"checkpoint.every_steps={every}", "checkpoint.background=true",
                        "checkpoint.keep=1", f"train.steps={options.steps}", "log.every=1", "log.records=1 steps",
                        *options.set]
                words = [w for s in sets for w in ("--set", s)]
                subprocess.run([program, "train", options.recipe, "--quiet", *words], check=True)
                times[name].append([s for step, s in steps_of(run) if step > 10])
    means = {name: [statistics.mean(one) for one in runs] for name, runs in times.items()}
    for name, runs in times.items():
        print(f"{name:8} mean {1e3 * statistics.mean(means[name]):.2f} ms a step, runs "
              + ", ".join(f"{1e3 * m:.2f}" for m in means[name])
              + f"; median {1e3 * statistics.median(sum(runs, [])):.2f}, longest {1e3 * max(sum(runs, [])):.2f}")
    more = statistics.mean(means["with"]) / statistics.mean(means["without"]) - 1
    print(f"a save every {options.every} steps adds {100 * more:+.1f}% to a step")


if __name__ == "__main__":
    main()
