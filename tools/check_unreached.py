#!/usr/bin/env python3
"""check_unreached.py ROOT: fails on what only tests reach.
 - A function or type that a header of troupe/ declares and nothing that runs names. The programs (apps/), the
   Python module and the operators run; so does a header of which a file that runs includes and names something,
   and a source that defines what such a header declares. Examples, benchmarks, tests and troupe/troupe.h are no
   users. What a function that nothing reaches names is not reached by that: what it alone uses is found too.
 - A key of a recipe (a line of a visit()) that no code reads, and two values of one setting that no code
   tells apart. What validate() says of them does not count: an option that is only refused does nothing.

Names are compared as identifiers of code, without comments, texts and #include lines, in files that see the header
which declares them. A member's name does not use a function of that name that is none; where two things that one
file sees share a name, a use of either is a use of both. These need no use: an operator of torch.ops.troupe in its
C++ form, a kernel's reference x_ref (its paths are tested by it), and an accessor of one line."""
import collections
import json
import pathlib
import re
import subprocess
import sys

PAGE = "troupe/troupe.h"  # includes what is offered, and uses nothing
REGISTERS = re.compile(r"^TORCH_LIBRARY\w*\(", re.M)  # a source with operators of torch.ops.troupe, which Python calls
TOPS = ("troupe", "apps", "python")
HEADERS = (".h", ".cuh")
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
MACROS = "TROUPE_HOST_DEVICE,__global__,__device__,__host__,__forceinline__,__launch_bounds__+,__restrict__"
CTAGS = ["ctags", "--output-format=json", "--fields=+neKsZ", "--langmap=C++:+.h.cpp.cu.cuh",
         "--languages=C++", "--kinds-C++=fpscgtmedvx", "-I", MACROS, "-L", "-", "-f", "-"]
FUNCTIONS, TYPES = ("function", "prototype"), ("struct", "class", "enum", "typedef")
WORD = re.compile(r"[A-Za-z_]\w*")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|^[ \t]*#[ \t]*include[^\n]*', re.S | re.M)
MEMBER_OF = re.compile(r"(?:\.|->)\s*$")
OPERATOR = re.compile(r'"(\w+)\(')
CUDA_ENTRY = re.compile(r"&CudaKernels::(\w+)")  # of the table that stands for x_cuda
ACCESSOR = re.compile(r"\{ return [^;{}]*; \}")
INCLUDE = re.compile(r'#include "([^"]+)"')
RECORD = re.compile(r"^extern constinit const \w+ (\w+) =", re.M)  # a definition that ctags does not know
VISITED = re.compile(r'\bf\("(\w+)",\s*\w+\.(\w+)\)')
MEMBER = re.compile(r"(?:\.|->)(\w+)\b")
VALUE = re.compile(r"\b(\w+)::(k[A-Z]\w*)")
USING = re.compile(r"using enum (\w+);")
CHOICE = re.compile(r'Named\{"\w+",\s*(?:\w+::)*?(\w+)::(\w+)\}')

# What nothing names or reads, and why it stays.
ALLOWED = {
    "MemoryStore": "the key-value store of ranks that are threads, see Threads",
    "NoSync": "the C++ interface: accumulation with DistributedDataParallel, for a caller's own LibTorch program",
    "Sharded": "the C++ interface: what fully_shard returns, as examples/sharded has it",
    "Threads": "ranks as threads of one process: tests run layouts of many ranks on one machine with them",
    "abandon": "the C++ interface: Saver's, for a caller's own signals; the program leaves at once at a second one",
    "become_null": "core/config/config_read.h calls it of any type that has it, and sees none",
    "buckets_begun": "the C++ interface: how far DistributedDataParallel's all-reduces are, for a caller's own program",
    "clip_grad_norm": "the C++ interface: of a sharded module, as examples/sharded has it",
    "copy_from": "the C++ interface: loads a sharded module",
    "copy_to": "the C++ interface: saves a sharded module, as examples/sharded has it",
    "dds": "the C++ form of the operator block_dds",
    "fully_shard": "the C++ interface: any module of LibTorch over ranks, as examples/sharded has it",
    "is_exact": "rule U3's condition: tests know by it where an upcycled layer begins as the dense one",
    "kept_for_backward": "asks autograd what an operator's node keeps: what tests of memory compare with",
    "num_buckets": "the C++ interface, see buckets_begun",
    "parse_tiktoken": "open_tiktoken knows its settings by the number of ranks, 50 thousand and more",
    "release_resources": "c10::intrusive_ptr calls it when a node has lost its last owner",
    "returns": "the C++ interface: a call of a Sharded, a template, tells it the results of the forward",
    "scatter": "MegaBlocks' key: what it would pack is not kept, and validate() holds it to that",
    "thread_ranks": "the groups of ranks that are threads, see Threads",
    "virtual_ranks_dispatcher": "W ranks in one process: the oracle of the `fast` way back",
    "with_loss": "the C++ interface: rule A7 in a caller's own step, as examples/consumer has it",
}


