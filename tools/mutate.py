#!/usr/bin/env python3
"""mutate.py [--each N] [--seed N] [--root DIR] [kernel...]: breaks a line of each kernel and expects
its test to fail.

Works on a copy of the tree: for each source file of a kernel's folder (reference and CPU path), one
small mechanical change at a time, such as < to <= or + to -, then the kernel's test is built and run.
A change that does not compile is replaced by another. Fails where a test passes all the same: such a
line needs a test, or does nothing and should go. The choice of lines is a function of the seed."""
import argparse
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import check_sizes

PARTS = ("CMakeLists.txt", "CMakePresets.json", "cmake", "troupe")
# With the address sanitizer, as CI tests too: a loop that runs one step too far is seen.
OPTIONS = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O1 -fsanitize=address",
           "-DTROUPE_TORCH=OFF", "-DTROUPE_CUDA=OFF", "-DTROUPE_BENCHES=OFF")
SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "),
         (" != ", " == "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * "),
         (" += ", " -= "), (" && ", " || "), (" || ", " && "), ("std::max", "std::min"),
         ("std::min", "std::max"), ("true", "false"), ("false", "true")]
NUMBER = re.compile(r"(?<![\w.])(\d+)(?=[;,)\s.\]f])")
# Lines whose change need not be seen: how work is shared out, and sizes that benchmarks report.
SILENT = re.compile(r"^\s*(//|#|template|using|static_assert|TROUPE_CHECK|assert)|grain|reserve\(")
SILENT_FUNCTIONS = {"bytes_moved", "flops", "workspace_bytes"}
TEST_SECONDS = 180


def silent_lines(path):
    """The line numbers of functions that only report a size."""
    run = subprocess.run([*check_sizes.CTAGS, str(path)], capture_output=True, text=True, check=True)
    for tag in map(check_sizes.json.loads, run.stdout.splitlines()):
        if tag["name"] in SILENT_FUNCTIONS:
            yield from range(tag["line"], tag.get("end", tag["line"]) + 1)


def changes(line):
    """All small changes of one line; what stands in a string or a comment is left alone."""
    code = line.split("//")[0]
    if SILENT.match(code) or "grain" in code or '"' in code:
        return
    for old, new in SWAPS:
        for found in re.finditer(re.escape(old), code):
            yield line[:found.start()] + new + line[found.end():]
    for found in NUMBER.finditer(code):
        yield line[:found.start()] + str(int(found[1]) + 1) + line[found.end():]


def candidates(path, rng):
    lines = path.read_text().splitlines()
    silent = set(silent_lines(path))
    found = [(n, new) for n, line in enumerate(lines, 1) if n not in silent for new in changes(line)]
    rng.shuffle(found)
    return lines, found


class Tree:
    """A copy of the project, built without torch and CUDA."""

    def __init__(self, root, folder):
        self.root, self.build = pathlib.Path(folder, "tree"), pathlib.Path(folder, "build")
        self.environment = {**os.environ, "CCACHE_BASEDIR": folder, "CCACHE_NOHASHDIR": "1"}
        self.root.mkdir()
        for part in PARTS:
            copy = shutil.copytree if (root / part).is_dir() else shutil.copy
            copy(root / part, self.root / part)
        self.run("cmake", "-S", self.root, "-B", self.build, *OPTIONS, check=True)

    def run(self, *command, **options):
        return subprocess.run([str(word) for word in command], env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    def kernels(self):
        text = (self.root / "CMakeLists.txt").read_text()
        return re.findall(r"^troupe_kernel\((\w+)", text, re.M)

    def sources(self, kernel):
        folder = self.root / "troupe/kernels" / kernel
        return [p for p in sorted(folder.glob("*.cpp")) if not p.stem.endswith(("_test", "_bench"))]

    def compiles(self, kernel):
        return self.run("ninja", "-C", self.build, "-j", "1", f"{kernel}_test").returncode == 0

    def passes(self, kernel):
        try:
            return self.run(self.build / f"{kernel}_test", timeout=TEST_SECONDS).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def try_file(tree, kernel, path, options):
    """Yields (line number, old line, new line, whether a test failed) for each change tried."""
    rng = random.Random(f"{options.seed} {path.name}")
    lines, found = candidates(path, rng)
    tried = 0
    try:
        for number, new in found:
            if tried == options.each:
                return
            path.write_text("\n".join(lines[:number - 1] + [new] + lines[number:]) + "\n")
            if tree.compiles(kernel):
                tried += 1
                yield number, lines[number - 1].strip(), new.strip(), not tree.passes(kernel)
    finally:
        path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--each", type=int, default=1, help="changes a file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    options = parser.parse_args()
    survived = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(options.root, folder)
        for kernel in options.kernels or tree.kernels():
            if not (tree.compiles(kernel) and tree.passes(kernel)):
                sys.exit(f"{kernel}: its test fails before anything is broken")
            for path in tree.sources(kernel):
                begin = time.monotonic()
                for number, old, new, caught in try_file(tree, kernel, path, options):
                    tried, survived = tried + 1, survived + (not caught)
                    print(f"{'caught' if caught else 'SURVIVED':8}  {kernel}/{path.name}:{number}  "
                          f"{time.monotonic() - begin:.0f} s\n          - {old}\n          + {new}",
                          flush=True)
    print(f"{tried} changes, {survived} of them unnoticed")
    return survived > 0 or tried == 0


if __name__ == "__main__":
    sys.exit(main())
