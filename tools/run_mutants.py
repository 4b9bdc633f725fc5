#!/usr/bin/env python3
"""run_mutants.py [--jobs N] [--seconds N] [FOLDER]: runs the programs that mutate.py made.

First each kernel's test as it is: it must pass and, where CUDA files were changed, use the GPU. Then
the changed ones: the test must fail, crash or take too long. What passes on a GPU runs again under
compute-sanitizer, where there is one, as the CPU's changes do under the address sanitizer: a read past
the end is seen. Prints a table and fails where a change is never seen."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time


class Runner:
    def __init__(self, folder, seconds, gpu):
        self.folder, self.seconds, self.gpu = folder, seconds, gpu
        self.has_sanitizer = gpu and shutil.which("compute-sanitizer")
        libraries = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "GTEST_FAIL_FAST": "1"}
        if not gpu:  # The address sanitizer does not know the memory that a GPU can read.
            self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def run(self, program, *before):
        """What a program ended with ('passed' where nothing failed), its output and its seconds."""
        begin = time.monotonic()
        try:
            run = subprocess.run([*before, str(self.folder / program)], env=self.environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 timeout=self.seconds)
            end, output = run.returncode, run.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            end, output = "too long", ""
        took = time.monotonic() - begin
        if end == 0:
            return "passed", output, took
        failed = [line[12:].split(",")[0] for line in output.splitlines() if "[  FAILED  ]" in line]
        return failed[0] if failed else f"ended with {end}", output, took

    def unbroken(self, test):
        end, output, took = self.run(test)
        idle = self.gpu and "GPU here" in output  # "no GPU here", "no Hopper GPU here"
        return "no GPU was used" if idle else end, output, took

    def sanitized(self, program):
        return self.run(program, "compute-sanitizer", "--error-exitcode", "9")[0]

    def judge(self, mutant):
        """What the first test that notices ends with ('passed' where none does), and all seconds."""
        begin = time.monotonic()

        def ends():
            for test, program in mutant["tests"].items():
                yield self.run(program)[0], test
            for test, program in mutant["tests"].items() if self.has_sanitizer else ():
                end = self.sanitized(program)
                if end not in ("passed", "too long") and self.sanitized(test) == "passed":
                    yield f"sanitizer: {end}", test

        all_tests = " ".join(mutant["tests"])
        end, test = next((end for end in ends() if end[0] != "passed"), ("passed", all_tests))
        return end, test, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--jobs", type=int, default=6, help="programs at a time")
    parser.add_argument("--seconds", type=int, default=120, help="how long a program may take")
    options = parser.parse_args()
    made = json.loads((options.folder / "mutants.json").read_text())
    runner, mutants = Runner(options.folder.resolve(), options.seconds, made["gpu"]), made["mutants"]
    tests = sorted({test for mutant in mutants for test in mutant["tests"]})
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        void, survived = set(), 0
        for test, (end, output, took) in zip(tests, pool.map(runner.unbroken, tests)):
            print(f"unbroken  {test}  {took:.0f} s  {end}")
            if end != "passed":
                void.add(test)
                print(f"{output[-2000:]}\n{test}: shows nothing, {end} before anything was broken")
        for mutant in mutants:
            for test in void:
                mutant["tests"].pop(test, None)
        mutants = [mutant for mutant in mutants if mutant["tests"]]
        for mutant, (end, test, took) in zip(mutants, pool.map(runner.judge, mutants)):
            survived += end == "passed"
            print(f"{'SURVIVED' if end == 'passed' else 'caught':8}  {mutant['place']}  {test}  "
                  f"{took:.0f} s  {end}\n          - {mutant['old']}\n          + {mutant['new']}",
                  flush=True)
    print(f"{len(mutants)} changes, {survived} of them unnoticed")
    return survived > 0 or bool(void) or not mutants


if __name__ == "__main__":
    sys.exit(main())
