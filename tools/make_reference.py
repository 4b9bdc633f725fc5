#!/usr/bin/env python3
"""make_reference.py TROUPE [FOLDER]: writes docs/reference/RECIPE.md (every recipe key, with type, default and meaning)
and COMMANDS.md (the help of every command) from the program TROUPE. tests/docs_test.py fails where they differ."""
import concurrent.futures
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUBCOMMANDS = re.compile(r"^(?:SUBCOMMANDS|Subcommands):\n((?:  .*\n?)+)", re.M)
ANY_INTEGER = f"an integer from {-2**63} to {2**63 - 1}"
NOTE = "Written by `tools/make_reference.py` from the program; not by hand.\n"


def said(troupe, *words):
    return subprocess.run([troupe, *words], check=True, capture_output=True, text=True).stdout


def commands_in(text):
    """The names that a help text lists, in order."""
    block = SUBCOMMANDS.search(text)
    return re.findall(r"^  (\w+)", block[1], re.M) if block else []


@functools.cache
def helps(troupe):
    """(words, help) of the program, its commands and theirs, each after the one that has it."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        def ask(words):
            return words, said(troupe, *words, "--help")

        top = ask(())
        first = list(pool.map(ask, [(name,) for name in commands_in(top[1])]))
        inner = [list(pool.map(ask, [(*words, name) for name in commands_in(text)])) for words, text in first]
    out = [top]
    for command, below in zip(first, inner):
        out += [command, *below]
    return out


def commands_page(troupe):
    lines = ["# Commands\n", NOTE]
    for words, text in helps(troupe):
        lines.append(f"## {' '.join(('troupe', *words))}\n```text\n{text.strip()}\n```\n")
    return "\n".join(lines)


def recipe_page(troupe):
    keys = said(troupe, "config", "keys").replace(ANY_INTEGER, "an integer")
    return (f"# Recipe keys\n\n{NOTE}\n`troupe config explain KEY` adds what other programs call a key; `troupe config print RECIPE` prints "
            f"a\nrecipe with every value and where it was given. Items of a list are `[]`.\n\n{keys}")


def pages(troupe):
    return {"RECIPE.md": recipe_page(troupe), "COMMANDS.md": commands_page(troupe)}


def main(troupe, folder=ROOT / "docs/reference"):
    for name, text in pages(troupe).items():
        (pathlib.Path(folder) / name).write_text(text)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
