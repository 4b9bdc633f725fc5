#!/usr/bin/env python3
"""check_features.py ROOT [BUILD [--strict]]: docs/reference/FEATURES.md has each row once, in order, and what it,
docs/reference/RELIABILITY.md and the promises of README.md say is shown by a test is: the test stands in the sources
and, given a build folder in which all tests ran, it ran there and passed.

A row is `| number | feature | state | shown by |`, of the faults `| F1, F2 | fault | state | test |`. The
last column names, in backquotes,
  kernels/permute: PermuteTest.KeepsEveryRow     a case of troupe/kernels/permute/permute_test.cpp
  tests/oracles.py: Mixtral.test_gradients       a case of a Python test
  docs/bench/BENCH.md: Start-up and memory       a section of a page, for what is a measurement
  tests/fuzz/recipe_fuzz.cpp                     a fuzzer, of a fault
A test that was skipped shows nothing. `(GPU)` after it says that what it shows, it shows on a GPU: of its
cases those for CUDA count alone. Where no CUDA case at all passed there was no GPU; the row then rests on
a run elsewhere (.ci/gpu), and the last line tells which rows do. A row that is partly, and says what is
missing, may name a test that skips where a package is not installed. A fault's row has no such excuse:
what a machine without strace or name spaces skips is not shown there.

Figures and commits that the pages cite must exist, and what is written of GPUs' evidence must be that: check_evidence.py.

A skipped test is a fault with --strict alone, as .ci/run has it; else the last line tells how many rows rest on one."""
import pathlib
import re
import sys

import tests

ROWS = 254
STATES = ("done", "partly", "open", "out of scope")
FAULT_STATES = ("shown", "partly", "open")
ROW = re.compile(r"^\| *(\d+) *\|(.*)\|([^|]*)\|([^|]*)\| *$", re.M)
FAULT_ROW = re.compile(r"^\| *(F\d+(?:, F\d+)*) *\|(.*)\|([^|]*)\|([^|]*)\| *$", re.M)
TOTAL = re.compile(r"Of (\d+) faults (\d+) are\s+shown, (\d+) partly, (\d+) open")
SHOWN_BY = re.compile(r"`([^`:]+): ([^`]+)`( \(GPU\))?")
PROMISES = re.compile(r"^## (\w+) promises, tested$(.*?)(?=^## |\Z)", re.M | re.S)
PROMISE = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", re.M | re.S)
NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six")
FUZZER = re.compile(r"`(tests/fuzz/\w+\.cpp)`")


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


class Results:
    """What a run of all tests left in a build folder, if one is given."""

    def __init__(self, root, build, strict=True):
        self.root, self.build, self.strict, self.skipped = root, build, strict, set()
        self.gpu = build is not None and any(
            outcome == "passed" and self.is_for_cuda(case)
            for file in (build / "test_results").glob("*.json") for _, case, outcome in tests.cases(file))

    @staticmethod
    def is_for_cuda(case):
        return "cuda" in case.partition("/")[2].lower()

    def outcomes(self, source, name, on_gpu):
        """The outcomes of a test's cases: a parameterized one has several, of which `on_gpu` takes those
        for CUDA, if any are named so."""
        place = source.relative_to(self.root).with_suffix("").as_posix()
        if source.suffix == ".cpp":
            place = place.removeprefix("troupe/").removesuffix("_test")
        file = self.build / "test_results" / (place.replace("/", ".") + ".json")
        if not file.exists():
            return set()
        suite, _, case = name.partition(".")
        found = [(c, outcome) for s, c, outcome in tests.cases(file)
                 if suite in s.split("/") and case == c.split("/")[0]]
        of_gpu = [(c, outcome) for c, outcome in found if on_gpu and self.is_for_cuda(c)]
        return {outcome for _, outcome in of_gpu or found}


def test_fault(results, place, name, needs_gpu=False):
    root = results.root
    source = source_of(root, place)
    if not source.exists():
        return f"no file {source.relative_to(root)}"
    if not stands_in(source, name):
        return f"no {name} in {source.relative_to(root)}"
    if results.build is None or source.suffix == ".md":
        return None
    seen = results.outcomes(source, name, needs_gpu)
    if not seen:
        return f"{place}: {name} did not run"
    if "failed" in seen:
        return f"{place}: {name} failed"
    if "passed" not in seen and (results.gpu or not needs_gpu):
        results.skipped.add((place, name))
        if not results.strict:
            return None
        return f"{place}: {name} was skipped" + (", and a GPU is here" if needs_gpu else "")
    return None


def rests_on_a_gpu(results, shown_by):
    """Whether a test of the row waits for a machine with a GPU."""
    if results.build is None or results.gpu:
        return False
    return any(needs_gpu for _, _, needs_gpu in SHOWN_BY.findall(shown_by))


