#!/usr/bin/env python3
"""Seconds from a rank's death to the next step of the run.

  python3 bench/restart_time.py run.yaml [--ranks 2] [--program build/release/troupe] [--times 3] [--set PATH=VALUE]

`troupe launch --max-restarts` trains the recipe with a checkpoint every --every steps. When the log has --after steps more, rank
`--rank` is killed with signal 9; the clock runs until all ranks are new processes and the log has a step of theirs. A line for each
time: the whole, and until the new processes were there.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from recovery import ranks_of
from run_log import steps_of


def until(what, condition, limit):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {limit:.0f} s")
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--program", default="build/release/troupe")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=1, help="that is killed")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--after", type=int, default=15, help="steps before a kill")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--limit", type=float, default=120, help="seconds that each wait may take")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        sets = [f"checkpoint.dir={run}", f"checkpoint.every_steps={args.every}", "log.every=1 steps", *args.set]
        command = [args.program, "launch", "-n", str(args.ranks), "--max-restarts", str(args.times), "--", "train", args.recipe,
                   *(word for s in sets for word in ("--set", s))]
        with open(pathlib.Path(folder) / "said", "w+", encoding="utf-8") as said, \
                subprocess.Popen(command, stdout=said, stderr=said) as launcher:

            def rows():
                if launcher.poll() is not None:
                    said.seek(0)
                    sys.exit(f"troupe launch ended with {launcher.returncode}:\n{said.read()[-3000:]}")
                return len(steps_of(run))

            try:
                for _ in range(args.times):
                    before = rows()
                    until("steps", lambda: rows() >= before + args.after, args.limit)  # noqa: B023
                    old = ranks_of(launcher.pid)
                    os.kill(old[args.rank], signal.SIGKILL)
                    begin = time.monotonic()

                    def renewed():
                        now = ranks_of(launcher.pid)
                        return len(now) == args.ranks and not set(now.values()) & set(old.values())  # noqa: B023

                    until("new processes", renewed, args.limit)
                    there, count = time.monotonic() - begin, rows()
                    until("a step", lambda: rows() > count, args.limit)  # noqa: B023
                    print(f"{time.monotonic() - begin:.1f} s to the next step, of them {there:.1f} s to new processes", flush=True)
            finally:
                launcher.send_signal(signal.SIGTERM)
                try:
                    launcher.wait(30)
                except subprocess.TimeoutExpired:
                    launcher.kill()


if __name__ == "__main__":
    main()
