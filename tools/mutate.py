#!/usr/bin/env python3
"""mutate.py BUILD [--cuda] [--each N] [--reach N] [--seed N] [--again TABLE] [--jobs N] [--keep FOLDER]
[--flags=F] [kernel...]: breaks a line of each file of a kernel and expects the kernel's test to fail.

BUILD is a finished build of the tree as it is, best one with sanitizers: its flags, libraries and tests
are used, and nothing in it or in the tree is changed. Each file of a kernel's folder (with --cuda its .cu
and .cuh files and those of kernels/device, else .cpp and .h, but not its contract) gets one small change at a time, such as <
to <= or + to -. The source files that the change reaches, with --reach N so many of them, are compiled, and
the tests of their kernels linked with them: one of these must notice. A change that does not compile, or in
a header leaves the code of all as it was, is replaced by another. Then run_mutants.py runs the tests and
tells of changes that all pass: such a line needs a test, or does nothing and should go. The choice of lines
is a function of the seed; what a former run's table calls SURVIVED comes on top with --again.

With --keep the programs stay in FOLDER, beside the libraries they load and run_mutants.py, for a machine
that has a GPU and need have no compiler."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading

SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "),
         (" != ", " == "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * "),
         (" += ", " -= "), (" && ", " || "), (" || ", " && "), ("std::max", "std::min"),
         ("std::min", "std::max"), ("true", "false"), ("false", "true")]
# But not a tiny number's exponent, the grain of a pool, nor unused shared memory: `<<<blocks, kThreads, 0, stream>>>`.
NUMBER = re.compile(r"(?<![\w.])(?<!\de-)(\d+)(?=[;,)\s.\]f])(?!, (\[&|[\w.]*stream))")
# Lines whose change need not be seen: how work is shared out (also a named whole number, which is the
# same wherever it is used), what only saves time, and sizes that benchmarks report.
SILENT = re.compile(r"^\s*(//|#|template|using|static_assert|TROUPE_CHECK|assert"
                    r"|(static |inline )*constexpr (int|int64_t|uint32_t|unsigned) k\w+ = \d+;)"
                    r"|grain|PerRange|reserve\(|__launch_bounds__|prefetch|kSpinCycles"
                    r"|int device = 0, value = 0;")
SILENT_ALIAS = re.compile(r"\s*using \w+ =")  # Up to its semicolon.
SILENT_FUNCTION = re.compile(r"\w.*\b(bytes_moved|flops|workspace_bytes)\(.*\{$")
TARGET = re.compile(r"CMakeFiles/kernel_(\w+?)(_cuda)?\.dir/")
ARCHITECTURE = re.compile(r"--generate-code=arch=compute_(\w+),")
# nvcc's process's number, which ends in the object: in the names of its temporary files, and of an
# unnamed namespace where nothing else tells it from other files'.
TEMPORARY = re.compile(rb"tmpxft_[0-9a-f]+_[0-9a-f]+|(?<=_cu_[0-9a-f]{8}_)\d+")
# Libraries of the compiler and of libc: the other machine has them, as new or newer.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux|linux-vdso")


def changes(line):
    """All small changes of one line; what stands in a string or a comment is left alone."""
    code = line.split("//")[0]
    if SILENT.search(code) or '"' in code:
        return
    for old, new in SWAPS:
        for found in re.finditer(re.escape(old), code):
            yield line[:found.start()] + new + line[found.end():]
    for found in NUMBER.finditer(code):
        yield line[:found.start()] + str(int(found[1]) + 1) + line[found.end():]


def candidates(lines, rng):
    """Pairs of a line's number and a change of it, in the order in which they are tried."""
    found, silent, alias = [], False, False
    for number, line in enumerate(lines, 1):
        silent = (silent or bool(SILENT_FUNCTION.match(line))) and line != "}"
        alias = alias or bool(SILENT_ALIAS.match(line))
        found += [] if silent or alias else [(number, new) for new in changes(line)]
        alias = alias and not line.endswith(";")
    rng.shuffle(found)
    return found


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Unit:
    """A source file: its kernel, how it is compiled, and which files of the tree it reads."""

    def __init__(self, build, source, entry, options):
        self.build, self.source = build, source
        self.place = pathlib.Path(entry["file"]).relative_to(source)
        self.kernel = TARGET.search(entry["command"])[1]
        words = shlex.split(entry["command"])
        out = words.pop(words.index("-o") + 1)
        self.words = [word for word in words if word != "-o" and
                      not ((found := ARCHITECTURE.match(word)) and found[1] != options.arch)]
        self.words += options.flags
        self.reads = {os.path.normpath(build / line.strip()) for line in
                      output_of("ninja", "-C", build, "-t", "deps", out).splitlines()}
        self.bytes = (build / out).stat().st_size
        self.lock, self.whole = threading.Lock(), None

    def compile(self, folder, change=True):
        """folder/mutant.o, where files in `folder` stand for those of the tree, and a hash of its
        code; None where it does not compile."""
        words = list(self.words)
        if change:  # But no name of a file tells code apart.
            words[1:1] = [f"-I{folder}", f"-ffile-prefix-map={folder}={self.source}"]
        if change and (folder / self.place).exists():
            words = [word.replace(str(self.source / self.place), str(folder / self.place))
                     for word in words]
        out = folder / "mutant.o"
        run = subprocess.run([*words, "-o", out], cwd=self.build, capture_output=True, text=True)
        if run.returncode != 0 and not change:
            sys.exit(f"{self.place} does not compile before anything is broken:\n{run.stderr}")
        if run.returncode != 0:
            return None
        return hashlib.sha256(TEMPORARY.sub(b"", out.read_bytes())).digest()

    def code(self):
        """The hash of the code as it is; one thread finds it."""
        with self.lock, tempfile.TemporaryDirectory() as folder:
            self.whole = self.whole or self.compile(pathlib.Path(folder), change=False)
            return self.whole