def feature_faults(results):
    page = results.root / "docs/reference/FEATURES.md"
    rows = ROW.findall(page.read_text()) if page.exists() else []
    if [int(number) for number, *_ in rows] != list(range(1, ROWS + 1)):
        have = [int(number) for number, *_ in rows]
        missing = sorted(set(range(1, ROWS + 1)) - set(have))
        double = sorted({n for n in have if have.count(n) > 1})
        yield (f"{page}: must hold the rows 1 to {ROWS} in order; missing: {missing or 'none'}, "
               f"double: {double or 'none'}")
    for number, feature, state, shown_by in rows:
        named = SHOWN_BY.findall(shown_by)
        is_partly = state.strip() == "partly" and "missing: " in shown_by
        if not feature.strip():
            yield f"{page}: row {number} has no feature"
        if state.strip() not in STATES:
            yield f"{page}: row {number}: state '{state.strip()}' is none of {', '.join(STATES)}"
        if state.strip() in ("done", "partly") and not named:
            yield f"{page}: row {number} is {state.strip()} and names no test"
        if shown_by.count("`") != 2 * len(named):
            yield f"{page}: row {number}: a test is named as `folder/file: Suite.Name`"
        for place, name, needs_gpu in named:
            fault = test_fault(results, place, name, bool(needs_gpu))
            if fault and not (is_partly and fault.endswith("was skipped")):
                yield f"{page}: row {number}: {fault}"


def states_of_faults(rows):
    """How many faults are shown, partly shown and open: one of several rows is what the worst says."""
    worst = {}
    for faults_of, _, state, _ in rows:
        word = re.split(r"\W", state.strip())[0]
        rank = FAULT_STATES.index(word) if word in FAULT_STATES else len(FAULT_STATES)
        for fault in faults_of.split(", "):
            worst[fault] = max(worst.get(fault, 0), rank)
    return [list(worst.values()).count(rank) for rank in range(len(FAULT_STATES))]


def reliability_faults(results):
    page = results.root / "docs/reference/RELIABILITY.md"
    text = page.read_text() if page.exists() else ""
    rows = FAULT_ROW.findall(text)
    if len(rows) != len(re.findall(r"^\| *F\d", text, re.M)):
        yield f"{page}: a row is | F1, F2 | fault | state | test |"
    counts = states_of_faults(rows)
    total = [sum(counts), *counts]
    if TOTAL.findall(text) != [tuple(map(str, total))]:
        yield f"{page}: must say once: Of {total[0]} faults {total[1]} are shown, {total[2]} partly, {total[3]} open"
    for number, _, state, shown_by in rows:
        if re.split(r"\W", state.strip())[0] not in FAULT_STATES:
            yield f"{page}: {number}: state '{state.strip()}' begins with none of {', '.join(FAULT_STATES)}"
        named, fuzzers = SHOWN_BY.findall(shown_by), FUZZER.findall(shown_by)
        if shown_by.count("`") != 2 * (len(named) + len(fuzzers)) or not named + fuzzers:
            yield f"{page}: {number}: a test is named as `folder/file: Suite.Name`, or a fuzzer by its file"
        for fuzzer in fuzzers:
            if not (results.root / fuzzer).exists():
                yield f"{page}: {number}: no file {fuzzer}"
        for place, name, _ in named:
            fault = test_fault(results, place, name)
            if fault:
                yield f"{page}: {number}: {fault}"


def promise_faults(results):
    page = results.root / "README.md"
    sections = PROMISES.findall(page.read_text()) if page.exists() else []
    if len(sections) != 1:
        yield f"{page}: has one section '## Four promises, tested'"
        return
    (number, section), = sections
    promises = PROMISE.findall(section)
    if number not in NUMBERS or NUMBERS.index(number) != len(promises):
        yield f"{page}: {number} promises are {len(promises)}"
    for promise, text in promises:
        named = SHOWN_BY.findall(text)
        if not named:
            yield f"{page}: '{promise}' names no test"
        for place, name, needs_gpu in named:
            fault = test_fault(results, place, name, bool(needs_gpu))
            if fault:
                yield f"{page}: '{promise}': {fault}"


def faults(root, build=None):
    yield from faults_of(Results(root, build))


def faults_of(results):
    yield from feature_faults(results)
    yield from reliability_faults(results)
    yield from promise_faults(results)


def main(root, build, strict):
    import check_evidence  # which reads rows by this file
    results = Results(root, build, strict)
    found, rows = [*faults_of(results), *check_evidence.faults(root)], ROW.findall((root / "docs/reference/FEATURES.md").read_text())
    states = [state.strip() for *_, state, _ in rows]
    summary = ", ".join(f"{states.count(s)} {s}" for s in STATES)
    waiting = [number for number, _, _, shown_by in rows if rests_on_a_gpu(results, shown_by)]
    print("\n".join(found) or f"features: {summary}; each named test "
          f"{'stands in the sources' if build is None else 'ran'}"
          + (f", but of rows {', '.join(waiting)} those that need a GPU" if waiting else "")
          + (f", and {len(results.skipped)} were skipped for what this machine lacks" if results.skipped else "")
          + (f"; {age}" if (age := check_evidence.ages(root)) else ""))
    return bool(found)


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--strict"] or ["."]
    sys.exit(main(pathlib.Path(arguments[0]), pathlib.Path(arguments[1]) if len(arguments) > 1 else None,
                  "--strict" in sys.argv))
