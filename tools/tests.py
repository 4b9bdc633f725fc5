#!/usr/bin/env python3
"""What ./dev asks about tests.
  tests.py programs BUILD FILTER   the build targets of the tests whose names match; `all` where
                                   one of them is no program of ours (a Python test, say)
  tests.py since BUILD COMMIT      a filter of the tests that depend on what changed since the commit (tools/changed.py);
                                   `.` where that is all of them, nothing where it is none
  tests.py count BUILD             how many test cases ran, over all BUILD/test_results/*.json, and why Python's were skipped
  tests.py verdict BUILD           writes BUILD/verdict, ctest's last line, from BUILD/ctest.log and, where what failed
                                   ran once more, BUILD/ctest_again.log; prints that second run, and as FLAKY what
                                   failed beside others and passed alone
  tests.py cuda BUILD              of those for CUDA; ends with 1 where none passed or some did not run
  tests.py cuda_programs BUILD     the test programs that have cases for CUDA"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import changed
import gpu_cases

ADD_TEST = re.compile(r'^add_test\((?:\[=*\[)?(.+?)(?:\]=*\])? "([^"]+)"', re.M)


def programs(build, pattern):
    listing = (build / "CTestTestfile.cmake").read_text()
    found = [pathlib.Path(program) for name, program in ADD_TEST.findall(listing)
             if re.search(pattern, name)]
    if not found:
        sys.exit(f"no test matches {pattern}; all are listed by: ctest --test-dir {build} -N")
    if any(program.parent != build.resolve() for program in found):
        return ["all"]
    return sorted(program.name for program in found)


def since(root, build, commit):
    reached = changed.affected(root, commit)
    if reached is None:
        return "."
    names = [name for name, _ in ADD_TEST.findall((build / "CTestTestfile.cmake").read_text())]
    tools = any(name.startswith("tools/") for name in reached)
    chosen = [name for name in names if f"troupe/{name}_test.cpp" in reached or f"{name}.py" in reached
              or name == "tools/check_test" and tools]
    return f"^({'|'.join(map(re.escape, chosen))})$" if chosen else ""


def skips(build):
    """reason -> how many cases, of the tests in Python, whose results have it."""
    return collections.Counter(
        case["skipped"][0]["message"] for file in sorted((build / "test_results").glob("*.json"))
        for suite in json.loads(file.read_text())["testsuites"] for case in suite["testsuite"]
        if case.get("skipped") and case["skipped"][0].get("message"))


def cases(file):
    """(suite, name, outcome) of each case in a result file; outcome: passed, failed or skipped."""
    for suite in json.loads(file.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                outcome = "failed"
            elif case["result"] == "COMPLETED":
                outcome = "passed"
            else:
                outcome = "skipped"
            yield suite["name"], case["name"], outcome


def listed(listing):
    """Suite.Case of each case in what a program says to --gtest_list_tests."""
    suite = ""
    for line in listing.splitlines():
        name = line.split("#")[0].strip()
        if not line.startswith("  "):
            suite = name
        else:
            yield suite + name


def without_parameter(case):
    """Suite.Case as the source has it, of All/Suite.Case/cuda."""
    suite, _, name = case.partition(".")
    return f"{suite.split('/')[-1]}.{name.split('/')[0]}"


def for_cuda(listing, links_cuda, waiting=frozenset()):
    """The cases for CUDA in what a program says to --gtest_list_tests: those with `cuda` in their name, and those that wait
    for a GPU by what their source says (gpu_cases.py); all of a program that has none of that name and is linked with CUDA
    kernels, as those for Hopper alone are."""
    cases = list(listed(listing))
    named = [case for case in cases if "cuda" in case.lower()]
    if not named and links_cuda:
        return cases
    return [case for case in cases if case in named or without_parameter(case) in waiting]


def cuda_filter(cases):
    """GoogleTest's filter of a program's cases for CUDA."""
    others = sorted({without_parameter(case) for case in cases if "cuda" not in case.lower()})
    named = ["*cuda*", "*Cuda*", "*CUDA*"] * any("cuda" in case.lower() for case in cases)
    return ":".join(named + [f"*{case}*" for case in others])


def cuda_programs(build, only=()):
    """program -> its cases for CUDA, of the tests that are programs of ours (or of those named alone). Fails where one is
    not built."""
    listing = (build / "CTestTestfile.cmake").read_text()
    cases = "\n".join(line for line in listing.splitlines() if "--gtest_output" in line)  # others, such as prove, are no tests of GoogleTest
    ours = sorted({path for _, program in ADD_TEST.findall(cases) if (path := pathlib.Path(program)).parent == build.resolve()})
    if unknown := set(only) - {program.name for program in ours}:
        sys.exit(f"no such test program: {' '.join(sorted(unknown))}")
    ours = [program for program in ours if not only or program.name in only]
    missing = [program.name for program in ours if not program.exists()]
    if missing:
        sys.exit(f"{len(missing)} test programs are not built: ninja -C {build} {' '.join(missing[:4])}"
                 f"{' ...' if len(missing) > 4 else ''}")
    found, quiet = {}, {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    waiting = gpu_cases.cpp(pathlib.Path(__file__).resolve().parents[1])
    for program in ours:
        said = subprocess.run([program, "--gtest_list_tests"], env=quiet, capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(f"{program} does not list its tests: {said.stderr.strip()}")
        links = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
        if names := for_cuda(said.stdout, "libcudart" in links, waiting):
            found[program.name] = names
    return found


def count(build, part=""):
    """Whether it is bad, of the cases in whose name the part is."""
    files = sorted((build / "test_results").glob("*.json"))
    outcomes = collections.Counter(
        outcome for file in files for _, name, outcome in cases(file) if part in name.lower())
    print(f"{outcomes.total()} test cases {'for ' + part + ' ' if part else ''}in {len(files)} programs: "
          f"{outcomes['passed']} passed, {outcomes['skipped']} skipped, {outcomes['failed']} failed")
    if not part:
        for reason, number in skips(build).most_common(12):
            print(f"  skipped {number}: {reason}")
    return outcomes["failed"] > 0 or outcomes["passed"] == 0 or (part and outcomes["skipped"] > 0)


FAILED = re.compile(r"^\t *\d+ - (\S+) \(", re.M)
PASSED = re.compile(r"Test +#\d+: (\S+) [. ]*Passed", re.M)
VERDICT = re.compile(r"^\d+% tests passed, \d+ tests failed out of (\d+)$", re.M)


def verdict(build):
    """Whether ctest ran no test."""
    first, again = build / "ctest.log", build / "ctest_again.log"
    found = VERDICT.search(first.read_text(errors="replace"))
    if not found:
        return True
    total = int(found[1])
    failed = set(FAILED.findall(first.read_text(errors="replace")))
    if again.exists():
        text = again.read_text(errors="replace")
        print(text)
        flaky = failed & set(PASSED.findall(text))
        failed -= flaky
        for name in sorted(flaky):
            print(f"FLAKY {name}: failed beside others, passed alone; both outputs are above. Mend its cause: a bound on "
                  "time, a port, a sleep")
    share = 100 * (total - len(failed)) // total
    (build / "verdict").write_text(f"{share}% tests passed, {len(failed)} tests failed out of {total}\n")
    return False


if __name__ == "__main__":
    if sys.argv[1] == "verdict":
        sys.exit(verdict(pathlib.Path(sys.argv[2])))
    elif sys.argv[1] == "since":
        print(since(pathlib.Path(__file__).resolve().parents[1], pathlib.Path(sys.argv[2]), sys.argv[3]))
    elif sys.argv[1] == "programs":
        print(*programs(pathlib.Path(sys.argv[2]), sys.argv[3]))
    elif sys.argv[1] == "cuda_programs":
        print(*cuda_programs(pathlib.Path(sys.argv[2])), sep="\n")
    else:
        sys.exit(bool(count(pathlib.Path(sys.argv[2]), "cuda" if sys.argv[1] == "cuda" else "")))
