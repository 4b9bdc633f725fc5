#!/usr/bin/env python3
"""check_replay.py ROOT: every CUDA kernel of troupe/kernels/cuda_kernels.h is run by a test that calls it twice, the second
time beside a busy stream, and compares all bytes (troupe/testing/replay_gate.h); or it stands in EXCEPT with the reason.

Such a call names the kernel's function in the same statement as testing::run, testing::run_reference or replay:
`testing::run(backend, args, combine_cpu, TROUPE_CUDA_PATH(combine_cuda));`, or hands it to a function of the test file
whose body calls one of them with the function that it was given (`go(args, ref, TROUPE_CUDA_PATH(x_cuda))`)."""
import pathlib
import re
import sys

TABLE = "troupe/kernels/cuda_kernels.h"
GATED = re.compile(r"\btesting::(?:run|run_reference|replay)\(|\breplay\(")
# A call whose kernel is given by the caller: `replay([&] { cuda(args, nullptr); }, true)`, `testing::run(b, args, cpu, cuda)`.
HANDED_ON = re.compile(r"(?:\btesting::(?:run|run_reference|replay)|\breplay)\([^;]*?\bcuda\b")

EXCEPT = {}  # kernel: why no test runs it twice


def kernels(root):
    return re.findall(r"^ *X\((\w+), \w+\)", (root / TABLE).read_text(), re.M)


def statements(text):
    """The text without comments, cut at semicolons and braces, as a call of several lines is one of them."""
    return re.split(r";|\}\n", re.sub(r"//[^\n]*", "", text))


def replayed(root):
    """Names of the kernels that a test runs twice."""
    found = set()
    for path in sorted((root / "troupe").rglob("*_test.cpp")):
        text = path.read_text()
        hands_on = HANDED_ON.search(text)
        for statement in statements(text):
            for name in re.findall(r"\b(\w+)_cuda\b", statement):
                given = f"TROUPE_CUDA_PATH({name}_cuda)" in statement and hands_on
                if GATED.search(statement) or given:
                    found.add(name)
    return found


def faults(root):
    names, found = kernels(root), replayed(root)
    if not names:
        yield f"{root / TABLE}: no kernels"
    for name in names:
        if name not in found and name not in EXCEPT:
            yield (f"{root / TABLE}: {name}: no test runs it twice (testing::run of troupe/testing/matrix.h does), and "
                   "tools/check_replay.py: EXCEPT does not say why")
    for name in EXCEPT:
        if name not in names or name in found:
            yield f"tools/check_replay.py: EXCEPT: {name} is no kernel, or a test runs it twice"


if __name__ == "__main__":
    found_faults = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found_faults) or "replay: ok")
    sys.exit(bool(found_faults))
