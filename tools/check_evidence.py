#!/usr/bin/env python3
"""check_evidence.py ROOT, a part of check_features.py: checks that figures, commits and GPU results cited in the docs exist.
- Each figure in a row of docs/reference/FEATURES.md that cites sections of docs/bench occurs in one of these sections. Figures are
  numbers with a decimal point or a comma, with three digits, or followed by % or x; spellings count as equal (0.90 and 0.9). A number
  before the word `asked` is a requirement, not a measurement: "0.9 asked of weight gradients (0.86)", "1% asked".
- Each commit that a page names exists in the git history, as a commit or as the hash of a tree, or docs/bench/BENCH.md lists it under
  "Commits that history does not have" with all pages that name it. Skipped where there is no git history.
- The marked blocks of BENCH.md and FEATURES.md are what tools/evidence.py generates from docs/bench/evidence.json, and each run in
  that file names a commit of the history.
- No GPU test that a row of FEATURES.md names failed in its last recorded run.
Stale evidence is reported and is no fault. A C++ test's result is stale if, since its commit, more than ALLOWED lines were added or
removed in its file and the files that it includes, directly or not; a Python test's, which runs the whole program, if more than
ALLOWED_PYTHON lines changed in any source file."""
import bisect
import collections
import pathlib
import re
import subprocess
import sys

import changed
import check_features
import evidence

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
CITED = re.compile(rf"(?<![\w.,])({NUMBER})(%| %|x)?(?![\w.]*\w)")
ASKED = re.compile(rf"(?:{NUMBER}(?:%|x)?(?:, | and | to | ))+asked\b")
# A commit hash contains a digit and a letter, or follows the word `commit`; it is no part of a name, a path or a longer word.
COMMIT = re.compile(r"(?<![\w./#-])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}(?![\w.-]*\w)|(?<=commit )[0-9a-f]{7,40}\b")
LOST = "Commits that history does not have"
BENCH = "docs/bench/BENCH.md"
ALLOWED, ALLOWED_PYTHON = 200, 2000
# Pages that name commits of other projects.
OTHERS = ("docs/reference/CONVERSIONS.md", "docs/guide/megablocks.md")


def section(text, name):
    """A section of a page with those under it."""
    head = re.search(rf"^(#+) {re.escape(name)}$", text, re.M)
    if not head:
        return ""
    rest = text[head.end():]
    end = re.search(rf"^#{{1,{len(head[1])}}} ", rest, re.M)
    return rest[:end.start()] if end else rest


def number(text):
    return float(text.replace(",", ""))


def figures(text):
    """The numbers that a row's text cites as measured."""
    text = ASKED.sub("", re.sub(r"`[^`]*`", "", text))
    for digits, kind in CITED.findall(text):
        if kind or "." in digits or "," in digits or len(digits) > 2:
            yield digits


def figure_faults(root):
    page = root / "docs/reference/FEATURES.md"
    for row, _, _, shown_by in check_features.ROW.findall(page.read_text()):
        cited = [(place, name) for place, name, _ in check_features.SHOWN_BY.findall(shown_by) if place.endswith(".md")]
        if not any(place.startswith("docs/bench/") for place, _ in cited):
            continue
        text = "\n".join(section((root / place).read_text(), name) for place, name in cited if (root / place).exists())
        there = {number(digits) for digits in re.findall(NUMBER, text)}
        for digits in figures(shown_by):
            if number(digits) not in there:
                yield (f"{page}: row {row}: {digits} stands in no section that it cites: cite the one that has it, write what that "
                       "page says, or `asked` behind what was not measured")


def pages(root):
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "*.md"], capture_output=True, text=True).stdout.split()
    return [name for name in listed if name not in OTHERS and (root / name).exists()]


