#!/usr/bin/env python3
"""What ./dev asks about tests.
  tests.py programs BUILD FILTER   the build targets of the tests whose names match; `all` where
                                   one of them is no program of ours (a Python test, say)
  tests.py count BUILD             how many test cases ran, over all BUILD/test_results/*.json
  tests.py cuda BUILD              of those for CUDA; ends with 1 where none passed or some did not run"""
import collections
import json
import pathlib
import re
import sys

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


def count(build, part=""):
    """Whether it is bad, of the cases in whose name the part is."""
    files = sorted((build / "test_results").glob("*.json"))
    outcomes = collections.Counter(
        outcome for file in files for _, name, outcome in cases(file) if part in name.lower())
    print(f"{outcomes.total()} test cases {'for ' + part + ' ' if part else ''}in {len(files)} programs: "
          f"{outcomes['passed']} passed, {outcomes['skipped']} skipped, {outcomes['failed']} failed")
    return outcomes["failed"] > 0 or outcomes["passed"] == 0 or (part and outcomes["skipped"] > 0)


if __name__ == "__main__":
    if sys.argv[1] == "programs":
        print(*programs(pathlib.Path(sys.argv[2]), sys.argv[3]))
    else:
        sys.exit(bool(count(pathlib.Path(sys.argv[2]), "cuda" if sys.argv[1] == "cuda" else "")))
