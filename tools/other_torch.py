#!/usr/bin/env python3
"""other_torch.py VERSIONS [--jobs N] [--build-only]: builds Troupe for other minor versions of PyTorch than the pinned
one, without CUDA, and tests what a version can change. Called by `./dev test --torch 2.11,2.15` and `./dev build --torch 2.15`.

Of each version: an environment of its own (tools/torch_env.py), build/torch-2.15 with the library, the program and the operators'
tests alone, the operators' tests, the Python layer's tests, one training run, and the wheel in a clean environment. What
passed is printed as rows of the table in docs/develop/RELEASE.md, and kept in build/torch-2.15/torch.json."""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import time

import make_wheel
import tests
import torch_env

ROOT = torch_env.ROOT
OPERATORS, PYTHON, WHEEL = "^ops/", "^tests/[a-z]+_python_test$", "^tests/wheel_test$"
HEAD = """| PyTorch | build | operators' tests | Python tests | one run | wheel in a clean environment |
|---|---|---|---|---|---|"""
RECIPE = """
model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64, moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{kind: text, path: text.txt}], sequence: 32, tokenizer: bytes}
train: {global_batch: 8, steps: 20, optimizer: {lr: 3e-3}, schedule: {warmup: 2}}
checkpoint: {dir: run}
log: {tensorboard: false}
run: {device: cpu}
"""


class Failed(Exception):
    """What did not pass, in the words of a cell."""


def quiet(words, log, **more):
    """Runs it with its output in a file; Failed, after the end of that, where its code is not 0."""
    with log.open("w") as out:
        ran = subprocess.run([str(w) for w in words], stdout=out, stderr=subprocess.STDOUT, check=False, **more)
    if ran.returncode:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise Failed(f"ended with {ran.returncode}, see {log.parent.name}/{log.name}")


def build_folder(version, compiler=""):
    return ROOT / f"build/torch-{version}{'-cuda' if compiler else ''}"


def configure(version, environment, compiler=""):
    """The build folder: with the CUDA half where a compiler is named."""
    build = build_folder(version, compiler)
    build.mkdir(parents=True, exist_ok=True)
    cuda = ["-DTROUPE_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={compiler}"] if compiler else ["-DTROUPE_CUDA=OFF"]
    quiet(["cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DTROUPE_BENCHES=OFF", *cuda,
           f"-DTROUPE_TORCH_ROOT={torch_env.site_of(environment)}", f"-DTROUPE_PYTHON={environment}/bin/python"],
          build / "configure.log")
    return build


def compile_targets(build, jobs, *more):
    """The library and the program, and what else is named. Prints as it goes: it may take half an hour."""
    words = ["ninja", "-C", build, "-j", jobs, "libtroupe.so", "troupe_program", *more]
    if code := subprocess.run([str(w) for w in words], check=False).returncode:
        raise Failed(f"ninja ended with {code}")


def run_tests(build, name, pattern, **variables):
    """How many cases of these tests passed and were skipped; Failed where a test did not pass, or no case ran."""
    results = build / "test_results"
    shutil.rmtree(results, ignore_errors=True)
    words = ["ctest", "--test-dir", build, "--no-tests=error", "--output-on-failure", "-j", 2 * (os.cpu_count() or 1) + 1, "-R", pattern]
    failed = ""
    try:
        quiet(words, build / f"ctest_{name}.log", env={**os.environ, **variables})
    except Failed as why:
        failed = f", {why}"
    outcomes = collections.Counter(outcome for file in results.glob("*.json") for _, _, outcome in tests.cases(file))
    said = ", ".join(f"{outcomes[what]} {what}" for what in ("passed", "skipped", "failed") if outcomes[what])
    if failed or not outcomes["passed"]:
        raise Failed((said or "no case ran") + failed)
    return said


def train(build):
    """20 steps of a small mixture on the CPU; the loss is to fall."""
    folder = build / "run_test"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "text.txt").write_text("The cat sat on the mat. " * 300)
    (folder / "nano.yaml").write_text(RECIPE)
    quiet([build / "troupe", "train", "nano.yaml"], build / "run.log", cwd=folder)
    return fall((folder / "run/log.jsonl").read_text())


def fall(log):
    """"5.61 to 3.07" of a run's log; Failed where the loss did not fall."""
    rows = [row for row in map(json.loads, log.splitlines()) if "event" not in row]
    if not rows or not rows[-1]["loss"] < rows[0]["loss"] - 0.5:
        raise Failed(f"the loss did not fall: {[row['loss'] for row in rows]}")
    return f"loss {rows[0]['loss']:.3f} to {rows[-1]['loss']:.3f} in {len(rows)} steps"


def wheel(build):
    """The wheel, and its tests with that very file."""
    made = make_wheel.build_wheel(build, build / "dist")
    return f"{made.stat().st_size / 1e6:.1f} MB, {run_tests(build, 'wheel', WHEEL, TROUPE_WHEEL=str(made))}"


def timed(what):
    """(whether it passed, the cell)"""
    begin = time.monotonic()
    try:
        said, passed = what(), True
    except Failed as why:
        said, passed = f"FAILED: {why}", False
    return passed, f"{said}{', ' if said else ''}{time.monotonic() - begin:.0f} s"


def row(version, cells):
    return "| " + " | ".join([version, *(cells.get(name, "not run") for name in ("build", "operators", "python", "run", "wheel"))]) + " |"


def build_all(version, environment, arguments):
    build = configure(version, environment)
    # moe_block: what layers_python_test compares with.
    programs = [] if arguments.build_only else sorted({*tests.programs(build, OPERATORS), "moe_block"})
    compile_targets(build, arguments.jobs, *programs)
    return f"{(build / 'libtroupe.so').stat().st_size / 1e6:.1f} MB"


def try_version(version, arguments):
    """The row of a version, and whether all that ran passed."""
    print(f"== PyTorch {version}: its environment", flush=True)
    environment, build = torch_env.environment(version), build_folder(version)
    exact = torch_env.version_of(environment)
    parts = {"build": lambda: build_all(version, environment, arguments)}
    if not arguments.build_only:
        parts |= {"operators": lambda: run_tests(build, "operators", OPERATORS), "python": lambda: run_tests(build, "python", PYTHON),
                  "run": lambda: train(build), "wheel": lambda: wheel(build)}
    cells, all_passed = {}, True
    for name, what in parts.items():
        print(f"== PyTorch {exact}: {name}", flush=True)
        passed, cells[name] = timed(what)
        print(cells[name], flush=True)
        all_passed = all_passed and passed
        if name == "build" and not passed:
            break
    (build / "torch.json").write_text(json.dumps({"torch": exact, "cells": cells, "passed": all_passed}, indent=1) + "\n")
    return row(exact, cells), all_passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", help="2.11,2.15; or oldest, newest, all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build-only", action="store_true", help="the library and the program, and nothing else")
    arguments = parser.parse_args()
    rows = [try_version(version, arguments) for version in torch_env.asked(arguments.versions)]
    print("\n" + HEAD, *(text for text, _ in rows), sep="\n")
    return 0 if all(passed for _, passed in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
