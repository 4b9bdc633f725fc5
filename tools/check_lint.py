#!/usr/bin/env python3
"""check_lint.py ROOT BUILD [SINCE]: clang-tidy over our .cpp files, as BUILD/compile_commands.json compiles
them, all cores at once; with SINCE, over those that depend on what changed since then (tools/changed.py). A clean result is remembered under the hash of all that it depends on: the
file, the headers of ours that it includes, the flags, .clang-tidy and the pinned versions."""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import changed
import check_format
import check_layers

FAULT = re.compile(r"^/.*:\d+:\d+: (error|warning): ")
EXTRA = [
    # The analyzer looks at each function by itself. Following calls costs 4 times as much on torch
    # headers and gtest bodies, 10 times at worst (ops/support/view.cpp: 73 s against 6), and what it found
    # so were views that it supposed to be null.
    "-Xclang", "-analyzer-config", "-Xclang", "mode=shallow",
    # g++ lets a structured binding into an OpenMP loop; clang does not yet.
    "-fno-openmp", "-fno-openmp-simd",
]
# Each file is looked at with its own includes, not with those that g++ has precompiled (cmake/troupe_pch.cmake).
PRECOMPILED = re.compile(r" -Winvalid-pch| -fpch-preprocess| -include \S*cmake_pch\.hxx")
BATCH = ["--checks=-bugprone-suspicious-include"]  # a batch includes .cpp files: that is its point
REMEMBERED_DAYS = 30


def cache_folder():
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "troupe-lint"


@functools.cache
def with_headers(root, path):
    """The file and, recursively, the headers of ours that it includes."""
    if not path.exists():
        return frozenset()
    return frozenset([path]).union(*(with_headers(root, root / name)
                                     for name in changed.INCLUDE.findall(path.read_text())))


def is_linted(name):
    """Not benches, and not tests that include torch (8 s a file, 5 minutes in all): what g++'s own
    warnings say of these is enough."""
    torch = check_layers.layer_of(name) in check_layers.TORCH.split()
    return not name.endswith("_bench.cpp") and not (torch and name.endswith("_test.cpp"))


def is_batch(path):
    """Files that CMake compiles together (cmake/troupe_unity.cmake), one #include each."""
    return path.parent.name == "Unity"


def shown(root, path):
    if not is_batch(path):
        return path.relative_to(root).as_posix()
    names = changed.INCLUDE.findall(path.read_text())
    return f"{names[0]} and {len(names) - 1} more"


class Linter:
    def __init__(self, root, build):
        self.root, self.build = root.resolve(), build.resolve()
        self.clang_tidy = check_format.tool("clang-tidy")
        pins = sorted((self.root / "tools/requirements").glob("*.txt"))
        self.common = b"".join(p.read_bytes() for p in (self.root / ".clang-tidy", *pins))
        self.commands = self.build / "lint"  # the folder of the build's commands, as clang-tidy gets them
        self.commands.mkdir(exist_ok=True)
        text = (self.build / "compile_commands.json").read_text()
        (self.commands / "compile_commands.json").write_text(PRECOMPILED.sub("", text))

    def units(self):
        """(file, flags) of each .cpp file of ours that the build compiles, alone or in a batch."""
        entries = json.loads((self.commands / "compile_commands.json").read_text())
        flags = {}
        for entry in entries:
            path = pathlib.Path(entry["directory"], entry["file"])
            if path.suffix not in (".cpp", ".cxx") or not path.is_relative_to(self.root):
                continue
            name = path.relative_to(self.root).as_posix()
            looked_at = changed.INCLUDE.findall(path.read_text()) if is_batch(path) else [name] if name.startswith(check_format.TOPS) else []
            if any(map(is_linted, looked_at)):
                flags.setdefault(path, entry["command"])
        return sorted(flags.items())

    def units_since(self, since):
        reached = changed.affected(self.root, since) if since else None
        if reached is None:
            return self.units()
        return [(path, command) for path, command in self.units()
                if reached.intersection(changed.INCLUDE.findall(path.read_text()) if is_batch(path)
                                        else [path.relative_to(self.root).as_posix()])]

    def key(self, path, command):
        digest = hashlib.sha256(self.common + repr((EXTRA, BATCH)).encode())
        words = shlex.split(command.replace(str(self.root), "."))
        digest.update(" ".join(w for w in words if not w.endswith(".o")).encode())
        for file in sorted(with_headers(self.root, path)):
            digest.update(f"\n{file.relative_to(self.root)}\n".encode() + file.read_bytes())
        return digest.hexdigest()

    def lint(self, unit):
        """What clang-tidy says of one file: nothing where it is clean."""
        path, command = unit
        mark = cache_folder() / self.key(path, command)
        if mark.exists():
            mark.touch()
            return path, 0.0, ""
        begin = time.monotonic()
        run = subprocess.run([self.clang_tidy, "--quiet", "-p", str(self.commands),
                              *(f"--extra-arg={word}" for word in EXTRA),
                              *(BATCH if is_batch(path) else []), str(path)],
                             capture_output=True, text=True)
        seconds = time.monotonic() - begin
        if run.returncode == 0:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            return path, seconds, ""
        return path, seconds, run.stdout or run.stderr


def findings(output):
    """A list of single findings, so that one in a header is reported once and not by each includer."""
    found = []
    for line in output.splitlines():
        if FAULT.match(line) or not found:
            found.append(line)
        else:
            found[-1] += "\n" + line
    return found


def forget_old_results():
    for mark in cache_folder().glob("*"):
        if time.time() - mark.stat().st_mtime > REMEMBERED_DAYS * 86400:
            mark.unlink(missing_ok=True)


def main(root, build, since=""):
    forget_old_results()
    linter = Linter(root, build)
    units = linter.units_since(since)
    begin, fresh, told = time.monotonic(), 0, {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, (path, seconds, output) in enumerate(pool.map(linter.lint, units), 1):
            fresh += seconds > 0
            if seconds > 0:
                print(f"[{done}/{len(units)}] {shown(linter.root, path)} {seconds:.0f} s", flush=True)
            for finding in findings(output):
                if finding not in told:
                    told[finding] = path
                    print(finding, flush=True)
    print(f"lint: {len(units)} files{' of ' + str(len(linter.units())) if since else ''}, {fresh} of them looked at anew, {len(told)} findings, "
          f"{time.monotonic() - begin:.0f} s")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), *sys.argv[3:]))
