#!/usr/bin/env python3
"""changed.py ROOT SINCE: our files that changed since a commit, committed or not, and all that depend on one of them.
SINCE is a commit, or `yesterday`: the newest commit that is older than a day. Where that is of an earlier week than HEAD,
all counts as changed: so everything is looked at once a week.

A file depends on the headers of ours that it includes; a header, on the files that implement it (whose first include it
is). A file of the build itself or of the linter (EVERYTHING) changes all."""
import collections
import pathlib
import re
import subprocess
import sys

import check_layers

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
EVERYTHING = re.compile(r"(CMakeLists\.txt|CMakePresets\.json|\.clang-tidy|cmake/.*|tools/requirements/.*)$")


def git(root, *words):
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def commit_of(root, since):
    """The commit that SINCE names, or nothing: the history (of a shallow clone, say) does not reach so far, or all counts."""
    if since == "yesterday":
        commit, _, week = git(root, "log", "-1", "--before=1 day ago", "--date=format:%G-%V", "--format=%H %cd").strip().partition(" ")
        return commit if week == git(root, "log", "-1", "--date=format:%G-%V", "--format=%cd").strip() else ""
    found = subprocess.run(["git", "-C", str(root), "merge-base", since, "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


def changed(root, since):
    """The paths from the root that changed; nothing where no commit is known to compare with."""
    commit = commit_of(root, since)
    if not commit:
        return None
    names = git(root, "diff", "--name-only", "--no-renames", commit) + git(root, "ls-files", "--others", "--exclude-standard")
    return set(names.splitlines())


def users(root):
    """path -> the paths that depend on it directly."""
    out = collections.defaultdict(set)
    for name in git(root, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        path = root / name
        if path.suffix not in check_layers.SUFFIXES or not path.is_file():
            continue
        included = INCLUDE.findall(path.read_text())
        for header in included:
            out[header].add(name)
        if path.suffix in (".cpp", ".cu") and included and not path.stem.endswith(("_test", "_bench")):
            out[name].add(included[0])  # what it implements
    return out


def affected(root, since):
    """The changed files and all that depend on one; nothing where that is everything."""
    todo = changed(root, since)
    if todo is None or any(EVERYTHING.match(name) for name in todo):
        return None
    of, reached = users(root), set(todo)
    todo = list(todo)
    while todo:
        new = of.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return reached


if __name__ == "__main__":
    found = affected(pathlib.Path(sys.argv[1]), sys.argv[2])
    print("everything" if found is None else "\n".join(sorted(found)))
