#!/usr/bin/env python3
"""check_features.py ROOT [BUILD]: docs/FEATURES.md has each row once, in order, and what it says is
shown by a test is: the test stands in the sources and, given a build folder in which all tests ran,
it ran there and passed.

A row is `| number | feature | state | shown by |`. The last column names, in backquotes,
  kernels/permute: PermuteTest.KeepsEveryRow     a case of troupe/kernels/permute/permute_test.cpp
  tests/oracles.py: Mixtral.test_gradients       a case of a Python test
  docs/BENCH.md: Start-up and memory             a section of a page, for what is a measurement
`(GPU)` after a test lets it be skipped where there is no GPU."""
import pathlib
import re
import sys

import tests

ROWS = 230
STATES = ("done", "partly", "open", "out of scope")
ROW = re.compile(r"^\| *(\d+) *\|(.*)\|([^|]*)\|([^|]*)\| *$", re.M)
SHOWN_BY = re.compile(r"`([^`:]+): ([^`]+)`( \(GPU\))?")


def source_of(root, place):
    """The file that holds the tests of `place`: kernels/permute stands for its folder's main file."""
    if place.endswith((".py", ".md")):
        return root / place
    last = place.split("/")[-1]
    for name in (f"troupe/{place}_test.cpp", f"troupe/{place}/{last}_test.cpp", f"{place}_test.cpp"):
        if (root / name).exists():
            return root / name
    return root / f"troupe/{place}_test.cpp"


def stands_in(source, name):
    text = source.read_text()
    if source.suffix == ".md":
        return re.search(rf"^#+ {re.escape(name)}$", text, re.M)
    suite, _, case = name.partition(".")
    suite, case = re.escape(suite), re.escape(case)
    if source.suffix == ".py":
        body = re.search(rf"^class {suite}\b.*\n((?:(?:[ #].*)?\n)*)", text + "\n", re.M)
        return body and re.search(rf"^    def {case}\(", body[1], re.M)
    return re.search(rf"\bTEST(_F|_P)?\(\s*{suite},\s*{case}\s*\)", text) or \
        re.search(rf"\bTYPED_TEST(_P)?\(\s*{suite},\s*{case}\s*\)", text)


def outcomes(root, build, source, name):
    """The outcomes of a test's cases: a parameterised one has several."""
    place = source.relative_to(root).with_suffix("").as_posix()
    if source.suffix == ".cpp":
        place = place.removeprefix("troupe/").removesuffix("_test")
    file = build / "test_results" / (place.replace("/", ".") + ".json")
    if not file.exists():
        return set()
    suite, _, case = name.partition(".")
    return {outcome for s, c, outcome in tests.cases(file)
            if suite in s.split("/") and case == c.split("/")[0]}


def test_fault(root, build, place, name, needs_gpu):
    source = source_of(root, place)
    if not source.exists():
        return f"no file {source.relative_to(root)}"
    if not stands_in(source, name):
        return f"no {name} in {source.relative_to(root)}"
    if build is None or source.suffix == ".md":
        return None
    seen = outcomes(root, build, source, name)
    if not seen:
        return f"{place}: {name} did not run"
    if "failed" in seen:
        return f"{place}: {name} failed"
    if "passed" not in seen and not needs_gpu:
        return f"{place}: {name} was skipped"
    return None


def faults(root, build=None):
    page = root / "docs/FEATURES.md"
    rows = ROW.findall(page.read_text()) if page.exists() else []
    if [int(number) for number, *_ in rows] != list(range(1, ROWS + 1)):
        have = [int(number) for number, *_ in rows]
        missing = sorted(set(range(1, ROWS + 1)) - set(have))
        double = sorted({n for n in have if have.count(n) > 1})
        yield (f"{page}: must hold the rows 1 to {ROWS} in order; missing: {missing or 'none'}, "
               f"double: {double or 'none'}")
    for number, feature, state, shown_by in rows:
        named = SHOWN_BY.findall(shown_by)
        if not feature.strip():
            yield f"{page}: row {number} has no feature"
        if state.strip() not in STATES:
            yield f"{page}: row {number}: state '{state.strip()}' is none of {', '.join(STATES)}"
        if state.strip() in ("done", "partly") and not named:
            yield f"{page}: row {number} is {state.strip()} and names no test"
        if shown_by.count("`") != 2 * len(named):
            yield f"{page}: row {number}: a test is named as `folder/file: Suite.Name`"
        for place, name, needs_gpu in named:
            fault = test_fault(root, build, place, name, bool(needs_gpu))
            if fault:
                yield f"{page}: row {number}: {fault}"


def main(root, build):
    found = list(faults(root, build))
    states = [state.strip() for *_, state, _ in ROW.findall((root / "docs/FEATURES.md").read_text())]
    summary = ", ".join(f"{states.count(s)} {s}" for s in STATES)
    print("\n".join(found) or f"features: {summary}; each named test "
          f"{'stands in the sources' if build is None else 'ran'}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."),
                  pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None))