def stem(path):
    """The same of a header and of the sources beside it that are named as it is: x.h, x.cpp, x_cpu.cpp."""
    return re.sub(r"(_cpu|_cuda|_ref)?\.\w+$", "", path)


class Source:
    """A file as words: `places[word]` are the numbers of the lines on which it stands."""

    def __init__(self, text):
        self.text = text
        self.lines = NOISE.sub(lambda found: " " + "\n" * found[0].count("\n"), text).split("\n")
        self.includes = set(INCLUDE.findall(text))
        self.places = collections.defaultdict(list)
        self.free = collections.defaultdict(list)  # where the word is no member of something
        for number, line in enumerate(self.lines, 1):
            for found in WORD.finditer(line):
                self.places[found[0]].append(number)
                if not MEMBER_OF.search(line, 0, found.start()):
                    self.free[found[0]].append(number)
            for name in CUDA_ENTRY.findall(line):
                self.places[f"{name}_cuda"].append(number)
                self.free[f"{name}_cuda"].append(number)


class Tree:
    """The sources without tests, what they declare, and where that is named."""

    def __init__(self, root):
        self.sources = {}
        for path in sorted(p for top in TOPS for p in (root / top).rglob("*") if p.suffix in SUFFIXES):
            name = path.relative_to(root)
            if not name.stem.endswith("_test") and "testing" not in name.parts and name.as_posix() != PAGE:
                self.sources[name.as_posix()] = Source(path.read_text())
        run = subprocess.run(CTAGS, input="\n".join(self.sources), capture_output=True, text=True,
                             check=True, cwd=root)
        self.tags = collections.defaultdict(list)  # name -> its declarations and definitions
        self.members = collections.defaultdict(list)  # type -> the spans of its functions
        self.declared = collections.defaultdict(set)  # path -> names: of a header all, of a source what others define
        self.defined = collections.defaultdict(set)  # source -> names
        self.fields = set()  # (path, line) of a declaration of a member
        self.using = {path: USING.findall(source.text) for path, source in self.sources.items()}
        for tag in map(json.loads, run.stdout.splitlines()):
            if tag["kind"] in ("member", "enumerator"):
                self.fields.add((tag["path"], tag["line"]))
            elsewhere = tag["kind"] in ("prototype", "externvar")
            is_header = tag["path"].endswith(HEADERS)
            (self.declared if is_header or elsewhere else self.defined)[tag["path"]].add(tag["name"])
            if tag["kind"] not in FUNCTIONS + TYPES:
                continue
            tag["span"] = (tag["path"], tag["line"], self.end(tag))
            self.tags[tag["name"]].append(tag)
            if tag["kind"] in FUNCTIONS and "scope" in tag:
                self.members[tag["scope"].split("::")[-1]].append(tag["span"])
        for path, source in self.sources.items():
            self.defined[path].update(RECORD.findall(source.text))
        self.seen = {path: self.seen_by(path) for path in self.sources}
        self.reached = self.reached_files()
        self.operators = {name for path, source in self.sources.items() if path.startswith("troupe/ops/")
                          for name in OPERATOR.findall(source.text)}

    def seen_by(self, path):
        """The files that one includes, and those that they include."""
        out, todo = {path}, [path]
        while todo:
            new = self.sources[todo.pop()].includes & self.sources.keys() - out
            out |= new
            todo += new
        return out

    def reached_files(self):
        """What runs: the programs, the Python module, headers of which a file that runs names something, and the
        sources that define what such a header, or another source that runs, declares."""
        headers = {path for path in self.sources if path.endswith(HEADERS)}
        reached, fresh = set(), {path for path, source in self.sources.items()
                                 if not path.startswith("troupe/") or REGISTERS.search(source.text)}
        while fresh:
            reached |= fresh
            abroad = set().union(*(self.declared[path] for path in reached - headers))
            fresh = {path for path in headers - reached if any(
                path in self.seen[user] and stem(user) != stem(path) and
                not self.declared[path].isdisjoint(self.sources[user].places) for user in reached)}
            fresh |= {path for path in self.sources.keys() - headers - reached
                      if not abroad.isdisjoint(self.defined[path]) or any(
                          header in reached and (stem(header) == stem(path) or
                                                 not self.declared[header].isdisjoint(self.defined[path]))
                          for header in self.seen[path] & headers)}
        return reached

    def end(self, tag):
        if "end" in tag or tag["kind"] not in ("prototype", "typedef"):
            return tag.get("end", tag["line"])
        lines = self.sources[tag["path"]].lines
        return next((n for n in range(tag["line"], len(lines) + 1) if ";" in lines[n - 1]), tag["line"])

    def own(self, name):
        """The spans in which a name is no use of itself: its declarations and, of a type, its functions."""
        spans = [tag["span"] for tag in self.tags[name]]
        is_type = any(tag["kind"] in TYPES for tag in self.tags[name])
        return spans + (self.members[name] if is_type else [])

    def is_used(self, name, dead):
        own = self.own(name)
        homes = {tag["path"] for tag in self.tags[name] if tag["path"].endswith(HEADERS)}
        is_free = all(tag["kind"] in FUNCTIONS and tag.get("scopeKind", "namespace") == "namespace" for tag in self.tags[name])
        return any(line not in dead[path] and
                   not any(path == file and first <= line <= last for file, first, last in own)
                   for path in self.reached if not homes.isdisjoint(self.seen[path])
                   for line in (self.sources[path].free if is_free else self.sources[path].places).get(name, ()))

    def needs_use(self, name):
        tags = self.tags[name]
        if name.startswith(("~", "operator", "__anon")) or name.endswith("_ref") or name in ALLOWED:
            return False
        if not any(tag["path"].endswith(".h") for tag in tags):
            return False  # a name of one file: the compiler tells
        for tag in tags:
            path, first, last = tag["span"]
            accessor = tag["kind"] == "function" and path.endswith(".h") and first == last and \
                ACCESSOR.search(self.sources[path].lines[first - 1])
            outside = not path.startswith("troupe/") or "gloo_headers" in path
            operator = path.startswith("troupe/ops/") and name in self.operators
            if accessor or outside or operator:
                return False
        return True


