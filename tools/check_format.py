#!/usr/bin/env python3
"""check_format.py ROOT [--check | --fix]: every source file as clang-format lays it out."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

TOPS = ("troupe", "apps", "python", "tests", "bench", "examples")
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}


def tool(name, *others):
    """The pinned program of .venv, or else one of the same name, or of the other names, on PATH. A
    wheel's own binary goes before its entry in .venv/bin, which starts Python for each file."""
    venv = pathlib.Path(__file__).resolve().parent.parent / ".venv"
    package = name.replace("-", "_")
    ours = [*venv.glob(f"lib/python3*/site-packages/{package}/data/bin/{name}"), venv / "bin" / name]
    found = [str(p) for p in ours if p.exists()]
    found += [p for n in (*others, name) if (p := shutil.which(n))]
    if not found:
        sys.exit(f"{name} is missing: run ./dev setup")
    return found[0]


def sources(root):
    return sorted(p for top in TOPS for p in (root / top).rglob("*") if p.suffix in SUFFIXES)


def formatted(path):
    style = pathlib.Path(__file__).resolve().parent.parent / ".clang-format"
    run = subprocess.run([tool("clang-format", "clang-format-14"), f"--style=file:{style}", str(path)],
                         capture_output=True, text=True, check=True)
    return run.stdout


def differing(root):
    """The files that clang-format would change, each with what it would make of them."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, text in zip(files := sources(root), pool.map(formatted, files)):
            if text != path.read_text():
                yield path, text


def faults(root):
    for path, text in differing(root):
        lines = zip(path.read_text().splitlines() + [None], text.splitlines() + [None])
        first = next((n for n, (a, b) in enumerate(lines, 1) if a != b), 1)
        yield f"{path}:{first}: not as clang-format lays it out; run ./dev format"


def main(root, mode):
    if mode == "--fix":
        for path, text in differing(root):
            path.write_text(text)
            print(f"formatted {path}")
        return 0
    found = list(faults(root))
    print("\n".join(found) or "format: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."),
                  sys.argv[2] if len(sys.argv) > 2 else "--check"))
