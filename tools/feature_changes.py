#!/usr/bin/env python3
"""feature_changes.py BASE [NEW]: the rows of docs/reference/FEATURES.md and RELIABILITY.md whose state or tests differ
between commit BASE and NEW (without it, the files of the working tree), as a Markdown page on stdout."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("docs/reference/FEATURES.md", "docs/reference/RELIABILITY.md")
ROW = re.compile(r"^\| *((?:\d+|F\d+(?:, F\d+)*)) *\|(.*)\|([^|]*)\|([^|]*)\| *$")
TESTS = re.compile(r"`[^`]+`(?: \(GPU\))?")
Row = collections.namedtuple("Row", "what state tests note")


def rows_of(text):
    """By (heading, number, how many rows of that number went before): one fault may have several rows."""
    rows, heading, seen = {}, "", collections.Counter()
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        found = ROW.match(line)
        if not found:
            continue
        number, what, state, shown = (cell.strip() for cell in found.groups())
        # A feature's row holds its reason behind the tests, a fault's behind its state.
        state, _, note = state.partition(":")
        note = note.strip() or TESTS.sub("", shown).strip(" ,;")
        rows[heading, number, seen[heading, number]] = Row(what, state, TESTS.findall(shown), note)
        seen[heading, number] += 1
    return rows


def name_of(test):
    """Without its file: a test that moved is the same test."""
    return test.partition(": ")[2] or test


def changes(old, new):
    """(number, feature, state, reason, tests that came, tests that went) of each row that changed, in order."""
    nothing = Row("", "", [], "")
    for key in [*new, *(k for k in old if k not in new)]:
        a, b = old.get(key, nothing), new.get(key, nothing)
        before, after = ({name_of(t) for t in row.tests} for row in (a, b))
        if (a.state, before) == (b.state, after):
            continue
        state = b.state if a.state == b.state else f"{a.state or 'no row'} -> {b.state or 'no row'}"
        yield (key[1], b.what or a.what, state, b.note, [t for t in b.tests if name_of(t) not in before],
               [t for t in a.tests if name_of(t) not in after])


def table(old, new):
    lines = ["| # | what | state | reason | tests that came | tests that went |", "|--:|---|---|---|---|---|"]
    for number, what, state, note, came, went in changes(old, new):
        lines.append(f"| {number} | {what} | {state} | {note} | {', '.join(came)} | {', '.join(went)} |")
    return lines


def text_of(commit, page):
    if commit is None:
        return (ROOT / page).read_text()
    for path in (page, page.replace("docs/reference/", "docs/")):  # where older commits have it
        shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
        if shown.returncode == 0:
            return shown.stdout
    sys.exit(shown.stderr)


def main(base, new=None):
    command = " ".join(["tools/feature_changes.py", base, *([new] if new else [])])
    print(f"# Rows that changed since {base}\n")
    print(f"Written by `python3 {command} > docs/reference/FEATURES_CHANGES.md`:\n"
          "every row of the two pages whose state or whose tests changed. A row that is new has the state `no row` before.")
    for page in PAGES:
        lines = table(rows_of(text_of(base, page)), rows_of(text_of(new, page)))
        print(f"\n## {page} ({len(lines) - 2} rows)\n" + "\n".join(lines))


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