def unreached(tree):
    """path:line of what a header declares and nothing that runs names."""
    candidates, found, dead = {n for n in tree.tags if tree.needs_use(n)}, set(), collections.defaultdict(set)
    while fresh := {name for name in candidates - found if not tree.is_used(name, dead)}:
        found |= fresh
        for file, first, last in (span for name in fresh for span in tree.own(name)):
            dead[file].update(range(first, last + 1))
    for name in sorted(found):
        tag = next(tag for tag in tree.tags[name] if tag["path"].endswith(".h"))
        yield f"{tag['path']}:{tag['line']}: only tests reach {name}: give it a user, or remove it"


def judging(tree):
    """The lines of functions that only judge values, by file."""
    out = collections.defaultdict(set)
    for tag in tree.tags["validate"]:
        file, first, last = tag["span"]
        out[file].update(range(first, last + 1))
    return out


def without_effect(tree):
    """path:line of a key that nothing reads, and of values between which nothing chooses."""
    judged, keys, choices = judging(tree), [], collections.defaultdict(list)
    reads, bare, named = set(), set(), set()
    for path, source in tree.sources.items():
        for number, raw in enumerate(source.text.split("\n"), 1):
            line = source.lines[number - 1]
            if VISITED.search(raw):  # in a source it is a file's format, not a recipe's
                keys += [(path, number, *found) for found in VISITED.findall(raw) if path.endswith(".h")]
            elif CHOICE.search(raw):
                for enum, value in CHOICE.findall(raw):
                    choices[enum].append((path, number, value))
            elif number not in judged[path] and (path, number) not in tree.fields:
                reads.update(MEMBER.findall(line))
                named.update(VALUE.findall(line))
                bare.update((path.rpartition(".")[0], word) for word in WORD.findall(line))
                named.update((enum, value) for enum in tree.using[path] for value in WORD.findall(line))
    for path, number, key, member in keys:
        if key not in ALLOWED and not member.endswith("_") and member not in reads and (path.rpartition(".")[0], member) not in bare:
            yield f"{path}:{number}: no code reads {key}: let it do what it says, or remove it"
    for enum, values in choices.items():
        same = [value for _, _, value in values if (enum, value) not in named]
        if len(same) > 1:
            yield f"{values[0][0]}:{values[0][1]}: no code tells {', '.join(same)} of {enum} apart"


def faults(root):
    tree = Tree(root)
    yield from unreached(tree)
    yield from without_effect(tree)


if __name__ == "__main__":
    found = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) or "unreached: nothing")
    sys.exit(bool(found))
