#!/usr/bin/env python3
"""changed.py ROOT SINCE: our files that changed since a commit, committed or not, and all that depend on one of them.
SINCE is a commit, or `yesterday`: the newest commit that is older than a day. Where that is of an earlier week than HEAD,
all counts as changed: so everything is looked at once a week.

A file depends on the headers of ours that it includes; a header, on the files that implement it (implemented_by()). A file
of the build itself or of the linter (EVERYTHING) changes all. A file that was only moved has not changed, nor
has one that follows such a move: same_but_for_moves()."""
import collections
import pathlib
import re
import subprocess
import sys

import check_layers

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
# troupe_unity.cmake tells only which files are compiled together: that changes no file.
EVERYTHING = re.compile(r"(CMakeLists\.txt|CMakePresets\.json|\.clang-tidy|cmake/(?!troupe_unity\.cmake$).*|tools/requirements/.*)$")
QUOTED_INCLUDES = re.compile(r'(?:^\s*#\s*include\s*"[^"\n]+".*\n?)+', re.M)
# Or a string, which may hold what looks like one.
COMMENT = re.compile(r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)
PATH = re.compile(r"[\w.]+(?:/[\w.]+)+")
FOLDERS = re.compile(r"(?:[\w.]+/)+(?=\w)")


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
    differing, _ = since_tree(root, commit)
    return differing | set(git(root, "ls-files", "--others", "--exclude-standard").splitlines())


def since_tree(root, commit):
    """The tracked paths that changed since a commit, or a tree; old name -> new name of moved files."""
    pairs, out = compared(root, commit)
    moves = moves_of(pairs)
    for old, new in pairs:
        if not same_but_for_moves(new, git(root, "show", f"{commit}:{old}"), (root / new).read_text(errors="replace"), moves):
            out |= {old, new}
    return out, moves


def has(root, name):
    """Whether the repository has a commit, or a tree, of this name."""
    return subprocess.run(["git", "-C", str(root), "cat-file", "-e", f"{name}^{{tree}}"], capture_output=True).returncode == 0


def lines_of(root, commit, paths):
    """path -> lines that came or went since, of these paths."""
    out = {}
    for line in git(root, "diff", "--numstat", "--no-renames", commit).splitlines():
        came, went, path = line.split("\t")
        if path in paths:
            out[path] = sum(int(n) if n.isdigit() else 1 for n in (came, went))
    return out


def compared(root, commit):
    """The pairs (path at the commit, path now) of files that are there still, perhaps under a new name; the paths of all
    other files that the commit and the tree do not share."""
    pairs, lone = [], set()
    words = git(root, "diff", "--name-status", "-z", "-M", "-l0", commit).split("\0")[:-1]
    while words:
        status, path = words.pop(0), words.pop(0)
        if status[0] == "R":
            pairs.append((path, words.pop(0)))
        elif status[0] == "M" and (root / path).is_file():
            pairs.append((path, path))
        else:
            lone.add(path)
    return pairs, lone


def moves_of(pairs):
    """old name -> new name, in the forms that files give: troupe/nn/x.h; nn/x.h; nn/x (as CMake's functions take it), also
    where the file is nn/x_test.cpp."""
    out = {}
    for old, new in pairs:
        if old == new:
            continue
        out[old] = new
        old, new = old.removeprefix("troupe/"), new.removeprefix("troupe/")
        out[old] = new
        old, new = old.rpartition(".")[0], new.rpartition(".")[0]
        out[old] = new
        if old.endswith("_test") and new.endswith("_test"):
            out.setdefault(old.removesuffix("_test"), new.removesuffix("_test"))
    return out


def same_but_for_moves(path, old, new, moves):
    """Whether the text of a file is what it was, but that it names moved files by their new names: in a source, in its
    includes, whose order within a block counts for nothing, and in comments, where any folders count for nothing; in a file
    of CMake, everywhere."""
    if old == new:
        return True
    if pathlib.Path(path).suffix in check_layers.SUFFIXES:
        return without_folders(old, moves) == without_folders(new, {})
    if path.endswith(("CMakeLists.txt", ".cmake")):
        return PATH.sub(lambda found: moves.get(found[0], found[0]), old) == new
    return False


def without_folders(text, moves):
    """A source as same_but_for_moves() compares it."""
    def renamed(found):
        return moves.get(found[0], found[0])

    def comment(found):
        return found[0] if found[0][0] in '"R' else FOLDERS.sub("", PATH.sub(renamed, found[0]))

    text = QUOTED_INCLUDES.sub(lambda block: "".join(sorted(PATH.sub(renamed, block[0]).splitlines(keepends=True))), text)
    return COMMENT.sub(comment, text)


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
        if path.suffix in (".cpp", ".cu") and not path.stem.endswith(("_test", "_bench")):
            out[name].update(implemented_by(name, included))
    return out


def implemented_by(name, included):
    """The headers that a source may implement: the one of its folder that it includes first of all, or, where that is
    another folder's, as in kernels, all of its folder's."""
    own = [header for header in included if header.rpartition("/")[0] == name.rpartition("/")[0]]
    return own[:1] if own and own[0] == included[0] else own


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