class Tree:
    def __init__(self, build, options):
        entries = json.loads((build / "compile_commands.json").read_text())
        cache = (build / "CMakeCache.txt").read_text()
        self.build, self.options = build, options
        self.source = pathlib.Path(re.search(r"^CMAKE_HOME_DIRECTORY\S*=(.*)$", cache, re.M)[1])
        self.units = [Unit(build, self.source, entry, options) for entry in entries
                      if (target := TARGET.search(entry["command"])) and
                      bool(target[2]) == options.cuda and
                      (not options.kernels or target[1] in options.kernels)]

    def files(self):
        """Each file to change, with the units that read it, the quickest to compile first; those
        that take longest come first."""
        found, kinds = [], {".cu", ".cuh"} if self.options.cuda else {".cpp", ".h"}
        for path in sorted((self.source / "troupe/kernels").rglob("*.*")):
            contract = path.name == f"{path.parent.name}.h"
            wanted = path.suffix in kinds or self.options.cuda and path.parent.name == "device"
            users = [unit for unit in self.units if str(path) in unit.reads]
            if users and wanted and not contract:
                found.append((path, sorted(users, key=lambda unit: unit.bytes)))
        return sorted(found, key=lambda each: -each[1][0].bytes)

    def tests(self, kernel):
        """Its own, and those of further files of its folder, but those that use none of its CUDA code."""
        folder, library = self.source / "troupe/kernels" / kernel, f"libkernel_{kernel}_cuda.a"
        names = sorted(path.stem for path in folder.glob("*_test.cpp"))
        return [name for name in names if not self.options.cuda or library in self.link_words(name)]

    def link_words(self, test):
        steps = output_of("ninja", "-C", self.build, "-t", "commands", test)
        words = shlex.split(steps.splitlines()[-1])
        return words[words.index("&&") + 1:-2]

    def link(self, test, program, objects=()):
        """A test; what the objects define is not taken from the archives after them."""
        words = self.link_words(test)
        first = next(i for i, word in enumerate(words) if word.endswith(".a"))
        words[first:first] = map(str, objects)
        words[words.index("-o") + 1] = str(program)
        subprocess.run([*words, *self.options.flags, "-s"], cwd=self.build, check=True)