def commit_faults(root, known):
    names = sorted([*known, *known.values()])

    def exists(name):
        at = bisect.bisect_left(names, name)
        return at < len(names) and names[at].startswith(name)

    bench = (root / BENCH).read_text()
    list_of_lost = section(bench, LOST)
    lost, named = set(COMMIT.findall(list_of_lost)), set()
    for page in pages(root):
        text = (root / page).read_text()
        text = text.replace(list_of_lost, "") if page == BENCH and list_of_lost else text
        for name in dict.fromkeys(COMMIT.findall(text)):
            named.add(name)
            if not exists(name) and name not in lost:
                yield f"{root / page}: commit {name} is not in history: name one that is, or the hash of its tree"
    for name in sorted(lost):
        if exists(name) or name not in named:
            yield f"{root / BENCH}: {LOST}: {name} is {'in history' if exists(name) else 'named by no page'}: leave it out"


def block_faults(root, known):
    try:
        found = evidence.read(root)
    except ValueError as error:
        yield f"{root / evidence.FILE}: is not JSON: {error}"
        return
    for page, blocks in evidence.PAGES.items():
        text = (root / page).read_text() if (root / page).exists() else ""
        if [name for _, name, _ in evidence.BLOCK.findall(text)] != list(blocks):
            yield f"{root / page}: has not the marked blocks {', '.join(blocks)} of tools/evidence.py"
        elif evidence.filled(root, text, found) != text:
            yield f"{root / page}: a block is not what {evidence.FILE} says: python3 tools/evidence.py write"
    for device, of in found.items():
        for commit, run in of["runs"].items():
            if known and not any(c.startswith(commit) and tree == run["tree"] for c, tree in known.items()):
                yield f"{root / evidence.FILE}: {device}: history has no commit {commit} of tree {run['tree']}"
        named = {entry["commit"] for kind in ("tests", "gates", "figures") for entry in of[kind].values()}
        for commit in sorted(named - set(of["runs"])):
            yield f"{root / evidence.FILE}: {device}: no run of commit {commit}, which entries have"
        for name in evidence.gpu_tests(root):
            test = of["tests"].get(name)
            if test and test["result"] not in ("passed", "skipped"):
                yield f"{root / evidence.FILE}: {device}: {name}: {test['result']} at {test['commit']}, and a row names it"


def faults(root):
    known = evidence.history(root)
    yield from figure_faults(root)
    if known and (root / BENCH).exists():
        yield from commit_faults(root, known)
    if (root / evidence.FILE).exists():
        yield from block_faults(root, known)


def depends_on(root):
    """path -> the paths that it depends on directly, itself among them."""
    out = collections.defaultdict(set)
    for path, users in changed.users(root).items():
        for user in users:
            out[user].add(path)
    return out


def closure(direct, path):
    reached, todo = {path}, [path]
    while todo:
        new = direct.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return reached


def is_stale(file, lines, direct):
    """Whether evidence of a test's file is, by how many lines of each path came or went since."""
    if file.endswith(".py"):
        return sum(n for path, n in lines.items() if path == file or path.startswith(("troupe/", "apps/", "python/"))) > ALLOWED_PYTHON
    return sum(lines.get(path, 0) for path in closure(direct, file)) > ALLOWED


def ages(root):
    """How many of the tests that rows name as a GPU's ran on one, and how many of these long ago, in words; the best of all
    devices counts."""
    found, names = evidence.read(root), evidence.gpu_tests(root)
    known = evidence.history(root)
    if not known or not names:
        return ""
    direct, lines, fresh, stale = depends_on(root), {}, set(), set()
    for name in names:
        for of in found.values():
            test = of["tests"].get(name)
            if not test or test["result"] != "passed" or not changed.has(root, test["commit"]):
                continue
            commit = test["commit"]
            if commit not in lines:
                lines[commit] = changed.lines_of(root, commit, changed.since_tree(root, commit)[0])
            (stale if is_stale(name.partition(":")[0], lines[commit], direct) else fresh).add(name)
    rows = sorted({row for name in stale - fresh for row in names[name]}, key=int)
    return (f"of {len(names)} tests of a GPU {len(fresh)} are fresh, {len(stale - fresh)} stale"
            + (f" (rows {', '.join(rows)})" if rows else "") + f", {len(names) - len(fresh | stale)} have no evidence")


if __name__ == "__main__":
    found_faults = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found_faults) or f"evidence: ok; {ages(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.'))}")
    sys.exit(bool(found_faults))
