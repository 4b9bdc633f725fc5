#!/usr/bin/env python3
"""What ./dev asks about tests.
  tests.py programs BUILD FILTER   the build targets of the tests whose names match; `all` where
                                   one of them is no program of ours (a Python test, say)
  tests.py count BUILD             how many test cases ran, over all BUILD/test_results/*.json"""
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


def count(build):
    files = sorted((build / "test_results").glob("*.json"))
    outcomes = collections.Counter(outcome for file in files for _, _, outcome in cases(file))
    print(f"{outcomes.total()} test cases in {len(files)} programs: {outcomes['passed']} passed, "
          f"{outcomes['skipped']} skipped, {outcomes['failed']} failed")
    return outcomes["failed"] > 0 or outcomes["passed"] == 0


if __name__ == "__main__":
    if sys.argv[1] == "programs":
        print(*programs(pathlib.Path(sys.argv[2]), sys.argv[3]))
    else:
        sys.exit(count(pathlib.Path(sys.argv[2])))