def again(options, place, lines, found):
    """Those of the candidates `found` that a former run's table calls SURVIVED."""
    table = options.again.read_text() if options.again else ""
    file = re.escape(f"{place.parent.name}/{place.name}")
    survived = re.findall(rf"^SURVIVED +{file}:.*\n +- (.*)\n +\+ (.*)", table, re.M)
    return [(number, new) for number, new in found if (lines[number - 1].strip(), new.strip()) in survived]


def changed_objects(tree, place, users, folder):
    """By kernel, the objects of those `users` whose code is not as it was, --reach of them at most; none
    where the change does not compile."""
    found, reach = {}, tree.options.reach
    for unit in users:
        code = unit.compile(folder)
        if code is None:
            unit.code()  # Stops where the file does not compile as it is.
            return {}
        if place == unit.place or code != unit.code():
            objects = found.setdefault(unit.kernel, [])
            objects.append((folder / "mutant.o").rename(folder / f"{unit.place.name}.o"))
            if sum(map(len, found.values())) == reach:
                break
    return found


def change_file(tree, path, users, folder):
    """Makes the changes of one file; returns what run_mutants.py needs to know of each."""
    lines, place, made = path.read_text().splitlines(), path.relative_to(tree.source), []
    found = candidates(lines, random.Random(f"{tree.options.seed} {path.name}"))
    first = again(tree.options, place, lines, found)
    wanted = len(first) + tree.options.each
    found = first + [each for each in found if each not in first]
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name, place)
        copy.parent.mkdir(parents=True)
        for number, new in found:
            if len(made) == wanted:
                break
            copy.write_text("\n".join(lines[:number - 1] + [new] + lines[number:]) + "\n")
            ending, tests = f"{place.parent.name}.{path.name}.{number}.{len(made)}", {}
            for kernel, objects in changed_objects(tree, place, users, pathlib.Path(name)).items():
                for test in tree.tests(kernel):
                    tests[test] = f"{test}.{ending}"
                    tree.link(test, folder / tests[test], objects)
            if tests:
                made.append({"place": f"{place.parent.name}/{path.name}:{number}", "tests": tests,
                             "old": lines[number - 1].strip(), "new": new.strip()})
    return made


def copy_libraries(program, folder):
    for name, path in re.findall(r"(\S+) => (/\S+)", output_of("ldd", program)):
        if not SYSTEM.match(name):
            shutil.copy(path, folder / name)


def prepare(tree, folder):
    made = []
    with concurrent.futures.ThreadPoolExecutor(tree.options.jobs) as pool:
        jobs = [pool.submit(change_file, tree, *file, folder) for file in tree.files()]
        for job in concurrent.futures.as_completed(jobs):
            made += job.result()
            print(f"{len(made)} changes compiled", end="\r", flush=True)
    for test in sorted({test for each in made for test in each["tests"]}):
        tree.link(test, folder / test)
        copy_libraries(folder / test, folder)
    made.sort(key=lambda each: each["place"])
    (folder / "mutants.json").write_text(
        json.dumps({"gpu": tree.options.cuda, "mutants": made}, indent=1))
    shutil.copy(pathlib.Path(__file__).with_name("run_mutants.py"), folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--cuda", action="store_true", help="change the CUDA files")
    parser.add_argument("--each", type=int, default=1, help="changes a file")
    parser.add_argument("--reach", type=int, default=0,
                        help="compile a header's change in so many files, the quickest; 0: in all that change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=pathlib.Path, help="a table whose survivors are tried too")
    parser.add_argument("--jobs", type=int, default=1, help="compilers, and tests, at a time")
    parser.add_argument("--keep", type=pathlib.Path, help="leave the programs here, and run none")
    parser.add_argument("--arch", default="90a", help="the GPU architecture to compile for")
    parser.add_argument("--flags", type=shlex.split, default=[], help="more of them, to compile and link")
    options = parser.parse_args()
    tree = Tree(options.build.resolve(), options)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return prepare(tree, options.keep.resolve())
    with tempfile.TemporaryDirectory() as folder:
        prepare(tree, pathlib.Path(folder))
        return subprocess.run([sys.executable, f"{folder}/run_mutants.py", "--jobs",
                               str(options.jobs)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
